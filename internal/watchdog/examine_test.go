package watchdog

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
)

// looked is a store whose examination has what the test says.
type looked struct {
	store
	mu       sync.Mutex
	findings []fencing.Finding
	err      error
	at       []time.Duration
	began    time.Time
}

func (s *looked) Examine(context.Context) ([]fencing.Finding, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = append(s.at, time.Since(s.began))
	return s.findings, s.err
}

func (s *looked) find(err error, findings ...fencing.Finding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.findings, s.err = findings, err
}

// looks returns when the store was examined since the last call.
func (s *looked) looks() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.at
	s.at, s.began = nil, time.Now()
	return at
}

func inLooked(t *testing.T, strict bool, test func(t *testing.T, s *looked, w *Watchdog, log func() string)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &looked{began: time.Now()}
		s.store.expire = func(int) (fencing.Expiry, error) { return fencing.Expiry{Next: time.Hour}, nil }
		var text strings.Builder
		w := New(s, Options{Strict: strict, Logger: slog.New(slog.NewTextHandler(&text, nil))})
		test(t, s, w, func() string {
			synctest.Wait()
			said := text.String()
			text.Reset()
			return said
		})
		w.Stop()
	})
}

var (
	fine    = fencing.Finding{Check: "role", OK: true, Detail: "this is a master"}
	danger  = fencing.Finding{Check: "eviction", Promise: "P1", Detail: "leases are dropped", Remedy: "maxmemory-policy noeviction"}
	trouble = fencing.Finding{Node: "b:6379", Check: "replicas", Detail: "no replica", Remedy: "add one"}
)

func TestExamineEveryMinuteAndSoonerWhileSomethingIsAtFault(t *testing.T) {
	inLooked(t, false, func(t *testing.T, s *looked, w *Watchdog, _ func() string) {
		if found, at := w.Findings(); found != nil || !at.IsZero() {
			t.Errorf("before the start: %v at %v", found, at)
		}
		s.find(nil, fine)
		w.Start()
		synctest.Wait()
		if found, at := w.Findings(); len(found) != 1 || found[0] != fine || !at.Equal(time.Now()) {
			t.Errorf("%v at %v", found, at)
		}
		wantLooks(t, s, 0)
		advance(61 * time.Second)
		wantLooks(t, s, time.Minute)

		s.find(nil, fine, trouble)
		advance(70 * time.Second) // found after 59 s
		wantLooks(t, s, 59*time.Second, 64*time.Second, 69*time.Second)

		// What can't be read is taken to be as it was.
		s.find(errors.New("out of reach"))
		advance(6 * time.Second)
		wantLooks(t, s, 4*time.Second, 5*time.Second, 6*time.Second)
		if found, _ := w.Findings(); len(found) != 2 {
			t.Errorf("%v", found)
		}
	})
}

// What is known to be old is looked at at once, also if that is said before the start or twice.
func TestReexamine(t *testing.T) {
	inLooked(t, false, func(t *testing.T, s *looked, w *Watchdog, _ func() string) {
		s.find(nil, fine)
		w.Start()
		wantLooks(t, s, 0)
		advance(10 * time.Second)
		s.find(nil, fine, trouble)
		w.Reexamine()
		wantLooks(t, s, 10*time.Second)
		if found, _ := w.Findings(); len(found) != 2 {
			t.Errorf("%v", found)
		}
		advance(6 * time.Second)
		wantLooks(t, s, 5*time.Second)
	})
}

func wantLooks(t *testing.T, s *looked, want ...time.Duration) {
	t.Helper()
	synctest.Wait()
	got := s.looks()
	if len(got) != len(want) {
		t.Fatalf("examined at %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("examined at %v, want %v", got, want)
		}
	}
}

func TestFindingsAreLoggedOnce(t *testing.T) {
	inLooked(t, false, func(t *testing.T, s *looked, w *Watchdog, log func() string) {
		s.find(nil, fine, danger, trouble)
		w.Start()
		said := log()
		for _, want := range []string{`level=WARN msg="the store endangers a promise" check=eviction promise=P1 detail="leases are dropped"`, `level=WARN msg="the store needs attention" check=replicas node=b:6379`} {
			if strings.Count(said, want) != 1 {
				t.Errorf("%q is not in the log:\n%s", want, said)
			}
		}
		again := danger
		again.Detail = "leases are dropped; 5 keys were"
		s.find(nil, fine, again, trouble)
		advance(reexaminePause)
		if said := log(); said != "" {
			t.Errorf("logged again:\n%s", said)
		}
		worse := danger
		worse.Remedy = "something else"
		s.find(nil, fine, worse)
		advance(reexaminePause)
		said = log()
		if strings.Count(said, "level=WARN") != 1 || strings.Count(said, "level=INFO") != 1 || !strings.Contains(said, `check=replicas node=b:6379`) {
			t.Errorf("a finding has changed, another is gone:\n%s", said)
		}
	})
}

func TestStrictRefuses(t *testing.T) {
	for _, strict := range []bool{false, true} {
		inLooked(t, strict, func(t *testing.T, s *looked, w *Watchdog, _ func() string) {
			refused := func(when string, want bool, words string) {
				t.Helper()
				synctest.Wait()
				err := w.Refusal()
				if !want || !strict {
					if err != nil {
						t.Errorf("%s: refused although strict is %v: %v", when, strict, err)
					}
					return
				}
				e := fencing.AsError(err)
				if e == nil || e.Code != fencing.CodeUnavailable || !strings.Contains(e.Detail, words) {
					t.Errorf("%s: %v", when, err)
				}
			}
			refused("before the start", true, "could not be examined")
			s.find(errors.New("out of reach"))
			w.Start()
			refused("out of reach", true, "could not be examined")
			s.find(nil, fine, trouble)
			advance(unexaminedPause)
			refused("trouble that endangers nothing", false, "")
			s.find(nil, fine, trouble, danger)
			advance(reexaminePause)
			refused("danger", true, danger.Detail)
			s.find(errors.New("out of reach"))
			advance(reexaminePause)
			refused("out of reach again", true, danger.Detail)
			s.find(nil, fine)
			advance(unexaminedPause)
			refused("repaired", false, "")
		})
	}
}
