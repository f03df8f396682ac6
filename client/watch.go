package client

import "time"

const (
	// maxLook bounds how long after a suspension a lease's context lives on.
	maxLook = 100 * time.Millisecond

	// minLook is how close two looks at the clocks may be, unless a deadline is closer. Leases
	// that are due within it are looked at together.
	minLook = 5 * time.Millisecond
)

// watched is a lease, and when to look at it next.
type watched struct {
	*Lease
	next time.Time
}

// watch has the client's one watch look at a lease until it is over, and reports false once
// the client was closed.
func (c *Client) watch(l *Lease) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return false
	}
	c.arrived = append(c.arrived, watched{Lease: l})
	if !c.watching {
		c.watching = true
		c.running.Go(c.watchAll)
	}
	select {
	case c.arrivals <- struct{}{}:
	default:
	}
	return true
}

// watchAll cancels the contexts of leases when their time has come. Timers stand still while
// the machine is suspended, so it looks at the clocks now and then: half a margin, or maxLook,
// after the machine has woken up it knows. It ends with the last lease.
func (c *Client) watchAll() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var all []watched
	var due time.Time // the next look
	look := func(leases []watched, now instant) []watched {
		live := leases[:0]
		for _, w := range leases {
			if w.next.Sub(now.t) <= minLook {
				in, _ := w.look(now)
				if in <= 0 {
					continue
				}
				w.next = now.t.Add(lookAfter(in, w.early()))
			}
			live = append(live, w)
			if w.next.Before(due) {
				due = w.next
			}
		}
		clear(leases[len(live):])
		return live
	}
	for {
		select {
		case <-timer.C:
		case <-c.arrivals:
		case <-c.ctx.Done():
		}
		arrived := c.takeArrived(len(all))
		if len(all)+len(arrived) == 0 {
			return
		}
		if c.ctx.Err() != nil {
			for _, w := range append(all, arrived...) {
				w.finish(ErrClosed) // or it is over already
			}
			return
		}
		now := c.now()
		if due.Sub(now.t) <= 0 {
			due = now.t.Add(maxLook)
			all = look(all, now)
		}
		all = append(all, look(arrived, now)...)
		timer.Reset(due.Sub(now.t))
	}
}

// takeArrived returns the leases that are new to watchAll, which ends if it has none at all.
func (c *Client) takeArrived(others int) (arrived []watched) {
	c.mu.Lock()
	defer c.mu.Unlock()
	arrived, c.arrived = c.arrived, nil
	c.watching = others+len(arrived) > 0
	return arrived
}

// lookAfter returns when to look next at a lease whose context is to end after left.
func lookAfter(left, margin time.Duration) time.Duration {
	return min(left, max(min(margin/2, maxLook), minLook))
}
