package members

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"fencepost/verify/system"
)

const (
	// readsAtOnce is how many requests are in the sockets of a leader when it goes on.
	readsAtOnce = 40

	// underWay is how long requests have to get into its sockets.
	underWay = 100 * time.Millisecond
)

// read stops the leader, has others release a lock and grant it to somebody else, puts reads into the sockets of the
// old one, and lets it go on: it may not answer with what it knew before it was stopped.
func read(l *load, round int) (time.Duration, error) {
	name := fmt.Sprintf("reads/%d-%d", round, time.Now().UnixNano())
	grant := func(asked func() *system.Gateway, id string) (int64, error) {
		a, err := l.insist(asked, func(ctx context.Context, g *system.Gateway) (system.Answer, error) {
			return l.client.Acquire(ctx, g, name, id, `{"ttl_ms":600000}`)
		})
		if err == nil && a.Status != http.StatusCreated && a.Status != http.StatusOK {
			err = fmt.Errorf("nobody can have %s: %s", name, a)
		}
		if err != nil {
			return 0, err
		}
		return a.Lease.Token, nil
	}
	old, err := l.s.Leader(patience)
	if err != nil {
		return 0, err
	}
	first := newLeaseID()
	if _, err := grant(func() *system.Gateway { return old }, first); err != nil {
		return 0, err
	}
	client := system.NewClient(readsAtOnce)
	defer client.Close()
	moment := time.Now()
	if err := old.Pause(); err != nil {
		return 0, err
	}
	resumed := false
	defer func() {
		if !resumed {
			_ = old.Resume()
		}
	}()
	at := 0
	next := func() *system.Gateway { at++; return others(l.s, old)[at%(len(l.s.Gateways)-1)] }
	if _, err := l.insist(next, func(ctx context.Context, g *system.Gateway) (system.Answer, error) {
		return l.client.Release(ctx, g, name, first)
	}); err != nil {
		return 0, err
	}
	after, err := grant(next, newLeaseID())
	if err != nil {
		return 0, err
	}
	took := time.Since(moment)
	answers := make(chan system.Answer, readsAtOnce)
	for range readsAtOnce {
		go func() {
			ctx, cancel := context.WithTimeout(l.ctx, patience)
			defer cancel()
			a, err := client.Inspect(ctx, old, name)
			if err != nil {
				a = system.Answer{}
			}
			answers <- a
		}()
	}
	pause(l.ctx, underWay)
	resumed = true
	if err := old.Resume(); err != nil {
		return 0, err
	}
	answered := 0
	for range readsAtOnce {
		a := <-answers
		if a.Status != http.StatusOK {
			continue // nothing is known
		}
		answered++
		if shown := tokenIn(a); shown != after {
			l.r.Violation("%s was granted with token %d, and a read after that shows %d: %s", name, after, shown, a)
		}
	}
	l.r.Reach("reads of a leader that was stopped", answered, readsAtOnce)
	l.r.Note("round %d: %d of %d reads were answered with the lock", round, answered, readsAtOnce)
	return took, nil
}

// tokenIn returns the token of the holder that an answer shows, 0 if it shows none.
func tokenIn(a system.Answer) int64 {
	var lock struct {
		Holders []struct {
			Token int64 `json:"fencing_token"`
		}
	}
	if json.Unmarshal(a.Body, &lock) != nil || len(lock.Holders) != 1 {
		return 0
	}
	return lock.Holders[0].Token
}
