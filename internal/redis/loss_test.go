package redis

import (
	"bytes"
	"log/slog"
	"sync"
	"testing"
	"time"

	"fencepost/internal/redis/redistest"
)

type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// "off: not at all: loss is logged and counted"
func TestOffIsLogged(t *testing.T) {
	server := redistest.Start(t)
	var log logBuffer
	s := open(t, Options{URL: server.URL(), Quarantine: QuarantinePolicy{Off: true}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	mustAcquire(t, s, acquireRequest("a"))
	flush(t, server)
	mustAcquire(t, s, acquireRequest("a"))
	s.checkGuards(t.Context())
	s.guards.report()
	if s.Losses() == 0 {
		t.Error("not counted")
	}
	if log.String() == "" {
		t.Error("leases were lost and granted again, and nothing is logged")
	}
}

// A server that another gateway has noted has lost nothing more when this one finds it.
func TestOffCountsNoMove(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL(), Quarantine: QuarantinePolicy{Off: true}})
	s.guards.close()
	g, err := decodeGuard(s.redis().Get(t.Context(), s.keys[0].guard).Val(), s.partitions)
	if err != nil {
		t.Fatal(err)
	}
	g.Server = "other"
	s.guards.remember(0, &g, time.Time{}, false) // long ago
	s.checkGuards(t.Context())
	if got := s.guards.recall(0, "").server; got != serverAt(t, server) || s.Losses() > 0 {
		t.Errorf("%d losses, and %q serves", s.Losses(), got)
	}
}
