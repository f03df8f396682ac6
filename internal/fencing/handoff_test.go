package fencing_test

import (
	"fmt"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// crowd is a name with a holder and many waiters, who take turns: the holder
// releases, and a newcomer queues.
type crowd struct {
	t     testing.TB
	state *fencing.State
	now   fencing.Instant
	asks  []fencing.AcquireRequest // that of the holder and those that wait, in order of arrival
	asked int
}

func newCrowd(t testing.TB, waiters int) *crowd {
	c := &crowd{t: t, state: fencing.NewState(), now: epoch}
	for range waiters + 1 {
		c.join()
	}
	if waiting := c.state.Records["a"].Queue.Len(); waiting != waiters {
		t.Fatalf("%d wait instead of %d", waiting, waiters)
	}
	return c
}

func (c *crowd) step(op fencing.Op) fencing.Outcome {
	c.now++
	out := fencing.Step(c.state, c.now, fencing.Guard{Gateway: "1"}, op)
	if out.Err != nil {
		c.t.Fatal(out.Err)
	}
	return out
}

func (c *crowd) join() {
	r := acquire(c.t, "a", c.asked)
	r.Wait, r.TTL = time.Minute, time.Hour
	c.asked++
	c.asks = append(c.asks, r)
	c.step(r)
}

func (c *crowd) turn() {
	out := c.step(fencing.ReleaseRequest{Name: "a", Lease: c.asks[0].Lease})
	c.asks = c.asks[1:]
	if len(out.Granted) != 1 || out.Granted[0].Holder.Lease != c.asks[0].Lease.Public() {
		c.t.Fatalf("the lock was handed over to %+v", out.Granted)
	}
	c.join()
}

// TestHandOffCostDoesNotGrowWithTheQueue compares ten waiters with a hundred
// thousand. A step that went through the queue would take a thousand times as long; that many are no more in the processor's cache, which costs
// some times as much on a busy machine.
func TestHandOffCostDoesNotGrowWithTheQueue(t *testing.T) {
	const turns, batches, most = 500, 20, 100
	few, many := newCrowd(t, 10), newCrowd(t, 100_000)
	if a, b := testing.AllocsPerRun(turns, few.turn), testing.AllocsPerRun(turns, many.turn); b > a+1 {
		t.Errorf("a turn makes %.0f allocations with ten waiters and %.0f with many", a, b)
	}
	// The least of many short measurements is what a busy machine does not disturb.
	least := map[*crowd]time.Duration{few: time.Hour, many: time.Hour}
	for range batches {
		for _, c := range []*crowd{few, many} {
			start := time.Now()
			for range turns {
				c.turn()
			}
			least[c] = min(least[c], time.Since(start)/turns)
		}
	}
	t.Logf("a turn takes %s with ten waiters and %s with many", least[few], least[many])
	if least[many] > most*least[few] {
		t.Errorf("a turn takes %s with ten waiters and %s with many", least[few], least[many])
	}
}

// TestManyDeadWaitersGoInSteps: who lives behind them is granted in the last.
func TestManyDeadWaitersGoInSteps(t *testing.T) {
	const dead = 20_000
	c := newCrowd(t, dead)
	live := acquire(t, "a", dead+1)
	live.Wait = time.Minute
	fencing.Step(c.state, c.now, fencing.Guard{Gateway: "2"}, live)
	for _, pause := range []time.Duration{2 * time.Second, time.Second} {
		c.now = c.now.Add(pause)
		fencing.Step(c.state, c.now, fencing.Guard{Gateway: "2"}, fencing.ExpireRequest{Name: "a"})
	}
	c.now = c.now.Add(time.Second)
	start := time.Now()
	out := fencing.Step(c.state, c.now, fencing.Guard{Gateway: "2"}, fencing.ReleaseRequest{Name: "a", Lease: c.asks[0].Lease})
	left, longest := len(out.Left), time.Since(start)
	for ; out.More; left += len(out.Left) {
		if len(out.Left) != fencing.StepLimit || len(out.Granted) != 0 {
			t.Fatalf("%d of %d left, granted is %+v", len(out.Left), left, out.Granted)
		}
		began := time.Now()
		out = fencing.Step(c.state, c.now, fencing.Guard{Gateway: "2"}, fencing.ExpireRequest{Name: "a"})
		longest = max(longest, time.Since(began))
	}
	if left != dead || len(out.Granted) != 1 || out.Granted[0].Holder.Lease != live.Lease.Public() {
		t.Fatalf("%d left, granted is %+v", left, out.Granted)
	}
	t.Logf("%s for %d dead waiters, the longest step %s", time.Since(start), dead, longest)
}

func BenchmarkHandOff(b *testing.B) {
	for _, waiters := range []int{10, 1_000, 10_000} {
		b.Run(fmt.Sprint(waiters), func(b *testing.B) {
			c := newCrowd(b, waiters)
			b.ReportAllocs()
			for b.Loop() {
				c.turn()
			}
		})
	}
}
