package watchdog

import (
	"testing"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

func (w *world) evict(gateway int, c *client) {
	w.t.Helper()
	if _, err := w.dogs[gateway].Do(w.t.Context(), fencing.EvictRequest{Name: c.Name, Waiter: c.Lease.Public(), BreakReason: "deploy"}); err != nil {
		w.t.Error(err)
	}
}

func (w *world) evicted(c *client) {
	w.t.Helper()
	if e := w.refused(c, fencing.CodeLeaseLost); e.Reason != fencing.ReasonEvicted || e.BreakReason != "deploy" {
		w.t.Errorf("%+v", e)
	}
}

// Who is evicted is answered at once, at whatever gateway; where the message is lost, after
// the next heartbeat. Others wait on.
func TestEvicted(t *testing.T) {
	for _, lost := range []bool{false, true} {
		for gateway := range 2 {
			inWorld(t, func(w *world) {
				holder := w.ask(0, request("a"))
				first, second, third := w.ask(gateway, request("a")), w.ask(gateway, request("a")), w.ask(1-gateway, request("a"))
				w.wires[gateway].Set(func(wire *fencingtest.Wire) { wire.Unasked = lost })
				w.evict(0, second)
				if lost {
					w.waits(second)
					advance(2 * fencing.HeartbeatInterval)
				}
				w.evicted(second)
				w.waits(third)
				w.release(0, holder)
				w.holds(first)
				w.release(gateway, first)
				w.holds(third)
				w.release(1-gateway, third)
				for _, seen := range w.seen {
					w.want("taken back", seen.of("takenBack"), 0)
				}
			})
		}
	}
}

// An eviction may overtake the answer that says that the request waits.
func TestEvictedBeforeItKnowsThatItWaits(t *testing.T) {
	inWorld(t, func(w *world) {
		holder := w.ask(0, request("a"))
		r := request("a")
		asked := 0
		w.wires[0].Set(func(wire *fencingtest.Wire) {
			wire.After = func(op string) error {
				if op == "acquire" {
					if asked++; asked == 1 {
						w.evict(0, &client{AcquireRequest: r})
					}
				}
				return nil
			}
		})
		c := w.ask(0, r)
		w.evicted(c)
		w.want("questions", asked, 2)
		w.release(0, holder)
		w.free("a")
	})
}

// Who is evicted while its lease is on its way keeps it: the store refuses that.
func TestEvictedTooLate(t *testing.T) {
	inWorld(t, func(w *world) {
		holder := w.ask(0, request("a"))
		c := w.ask(1, request("a"))
		w.release(0, holder)
		w.holds(c)
		_, err := w.dogs[0].Do(w.t.Context(), fencing.EvictRequest{Name: "a", Waiter: c.Lease.Public()})
		if e := fencing.AsError(err); e == nil || e.Code != fencing.CodeConflict || e.CurrentToken != c.out.Holder.Token {
			t.Errorf("%+v", e)
		}
		listener{w.dogs[1]}.Ask("a", c.Stamp) // late, or nobody's
		listener{w.dogs[1]}.Ask("a", "other")
		w.holds(c)
		w.release(1, c)
	})
}
