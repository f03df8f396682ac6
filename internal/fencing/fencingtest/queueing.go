package fencingtest

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// mailbox is a listener that passes each grant on to the one who waits for it.
type mailbox struct {
	mu      sync.Mutex
	inboxes map[fencing.LeasePublic]chan fencing.Grant
}

func newMailbox() *mailbox { return &mailbox{inboxes: map[fencing.LeasePublic]chan fencing.Grant{}} }

// open returns where the grants of a lease id arrive. Repeated ones are dropped.
func (m *mailbox) open(lease fencing.LeasePublic) <-chan fencing.Grant {
	m.mu.Lock()
	defer m.mu.Unlock()
	inbox := make(chan fencing.Grant, 1)
	m.inboxes[lease] = inbox
	return inbox
}

func (m *mailbox) Granted(g fencing.Grant, _ fencing.Instant, _ time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case m.inboxes[g.Holder.Lease] <- g:
	default:
	}
}

func (m *mailbox) Replaced(fencing.Name, fencing.Stamp) {}

func (m *mailbox) Ask(fencing.Name, fencing.Stamp) {}

func (m *mailbox) Gap() {}

// Has passes on what is to be confirmed: its message may be lost.
func (m *mailbox) Has(_ []fencing.Name, _ time.Time, entries []fencing.Entry) {
	for _, e := range entries {
		if e.Provisional {
			m.Granted(fencing.Grant{Name: e.Name, Holder: fencing.Holder{Lease: e.Lease, Provisional: true}, Stamp: e.Stamp}, 0, time.Time{})
		}
	}
}

// queueTogether lets callers wait for one name, as gateways do: who is granted
// confirms, and releases. All are served (P5), one at a time (P1), with growing
// tokens (P2).
func queueTogether(t *testing.T, b Backend, boxes [2]*mailbox) {
	var (
		mu     sync.Mutex
		inside int
		last   fencing.Token
		faults []error
	)
	fault := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		faults = append(faults, err)
	}
	together(func(caller int) {
		store, box := b.Store(caller%2), boxes[caller%2]
		for round := range roundsPerCaller {
			lease := leaseOf(fmt.Sprintf("%c%d", 'A'+caller, 1000+round))
			holder, err := waitFor(t, store, box.open(lease.Public()), acquireOf("queued", lease), func() {})
			if err != nil {
				fault(fmt.Errorf("caller %d in round %d: %w", caller, round, err))
				return
			}
			mu.Lock()
			if inside++; inside > 1 {
				faults = append(faults, fmt.Errorf("P1: %d callers hold the lock", inside))
			}
			if holder.Token <= last {
				faults = append(faults, fmt.Errorf("P2: the token %d came after %d", holder.Token, last))
			}
			last = holder.Token
			mu.Unlock()
			_, err = store.Do(t.Context(), fencing.RenewRequest{Name: "queued", Lease: lease})
			fault(err)
			mu.Lock()
			inside--
			mu.Unlock()
			if _, err := store.Do(t.Context(), fencing.ReleaseRequest{Name: "queued", Lease: lease}); err != nil {
				fault(err)
			}
		}
	})
	if err := errors.Join(faults...); err != nil {
		t.Error(err)
	}
}

// waitFor acquires a lease and waits for it as a gateway does: what a message does
// not tell, a heartbeat finds. joined is called when it has the lease, or waits.
func waitFor(t *testing.T, store fencing.Store, inbox <-chan fencing.Grant, request fencing.AcquireRequest, joined func()) (fencing.Holder, error) {
	request.Wait = time.Minute
	out, err := store.Do(t.Context(), request)
	if err != nil {
		return out.Holder, err
	}
	joined()
	if !out.Waits() {
		return out.Holder, nil
	}
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	beat := time.NewTicker(200 * time.Millisecond)
	defer beat.Stop()
	for {
		select {
		case g := <-inbox:
			if !g.Holder.Provisional {
				return g.Holder, nil
			}
			out, err := store.Do(t.Context(), fencing.ConfirmRequest{Name: g.Name, Lease: request.Lease, Stamp: g.Stamp})
			return out.Holder, err
		case <-beat.C:
			if err := store.Heartbeat(t.Context(), []fencing.Name{request.Name}); err != nil {
				return fencing.Holder{}, err
			}
		case <-deadline.C:
			return fencing.Holder{}, errors.New("P5: not served")
		}
	}
}

// permitsTogether lets callers take one permit each, again and again, while one of them takes
// all: that is served in its turn (P5), alone (P1), and whoever came after it is granted after it.
func permitsTogether(t *testing.T, b Backend, boxes [2]*mailbox) {
	const limit, all = 100, 5 // times that all permits are taken
	type late struct {
		after int // how many times somebody had come for all before it came
		token fencing.Token
	}
	var (
		mu     sync.Mutex
		taken  int
		joined int             // how many times somebody has come for all
		whole  []fencing.Token // of their grants
		others []late
		faults []error
	)
	take := func(caller, round, permits int) error {
		store, box := b.Store(caller%2), boxes[caller%2]
		request := acquireOf("permits", leaseOf(fmt.Sprintf("%c%d", 'A'+caller, 3000+round)))
		request.Mode, request.Limit, request.Permits = fencing.ModeShared, limit, permits
		mu.Lock()
		after := joined
		mu.Unlock()
		holder, err := waitFor(t, store, box.open(request.Lease.Public()), request, func() {
			mu.Lock()
			defer mu.Unlock()
			joined += permits / limit
		})
		if err != nil {
			return fmt.Errorf("caller %d in round %d: %w", caller, round, err)
		}
		mu.Lock()
		if taken += permits; taken > limit || holder.Permits != permits {
			faults = append(faults, fmt.Errorf("P1: with %d permits instead of %d, %d are taken", holder.Permits, permits, taken))
		}
		if permits == limit {
			whole = append(whole, holder.Token)
		} else {
			others = append(others, late{after, holder.Token})
		}
		mu.Unlock()
		_, err = store.Do(t.Context(), fencing.RenewRequest{Name: request.Name, Lease: request.Lease})
		mu.Lock()
		taken -= permits
		mu.Unlock()
		_, released := store.Do(t.Context(), fencing.ReleaseRequest{Name: request.Name, Lease: request.Lease})
		return errors.Join(err, released)
	}
	together(func(caller int) {
		permits, rounds := 1, roundsPerCaller
		if caller == 0 {
			permits, rounds = limit, all
		}
		for round := range rounds {
			if err := take(caller, round, permits); err != nil {
				mu.Lock()
				faults = append(faults, err)
				mu.Unlock()
				return
			}
		}
	})
	for _, l := range others {
		if l.after > len(whole) || l.after > 0 && l.token < whole[l.after-1] {
			faults = append(faults, fmt.Errorf("P5: the token %d was granted before all permits were, to a request that came after the %d. for all", l.token, l.after))
		}
	}
	if err := errors.Join(faults...); err != nil || len(whole) != all {
		t.Errorf("all permits were taken %d times: %v", len(whole), err)
	}
}
