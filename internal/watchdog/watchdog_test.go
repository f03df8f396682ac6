package watchdog

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"fencepost/internal/fencing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// store is a fencing.Store of which the tests see every call that matters here.
type store struct {
	fencing.Store
	start time.Time

	mu        sync.Mutex
	expire    func(call int) (fencing.Expiry, error)
	expiresAt []time.Duration // when Expire was called, since start
	takeBack  func(call int) error
	takenAt   []time.Duration
}

func (s *store) Capabilities() fencing.Capabilities { return fencing.Capabilities{Queue: true} }

func (s *store) Do(_ context.Context, op fencing.Op) (fencing.Outcome, error) {
	now := fencing.InstantOf(time.Now())
	switch r := op.(type) {
	case fencing.AcquireRequest:
		return fencing.Outcome{Now: now, Holder: fencing.Holder{ExpiresAt: now.Add(r.TTL)}}, nil
	case fencing.RenewRequest:
		return fencing.Outcome{Now: now, Holder: fencing.Holder{ExpiresAt: now.Add(r.TTL)}}, nil
	case fencing.TakeBackRequest:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.takenAt = append(s.takenAt, time.Since(s.start))
		return fencing.Outcome{}, s.takeBack(len(s.takenAt))
	}
	return s.Store.Do(context.Background(), op)
}

func (*store) Listen(fencing.Listener) {}

func (*store) Examine(context.Context) ([]fencing.Finding, error) { return nil, nil }

func (s *store) Expire(context.Context, int) (fencing.Expiry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expiresAt = append(s.expiresAt, time.Since(s.start))
	return s.expire(len(s.expiresAt))
}

func (s *store) calls(of *[]time.Duration) []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Duration(nil), *of...)
}

func always(next time.Duration) func(int) (fencing.Expiry, error) {
	return func(int) (fencing.Expiry, error) { return fencing.Expiry{Next: next}, nil }
}

func TestReapsWhenTheStoreSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{start: time.Now(), expire: always(10 * time.Second)}
		w := New(s, Options{})
		w.Start()
		advance(25 * time.Second)
		w.Stop()
		want := []time.Duration{0, 10*time.Second + reapSlack, 2 * (10*time.Second + reapSlack)}
		if got := s.calls(&s.expiresAt); !equal(got, want) {
			t.Errorf("Expire was called at %v, want %v", got, want)
		}
	})
}

func TestWakesForANearerExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{start: time.Now(), expire: always(time.Minute)}
		w := New(s, Options{})
		w.Start()
		synctest.Wait()
		w.Do(t.Context(), fencing.AcquireRequest{TTL: 30 * time.Second})
		w.Do(t.Context(), fencing.AcquireRequest{TTL: 5 * time.Second})
		w.Do(t.Context(), fencing.RenewRequest{TTL: 3 * time.Second})
		w.Do(t.Context(), fencing.RenewRequest{TTL: 20 * time.Second})
		advance(4 * time.Second)
		w.Stop()
		want := []time.Duration{0, 3*time.Second + reapSlack}
		if got := s.calls(&s.expiresAt); !equal(got, want) {
			t.Errorf("Expire was called at %v, want %v", got, want)
		}
	})
}

// A lease granted while Expire is under way is not in its answer.
func TestAGrantDuringExpireIsNotMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{start: time.Now()}
		w := New(s, Options{})
		s.expire = func(call int) (fencing.Expiry, error) {
			if call == 1 {
				w.Do(t.Context(), fencing.AcquireRequest{TTL: time.Second})
			}
			return fencing.Expiry{Next: time.Minute}, nil
		}
		w.Start()
		advance(2 * time.Second)
		w.Stop()
		want := []time.Duration{0, time.Second + reapSlack}
		if got := s.calls(&s.expiresAt); !equal(got, want) {
			t.Errorf("Expire was called at %v, want %v", got, want)
		}
	})
}

func TestStandbyDoesNotListen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{start: time.Now(), expire: func(int) (fencing.Expiry, error) {
			return fencing.Expiry{Next: time.Second, Standby: true}, nil
		}}
		w := New(s, Options{})
		w.Start()
		synctest.Wait()
		w.Do(t.Context(), fencing.AcquireRequest{TTL: 100 * time.Millisecond})
		advance(1500 * time.Millisecond)
		w.Stop()
		want := []time.Duration{0, time.Second + reapSlack}
		if got := s.calls(&s.expiresAt); !equal(got, want) {
			t.Errorf("Expire was called at %v, want %v", got, want)
		}
	})
}

func TestFullReapGoesOnAtOnceAndErrorsBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{start: time.Now(), expire: func(call int) (fencing.Expiry, error) {
			switch call {
			case 1:
				return fencing.Expiry{Ended: make([]fencing.Ended, reapLimit)}, nil // Next: at once
			case 2, 3:
				return fencing.Expiry{}, errors.New("out of reach")
			}
			return fencing.Expiry{Next: time.Minute}, nil
		}}
		w := New(s, Options{})
		w.Start()
		advance(10 * time.Second)
		w.Stop()
		second := minBackoff + reapSlack
		want := []time.Duration{0, 0, second, second + 2*minBackoff + reapSlack}
		if got := s.calls(&s.expiresAt); !equal(got, want) {
			t.Errorf("Expire was called at %v, want %v", got, want)
		}
	})
}

func TestTakeBackIsRepeatedAfterTheSkewGuard(t *testing.T) {
	for skew, want := range map[time.Duration][]time.Duration{
		time.Second: {0, takeBackPause, takeBackPause + 2*time.Second},
		0:           {0, takeBackPause}, // no late commands
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &store{start: time.Now(), takeBack: func(call int) error {
				if call == 1 {
					return errors.New("out of reach")
				}
				return nil
			}}
			w := New(s, Options{MaxSkew: skew})
			w.TakeBackLater(fencing.TakeBackRequest{Name: "a", Stamp: fencing.NewStamp()})
			advance(time.Minute)
			if got := s.calls(&s.takenAt); !equal(got, want) {
				t.Errorf("skew %s: TakeBack was called at %v, want %v", skew, got, want)
			}
			w.Stop()
		})
	}
}

// Neither the wait for the second attempt nor the one for a retry keeps another
// take-back from its first.
func TestWaitingTakeBacksDoNotStandInTheWay(t *testing.T) {
	for name, err := range map[string]error{"second attempt": nil, "retry": errors.New("out of reach")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const n = 3 * maxTakeBackCalls
				s := &store{start: time.Now(), takeBack: func(call int) error {
					if call <= n {
						return err
					}
					return nil
				}}
				w := New(s, Options{MaxSkew: time.Minute})
				for range n {
					w.TakeBackLater(fencing.TakeBackRequest{Name: "a", Stamp: fencing.NewStamp()})
				}
				advance(takeBackPause - 1)
				if got := len(s.calls(&s.takenAt)); got != n {
					t.Errorf("%d first attempts were made soon, want %d", got, n)
				}
				advance(3 * time.Minute)
				want := 2 * n
				if err != nil {
					want = 3 * n
				}
				if got := len(s.calls(&s.takenAt)); got != want {
					t.Errorf("%d attempts were made in all, want %d", got, want)
				}
				w.Stop()
			})
		})
	}
}

// A retry does not wait behind a second attempt that is due later.
func TestARetryOvertakesASecondAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{start: time.Now(), takeBack: func(call int) error {
			if call == 2 {
				return errors.New("out of reach")
			}
			return nil
		}}
		w := New(s, Options{MaxSkew: time.Minute})
		w.TakeBackLater(fencing.TakeBackRequest{Name: "a", Stamp: fencing.NewStamp()})
		advance(time.Second)
		w.TakeBackLater(fencing.TakeBackRequest{Name: "b", Stamp: fencing.NewStamp()})
		advance(time.Second)
		want := []time.Duration{0, time.Second, time.Second + takeBackPause}
		if got := s.calls(&s.takenAt); !equal(got, want) {
			t.Errorf("TakeBack was called at %v, want %v", got, want)
		}
		w.Stop()
	})
}

// An outage is logged when it begins and when it ends, however long it lasts.
func TestOutagesAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		s := &store{start: time.Now(), expire: func(call int) (fencing.Expiry, error) {
			if call%20 != 0 {
				return fencing.Expiry{}, errors.New("out of reach")
			}
			return fencing.Expiry{Next: time.Minute}, nil
		}}
		w := New(s, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		w.Start()
		for len(s.calls(&s.expiresAt)) < 45 {
			advance(time.Second)
		}
		w.Stop()
		if began, ended := strings.Count(log.String(), "level=WARN"), strings.Count(log.String(), "level=INFO"); began != 3 || ended != 2 {
			t.Errorf("%d beginnings and %d ends were logged of 3 and 2:\n%s", began, ended, &log)
		}
	})
}

// What does not fit on the list has had its first attempt and is logged; the
// rest has its last one at Stop.
func TestTheListIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const more = 10
		var log strings.Builder
		s := &store{start: time.Now(), takeBack: func(int) error { return nil }}
		w := New(forgetting{s}, Options{MaxSkew: time.Minute, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		for range maxTakeBacks + more {
			w.TakeBackLater(fencing.TakeBackRequest{Name: "a", Stamp: fencing.NewStamp()})
			synctest.Wait()
		}
		if got := len(s.calls(&s.takenAt)); got != maxTakeBacks+more {
			t.Errorf("%d first attempts, want %d", got, maxTakeBacks+more)
		}
		w.Stop()
		if got := len(s.calls(&s.takenAt)); got != 2*maxTakeBacks+more {
			t.Errorf("%d attempts, want %d", got, 2*maxTakeBacks+more)
		}
		if got := strings.Count(log.String(), "it expires with its TTL"); got != more {
			t.Errorf("%d were logged, want %d", got, more)
		}
	})
}

// forgetting is a store that may forget, and whose heartbeats tell.
type forgetting struct{ *store }

func (forgetting) Capabilities() fencing.Capabilities {
	return fencing.Capabilities{Queue: true, LosesMessages: true, LosesGrants: true, Tells: true}
}

// A store that answers nothing does not keep Stop for minutes.
func TestStopHasAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &hangingStore{}
		w := New(s, Options{MaxSkew: time.Second})
		for range 20 * maxTakeBackCalls {
			w.TakeBackLater(fencing.TakeBackRequest{Name: "a", Stamp: fencing.NewStamp()})
		}
		began := time.Now()
		w.Stop()
		if took := time.Since(began); took > stopPatience+2*callTimeout {
			t.Errorf("Stop took %s", took)
		}
	})
}

// hangingStore answers nothing.
type hangingStore struct{ fencing.Store }

func (*hangingStore) Capabilities() fencing.Capabilities { return fencing.Capabilities{Queue: true} }

func (*hangingStore) Do(ctx context.Context, _ fencing.Op) (fencing.Outcome, error) {
	<-ctx.Done()
	return fencing.Outcome{}, ctx.Err()
}

func TestStopTriesOnceMoreAndEndsPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{start: time.Now(), takeBack: func(call int) error { return errors.New("out of reach") }}
		w := New(s, Options{MaxSkew: time.Hour})
		w.TakeBackLater(fencing.TakeBackRequest{Name: "a", Stamp: fencing.NewStamp()})
		synctest.Wait()
		before := len(s.calls(&s.takenAt))
		w.Stop()
		if after := len(s.calls(&s.takenAt)); after != before+1 {
			t.Errorf("%d calls after Stop, want one more than the %d before", after, before)
		}
		w.TakeBackLater(fencing.TakeBackRequest{Name: "b", Stamp: fencing.NewStamp()}) // refused, logged
		if after := len(s.calls(&s.takenAt)); after != before+1 {
			t.Errorf("a take-back after Stop was started")
		}
	})
}

func TestStopBeforeStartAndTwice(t *testing.T) {
	s := &store{expire: func(int) (fencing.Expiry, error) { t.Error("Expire was called"); return fencing.Expiry{}, nil }}
	w := New(s, Options{})
	w.Stop()
	w.Start()
	w.Stop()
}

func equal(a, b []time.Duration) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// advance moves the clock of the synctest bubble.
func advance(d time.Duration) { <-time.After(d) }

// TestCloseStops: the store is not closed under what the watchdog still does.
func TestCloseStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &closing{store: store{start: time.Now()}}
		s.expire = func(int) (fencing.Expiry, error) {
			if s.closed.Load() {
				t.Error("a closed store is asked")
			}
			return fencing.Expiry{Next: time.Second}, nil
		}
		w := New(s, Options{})
		w.Start()
		advance(1500 * time.Millisecond)
		if err := w.Close(); err != nil || !s.closed.Load() {
			t.Errorf("%v, closed: %t", err, s.closed.Load())
		}
		advance(5 * time.Second)
		w.Stop() // what is left of it, if Close did not
	})
}

type closing struct {
	store
	closed atomic.Bool
}

func (s *closing) Close() error {
	s.closed.Store(true)
	return nil
}
