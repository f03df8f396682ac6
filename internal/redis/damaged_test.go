package redis

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// A record that can't be read costs its own name and no other, neither in lists
// nor at their end, and is told once.
func TestDamagedRecords(t *testing.T) {
	var log logBuffer
	server := redistest.Start(t)
	b := openOn(t, Options{URL: server.SocketURL(), Logger: slog.New(slog.NewTextHandler(&log, nil))}, server)
	s, ctx := b.stores[0], t.Context()

	names := []fencing.Name{"0", "1", "2", "3", "4", "5", "6", "7"} // they share the calls that read them
	for _, name := range names {
		_, err := s.Do(ctx, acquireRequest(name))
		wantCode(t, "acquire", err, fencing.CodeOK)
	}
	key := func(i int) string { return s.keys[0].lock(names[i]) }
	whole := s.redis().Get(ctx, key(4)).Val()
	s.redis().Set(ctx, key(1), "?", 0)
	s.redis().Set(ctx, key(2), "", 0)
	s.redis().Set(ctx, key(4), whole[:len(whole)-20], 0)
	s.redis().Del(ctx, key(5))
	s.redis().RPush(ctx, key(5), "a list")
	intact := []fencing.Name{names[0], names[3], names[6], names[7]}

	for range 2 {
		page, err := s.List(ctx, fencing.ListRequest{Limit: 100})
		wantCode(t, "list", err, fencing.CodeOK)
		var listed []fencing.Name
		for _, lock := range page.Locks {
			listed = append(listed, lock.Name)
		}
		if !slices.Equal(listed, intact) {
			t.Errorf("listed %q, want %q", listed, intact)
		}
	}
	for _, name := range []fencing.Name{names[1], names[4], names[5]} {
		_, err := s.Do(ctx, fencing.InspectRequest{Name: name})
		wantCode(t, "inspect of a damaged record", err, fencing.CodeUnavailable)
	}
	_, err := s.Do(ctx, acquireRequest(names[1]))
	wantCode(t, "acquire of a damaged record", err, fencing.CodeUnavailable)

	b.SetTime(epoch.Add(30 * time.Second))
	for round := range 2 {
		e, err := s.Expire(ctx, 100)
		wantCode(t, "expire", err, fencing.CodeOK)
		var ended []fencing.Name
		for _, lease := range e.Ended {
			ended = append(ended, lease.Name)
		}
		slices.Sort(ended)
		if want := intact[:len(intact)*(1-round)]; !slices.Equal(ended, want) {
			t.Errorf("round %d: ended %q, want %q", round, ended, want)
		}
	}
	for i, name := range names {
		want := 1
		if slices.Contains(intact, name) {
			want = 0
		}
		if got := strings.Count(log.String(), "key="+key(i)+" "); got != want {
			t.Errorf("%s was told %d times, want %d", key(i), got, want)
		}
	}
}

// Names whose records can't be read are put off, so that they don't keep those behind
// them from what is due.
func TestDamagedRecordsAreNotInTheWay(t *testing.T) {
	b := openBackend(t, redistest.Start(t))
	s, ctx := b.stores[0], t.Context()
	for _, name := range []fencing.Name{"0", "1", "2", "3"} {
		_, err := s.Do(ctx, acquireRequest(name))
		wantCode(t, "acquire", err, fencing.CodeOK)
	}
	s.redis().Set(ctx, s.keys[0].lock("0"), "?", 0)
	s.redis().Set(ctx, s.keys[0].lock("1"), "?", 0)
	b.SetTime(epoch.Add(30 * time.Second))
	ended := 0
	for range 3 {
		e, err := s.Expire(ctx, 2)
		wantCode(t, "expire", err, fencing.CodeOK)
		ended += len(e.Ended)
	}
	if ended != 2 {
		t.Errorf("%d leases ended, want those of the 2 records that can be read", ended)
	}
}
