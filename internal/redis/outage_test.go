package redis

import (
	"context"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// A Redis that is away is told as how it is away, in words, and without its address.
func TestOutages(t *testing.T) {
	gone, stopped := redistest.Start(t), redistest.Start(t)
	if err := gone.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := stopped.Pause(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stopped.Resume() }) // after the subtests
	for _, tt := range []struct{ what, url, detail string }{
		{"not running", gone.URL(), "connection refused"},
		{"no such host", "redis://redis.invalid:6379", "DNS"},
		{"no such socket", "unix:///nowhere/redis.sock", "socket does not exist"},
		{"stopped", stopped.URL(), "answer in time"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			s, err := Open(t.Context(), Options{URL: tt.url, Logger: quiet})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // as /readyz asks
			defer cancel()
			o := fencing.OutageOf(s.Check(ctx))
			if o == nil || !strings.Contains(o.Detail, tt.detail) || strings.Contains(o.Detail, "127.0.0.1") {
				t.Errorf("%+v", o)
			}
		})
	}
}
