package quorum

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// account is what a sink was told, and when.
type account struct {
	mu    sync.Mutex
	told  map[string]time.Time // kind and token
	gaps  []time.Time
	worst time.Duration // from what happened to that it was told
}

func (a *account) Event(e fencing.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.told[fmt.Sprint(e.Kind, e.Token)] = time.Now()
	a.worst = max(a.worst, time.Since(e.At.Time()))
}

func (a *account) Gap() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gaps = append(a.gaps, time.Now())
}

// missing counts what happened and was neither told nor is covered by a gap.
func (a *account) missing(happened map[string]time.Time) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for what, at := range happened {
		if _, told := a.told[what]; !told && !slices.ContainsFunc(a.gaps, at.Before) {
			n++
		}
	}
	return n
}

// Under load every event is told soon, or a gap is, whatever a minority does.
func TestEventsUnderLoad(t *testing.T) { testEventsUnderLoad(t, time.Second) }

func TestSystemEventsUnderLoad(t *testing.T) { testEventsUnderLoad(t, 4*time.Second) }

func testEventsUnderLoad(t *testing.T, long time.Duration) {
	for _, load := range []struct {
		what  string
		names int // 0: each turn has its own
		fault func(f *servers)
		mend  func(f *servers)
		bit   func(f *servers) bool
	}{
		{"many names, a node that stands still", 0, func(f *servers) { f.must(f.server[0].Pause()) }, func(f *servers) { f.must(f.server[0].Resume()) }, func(*servers) bool { return true }},
		{
			"busy names, a node that is slow, and one whose messages are lost", 3,
			func(f *servers) { f.proxies[0].Delay(60 * time.Millisecond); f.proxies[1].SwallowMessages(true) },
			func(f *servers) { f.proxies[0].Delay(0); f.proxies[1].SwallowMessages(false) },
			func(f *servers) bool { return f.proxies[0].Late() > 0 && f.proxies[1].Swallowed() > 0 },
		},
	} {
		t.Run(load.what, func(t *testing.T) {
			f := startServers(t, 3)
			s, other := f.gateway(250*time.Millisecond), f.gateway(250*time.Millisecond)
			await(t, "a new quorum", acquires(s))
			heard := &account{told: map[string]time.Time{}}
			defer other.Watch(heard)()
			await(t, "a first event", func(ctx context.Context) error {
				if err := acquires(s)(ctx); err != nil {
					return err
				}
				heard.mu.Lock()
				defer heard.mu.Unlock()
				if len(heard.told) == 0 {
					return errCut
				}
				return nil
			})
			load.fault(f)
			happened, mu := map[string]time.Time{}, sync.Mutex{}
			note := func(kind fencing.EventKind, token fencing.Token) {
				mu.Lock()
				defer mu.Unlock()
				happened[fmt.Sprint(kind, token)] = time.Now()
			}
			var turns atomic.Int64
			var running sync.WaitGroup
			end := time.Now().Add(long)
			for range 24 {
				running.Go(func() {
					tick := time.NewTicker(40 * time.Millisecond)
					defer tick.Stop()
					for time.Now().Before(end) {
						<-tick.C
						n := int(turns.Add(1))
						if load.names > 0 {
							n %= load.names
						}
						r := request(fencing.Name(fmt.Sprint("load/", n)))
						out, err := s.Do(bg, r)
						if err != nil {
							continue
						}
						note(fencing.EventGranted, out.Holder.Token)
						if _, err := s.Do(bg, fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease}); err == nil {
							note(fencing.EventReleased, out.Holder.Token)
						}
					}
				})
			}
			running.Wait()
			atEnd := heard.missing(happened)
			await(t, "all is told", func(context.Context) error {
				if n := heard.missing(happened); n > 0 {
					return fmt.Errorf("%d of %d events are missing", n, len(happened))
				}
				return nil
			})
			after := time.Since(end)
			load.mend(f)
			if !load.bit(f) {
				t.Error("no answer was late, or no message was lost: the fault did nothing")
			}
			heard.mu.Lock()
			defer heard.mu.Unlock()
			t.Logf("%d events, %d gaps, the latest was told after %s; %d were missing at the end, none %s later", len(happened), len(heard.gaps), heard.worst, atEnd, after)
			if limit := 3 * time.Second; heard.worst > limit || after > limit {
				t.Errorf("an event was told after %s, all were %s after the end", heard.worst, after)
			}
		})
	}
}
