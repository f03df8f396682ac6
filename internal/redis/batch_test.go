package redis

import "testing"

// Behind a Redis that hangs only so much piles up that nobody waits for any more; what somebody
// waits for is sent, and both in the order in which they were asked for.
func TestWhatOutlivesItsCallerIsBounded(t *testing.T) {
	b := &batcher{sender: &sender{}}
	asked := 0
	ask := func(v verb, awaited bool) {
		asked++
		c := &command{operation: operation{verb: v, hold: asked}}
		c.awaited.Store(awaited)
		b.queue = append(b.queue, c)
	}
	const rounds = 40
	sent, last := 0, 0
	next := func() (more bool) {
		batch := b.next(nil)
		for _, c := range batch {
			if c.awaited.Load() {
				sent++
			} else if !c.outlives(false) {
				t.Fatalf("%s is sent, and its caller has left", c.verb)
			}
			if c.hold <= last {
				t.Fatalf("%d is sent behind %d", c.hold, last)
			}
			last = c.hold
		}
		return len(batch) > 0
	}
	for range rounds {
		for range maxBatch {
			ask(releaseVerb, false)
			ask(acquireVerb, false)
			ask(leaveVerb, false)
		}
		ask(acquireVerb, true)
		next()
		orphans := 0
		for _, c := range b.queue {
			if !c.awaited.Load() {
				orphans++
			}
		}
		if orphans > maxOrphans {
			t.Fatalf("%d commands wait that nobody waits for, want %d at most", orphans, maxOrphans)
		}
	}
	for next() {
	}
	if sent != rounds {
		t.Errorf("%d commands were sent that somebody waits for, want %d", sent, rounds)
	}
}
