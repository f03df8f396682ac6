package watchdog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// beatStore answers heartbeats as it is told, and tells of what straysStore has where
// there is no error.
type beatStore struct {
	straysStore
	answer func(ctx context.Context, n int) error
	beats  []time.Time
}

func (s *beatStore) Heartbeat(ctx context.Context, names []fencing.Name) error {
	s.beats = append(s.beats, time.Now())
	if err := s.answer(ctx, len(s.beats)); err != nil {
		return err
	}
	return s.straysStore.Heartbeat(ctx, names)
}

// A master out of reach, for which a heartbeat uses up its time, does not have the others
// hear less often.
func TestHeartbeatsOfAPartThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &beatStore{answer: func(ctx context.Context, _ int) error {
			<-ctx.Done()
			return fencing.Unavailable(errors.New("one master"))
		}}
		w := New(s, Options{})
		w.listen()
		w.requests.mu.Lock()
		w.requests.addMember("a")
		w.beat()
		w.requests.mu.Unlock()
		advance(20 * time.Second)
		w.Stop()
		for i := 1; i < len(s.beats); i++ {
			if d := s.beats[i].Sub(s.beats[i-1]); d > fencing.HeartbeatInterval+2*minBackoff {
				t.Errorf("heartbeat %d came after %s", i, d)
			}
		}
		if len(s.beats) < 15 {
			t.Errorf("%d heartbeats in 20 s", len(s.beats))
		}
	})
}

// A lease that nobody here knows of is taken back although the first heartbeat that would
// tell of it fails, and nobody waits.
func TestAFailedHeartbeatLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &beatStore{straysStore: straysStore{left: map[fencing.Name]fencing.Stamp{"a": "s"}}, answer: func(_ context.Context, n int) error {
			if n == 1 {
				return fencing.Unavailable(fencingtest.ErrCut)
			}
			return nil
		}}
		w := New(s, Options{})
		w.listen()
		s.listener.Granted(fencing.Grant{Name: "a", Stamp: "s", Holder: fencing.Holder{Provisional: true, Token: 1}}, 0, time.Time{})
		advance(10 * time.Second)
		if len(s.left) != 0 {
			t.Error("the provisional lease was never taken back")
		}
		n := len(s.beats)
		advance(10 * time.Second)
		if w.Stop(); len(s.beats) != n {
			t.Error("heartbeats go on")
		}
	})
}

// slowStore has all that was not taken back, and may take a while to.
type slowStore struct {
	fencing.Store
	forgets bool
	mu      sync.Mutex
	has     map[fencing.Name]bool
	answers chan struct{} // closed when it does
}

func (s *slowStore) Capabilities() fencing.Capabilities {
	return fencing.Capabilities{Queue: true, LosesGrants: s.forgets, Tells: s.forgets}
}

func (s *slowStore) Listen(fencing.Listener) {}

func (s *slowStore) Do(_ context.Context, op fencing.Op) (fencing.Outcome, error) {
	<-s.answers
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.has, op.LockName()) // it is taken back
	return fencing.Outcome{}, nil
}

// However many leases are given up at once, no more are remembered than may be, for what
// there is more heartbeats tell of; at a store that tells of nothing all are, and all are taken back.
func TestManyAreGivenUp(t *testing.T) {
	for _, forgets := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := &slowStore{forgets: forgets, has: map[fencing.Name]bool{}, answers: make(chan struct{})}
			w := New(s, Options{})
			var names []fencing.Name
			for i := range maxTakeBacks + 1000 {
				name := fencing.Name(fmt.Sprint(i))
				names, s.has[name] = append(names, name), true
			}
			r := fencing.TakeBackRequest{Lease: fencing.NewLeaseID(time.Now()), Stamp: fencing.NewStamp()}
			for _, r.Name = range names {
				w.TakeBackLater(r)
			}
			want, left := len(names), 0
			if forgets {
				want, left = maxTakeBacks, len(names)-maxTakeBacks
			}
			w.mu.Lock()
			if n := len(w.takeBacks); n != want {
				t.Errorf("a store that forgets %t: %d are remembered, want %d", forgets, n, want)
			}
			w.mu.Unlock()
			close(s.answers)
			advance(time.Second)
			if s.mu.Lock(); len(s.has) != left {
				t.Errorf("a store that forgets %t: %d are not taken back, want %d", forgets, len(s.has), left)
			}
			s.mu.Unlock()
			if w.Stop(); len(w.takeBacks) != 0 {
				t.Errorf("%d are remembered at the end", len(w.takeBacks))
			}
		})
	}
}
