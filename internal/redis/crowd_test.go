package redis

import (
	"errors"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// A name with more holders than a Lua call takes arguments can be looked at.
func TestManyHoldersAreShown(t *testing.T) {
	const holders, clients = 9000, 60
	s := open(t, Options{URL: redistest.Start(t).SocketURL(), MaxSkew: time.Second, ReadTimeout: time.Minute, OperationTimeout: time.Minute})
	defer s.Close()
	faults := make(chan error, clients)
	for range clients {
		go func() {
			var err error
			for i := 0; i < holders/clients && err == nil; i++ {
				r := acquireRequest("a")
				r.Mode, r.TTL = fencing.ModeShared, time.Hour
				_, err = s.Do(t.Context(), r)
			}
			faults <- err
		}()
	}
	for range clients {
		if err := <-faults; err != nil {
			t.Fatal(err)
		}
	}
	out, err := s.Do(t.Context(), fencing.InspectRequest{Name: "a"})
	if err != nil || len(out.Lock.Holders) != fencing.MaxHoldersShown || out.Lock.HolderCount != holders {
		t.Errorf("inspect: %v", err)
	}
	out, err = s.Do(t.Context(), fencing.HistoryRequest{Name: "a", Holders: holders})
	if err != nil || len(out.Lock.Holders) != holders || out.Lock.HolderCount != holders {
		t.Errorf("history: %v", err)
	}
	first := acquireRequest("a") // it ends before all the others, and is shown for that
	first.Mode, first.TTL = fencing.ModeShared, time.Minute
	mustAcquire(t, s, first)
	_, err = s.Do(t.Context(), acquireRequest("a"))
	refused, is := errors.AsType[*fencing.Error](err)
	if !is || refused.Code != fencing.CodeLocked || len(refused.Lock.Holders) != fencing.MaxHoldersShown || refused.Lock.HolderCount != holders+1 || refused.RetryAfter > time.Minute {
		t.Errorf("a refusal: %v", err)
	}
	page, err := s.List(t.Context(), fencing.ListRequest{Limit: 1})
	if err != nil || len(page.Locks) != 1 || len(page.Locks[0].Holders) > fencing.MaxHoldersShown || page.Locks[0].HolderCount != holders+1 {
		t.Errorf("a list: %v", err)
	}
}

// The floor of a partition learns of a lease that another gateway handed over (P2).
func TestConfirmRaisesTheFloor(t *testing.T) {
	server := redistest.Start(t)
	a := open(t, Options{URL: server.SocketURL(), MaxSkew: time.Second})
	defer a.Close()
	b := open(t, Options{URL: server.SocketURL(), MaxSkew: time.Second})
	defer b.Close()
	first, next := acquireRequest("a"), waitRequest("a")
	mustAcquire(t, a, first)
	if out, err := b.Do(t.Context(), next); err != nil || !out.Waits() {
		t.Fatalf("%+v, %v", out, err)
	}
	if _, err := a.Do(t.Context(), fencing.ReleaseRequest{Name: "a", Lease: first.Lease}); err != nil {
		t.Fatal(err)
	}
	out, err := b.Do(t.Context(), fencing.ConfirmRequest{Name: "a", Lease: next.Lease, Stamp: next.Stamp})
	if err != nil {
		t.Fatal(err)
	}
	if floor := fencing.Token(b.sender.floors[0].Load()); floor < out.Holder.Token {
		t.Errorf("the floor is %d, below the token %d", floor, out.Holder.Token)
	}
}
