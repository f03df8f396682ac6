package fencingtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"fencepost/internal/fencing"
)

// callers and roundsPerCaller size runManyCallers: enough to overlap on two cores.
const (
	callers         = 8
	roundsPerCaller = 40
)

// runManyCallers lets many goroutines use both handles at one instant of the
// store's clock.
func runManyCallers(t *testing.T, open Open, caps Capabilities) {
	b := open(t)
	b.SetTime(Epoch)
	boxes := [2]*mailbox{newMailbox(), newMailbox()}
	for handle := range 2 {
		if handle == 1 && !caps.Gateways {
			boxes[1] = boxes[0]
			continue
		}
		b.Store(handle).Listen(boxes[handle])
	}
	contend(t, b)
	retryTogether(t, b)
	if b.Store(0).Capabilities().Queue {
		queueTogether(t, b, boxes)
		permitsTogether(t, b, boxes)
	}
}

// contend lets callers fight for one name. At most one of them holds it (P1), and
// the token of each grant is above the one before (P2).
func contend(t *testing.T, b Backend) {
	var (
		mu     sync.Mutex
		inside int // callers between their grant and their release
		tokens []fencing.Token
		faults []error
	)
	fault := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		faults = append(faults, err)
	}
	together(func(caller int) {
		store := b.Store(caller % 2)
		for round := range roundsPerCaller {
			lease := leaseOf(fmt.Sprintf("%c%d", 'A'+caller, round))
			out, err := store.Do(t.Context(), acquireOf("contended", lease))
			if codeOf(err) == fencing.CodeLocked {
				continue
			}
			if err != nil {
				fault(err)
				return
			}
			mu.Lock()
			if inside++; inside > 1 {
				faults = append(faults, fmt.Errorf("P1: %d callers hold the lock", inside))
			}
			if token := out.Holder.Token; len(tokens) > 0 && token <= tokens[len(tokens)-1] {
				faults = append(faults, fmt.Errorf("P2: the token %d came after %d", token, tokens[len(tokens)-1]))
			}
			tokens = append(tokens, out.Holder.Token)
			mu.Unlock()
			_, err = store.Do(t.Context(), fencing.RenewRequest{Name: "contended", Lease: lease})
			fault(err)
			mu.Lock()
			inside--
			mu.Unlock()
			_, err = store.Do(t.Context(), fencing.ReleaseRequest{Name: "contended", Lease: lease})
			fault(err)
		}
	})
	if err := errors.Join(faults...); err != nil {
		t.Error(err)
	}
	if len(tokens) == 0 {
		t.Error("nobody was granted the lock")
	}
}

// retryTogether lets callers send one request at the same time: all hear of the
// same grant (P7).
func retryTogether(t *testing.T, b Backend) {
	var tokens [callers]fencing.Token
	var faults [callers]error
	together(func(caller int) {
		out, err := b.Store(caller%2).Do(t.Context(), acquireOf("retried", leaseOf("A")))
		tokens[caller], faults[caller] = out.Holder.Token, err
		if err == nil && !out.Fresh {
			faults[caller] = errors.New("P7: the request that made the grant is told that another one did")
		}
	})
	if err := errors.Join(faults[:]...); err != nil {
		t.Error(err)
	}
	if slices.Min(tokens[:]) != slices.Max(tokens[:]) {
		t.Errorf("P7: one request has the tokens %v", tokens)
	}
}

func together(do func(caller int)) {
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() { do(caller) })
	}
	wg.Wait()
}

// runContext checks P8 with a context that is over: a store may still answer, but
// what it can't decide is unavailable, and a retry finds out.
func runContext(t *testing.T, open Open) {
	b := open(t)
	b.SetTime(Epoch)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	store, request := b.Store(0), acquireOf("a", leaseOf("A"))
	unknown := func(what string, err error) {
		if code := codeOf(err); code != fencing.CodeOK && code != fencing.CodeUnavailable {
			t.Errorf("%s with a context that is over: %v", what, err)
		}
	}
	_, err := store.Do(over, request)
	unknown("Acquire", err)
	if _, err := store.Do(t.Context(), request); err != nil {
		t.Errorf("Acquire again: %v", err)
	}
	_, err = store.Do(over, fencing.RenewRequest{Name: "a", Lease: request.Lease})
	unknown("Renew", err)
	_, err = store.Do(over, fencing.InspectRequest{Name: "a"})
	unknown("Inspect", err)
	_, err = store.List(over, fencing.ListRequest{Limit: 1})
	unknown("List", err)
	_, err = store.Expire(over, 1)
	unknown("Expire", err)
	_, err = store.Stats(over)
	unknown("Stats", err)
	unknown("Check", store.Check(over))
	_, err = store.Do(over, fencing.ReleaseRequest{Name: "a", Lease: request.Lease})
	unknown("Release", err)
	if _, err := store.Do(t.Context(), fencing.ReleaseRequest{Name: "a", Lease: request.Lease}); err != nil {
		t.Errorf("Release again: %v", err)
	}
	if err := store.Check(t.Context()); err != nil {
		t.Errorf("Check: %v", err)
	}
}

func acquireOf(name fencing.Name, lease fencing.LeaseID) fencing.AcquireRequest {
	return fencing.AcquireRequest{Name: name, Lease: lease, Stamp: stampOf("r1"), Mode: fencing.ModeExclusive, Hold: 1, TTL: defaultTTL}
}

// codeOf returns the code of an error of a store, or "" if it has none.
func codeOf(err error) fencing.Code {
	if err == nil {
		return fencing.CodeOK
	}
	if e, ok := errors.AsType[*fencing.Error](err); ok {
		return e.Code
	}
	return ""
}
