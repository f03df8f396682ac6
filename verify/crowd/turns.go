// Package crowd has many clients want the same few locks, through real gateways: in
// turn, leaving while they wait, and closing before they are answered.
package crowd

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"fencepost/verify/check"
	"fencepost/verify/system"
)

// longestWait is more than a turn may take to come: 32 threads on 5 names with holds of
// 20 ms wait for 0.15 s.
const longestWait = 3 * time.Second

// Turns is threads that take locks in turn, wait for them, and work for a while.
type Turns struct {
	Threads int
	Names   int
	Turns   int           // of all threads together
	Hold    time.Duration // a turn lasts from 0 to Hold, uniformly; 0: none
}

// turnsTaken is what threads share.
type turnsTaken struct {
	Turns
	r       *check.Result
	left    atomic.Int64
	holders []atomic.Int32 // of each name, by their own account
	tokens  []atomic.Int64 // the last of each name

	mu    sync.Mutex
	waits []time.Duration
}

// Run has the threads take their turns, at the gateways in turn. Every wait must be
// answered with a grant, within longestWait; while a thread has a lock nobody else may
// have it; and the tokens of a name must grow.
func (o Turns) Run(ctx context.Context, s *system.System, r *check.Result) error {
	t := &turnsTaken{Turns: o, r: r, holders: make([]atomic.Int32, o.Names), tokens: make([]atomic.Int64, o.Names)}
	t.left.Store(int64(o.Turns))
	client := system.NewClient(o.Threads)
	defer client.Close()
	begun := time.Now()
	var threads sync.WaitGroup
	for i := range o.Threads {
		threads.Go(func() { t.thread(ctx, client, s.Gateways[i%len(s.Gateways)], i) })
	}
	threads.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	slices.Sort(t.waits)
	n := len(t.waits)
	r.Reach("turns", n, o.Turns)
	if n < o.Turns {
		r.Violation("%d turns were taken, of %d", n, o.Turns)
	}
	if n > 0 {
		r.Count(fmt.Sprintf("turns/s with holds of 0 to %s", o.Hold), int(float64(n)/time.Since(begun).Seconds()))
		r.Count(fmt.Sprintf("p99 of waits (%s)", o.Hold), t.waits[n*99/100])
		r.Count(fmt.Sprintf("longest wait (%s)", o.Hold), t.waits[n-1])
	}
	return nil
}

func (t *turnsTaken) thread(ctx context.Context, client *system.Client, g *system.Gateway, id int) {
	random := t.r.Random(id)
	for t.left.Add(-1) >= 0 && ctx.Err() == nil {
		i := random.IntN(t.Names)
		name := fmt.Sprintf("turns/%d", i)
		a, err := client.Acquire(ctx, g, name, "", `{"ttl_ms":20000,"wait_ms":15000}`)
		if ctx.Err() != nil {
			return
		}
		waited := a.Received.Sub(a.Sent)
		if err != nil || a.Status != http.StatusCreated && a.Status != http.StatusOK {
			t.r.Violation("a wait for %s was answered %s, %v", name, a, err)
			continue
		}
		if waited > longestWait {
			t.r.Violation("a wait for %s took %s", name, waited)
		}
		if n := t.holders[i].Add(1); n > 1 {
			t.r.Violation("P1: %d have %s", n, name)
		}
		if last := t.tokens[i].Swap(a.Lease.Token); last >= a.Lease.Token {
			t.r.Violation("P2: token %d of %s came after %d", a.Lease.Token, name, last)
		}
		if t.Hold > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(random.Int64N(int64(t.Hold)))):
			}
		}
		t.holders[i].Add(-1)
		if a, err := client.Release(ctx, g, name, a.Lease.ID); (err != nil || a.Status != http.StatusNoContent) && ctx.Err() == nil {
			t.r.Violation("a release of %s was answered %s, %v", name, a, err)
		}
		t.mu.Lock()
		t.waits = append(t.waits, waited)
		t.mu.Unlock()
	}
}
