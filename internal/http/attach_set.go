package http

import (
	"slices"

	"fencepost/internal/fencing"
	"fencepost/internal/watchdog"
)

// serveAcquireSet answers a POST for several names, with a stream if so asked.
func serveAcquireSet(c *call) {
	req, err := decodeAcquireSet(c)
	switch {
	case err != nil:
		c.writeError(err)
	case req.attached:
		attachLocks(c, req)
	default:
		respond(c, req, acquireLocks)
	}
}

// attachLocks answers a POST for several names with a stream, unless it has to be refused at
// once.
func attachLocks(c *call, req *acquire) {
	leases, err := c.openLeases(req, req.names...)
	if err != nil {
		c.writeError(err)
		return
	}
	defer leases.Close()
	a, done := c.attach(req, leases)
	defer done()
	waits := make(chan waitsFor, len(req.names))
	var outs []fencing.Outcome
	if err = a.await(waits, func() (bool, error) {
		got, err := c.s.dog.AcquireAll(a.ctx, req.names, req.AcquireRequest, leases, func(name fencing.Name, at fencing.Waiter, lock *fencing.Lock) {
			waits <- waitsFor{name, at, lock}
		})
		if err != nil {
			return false, c.ended(a.ctx, req, err)
		}
		outs = got
		return anyFresh(got), nil
	}); err != nil {
		a.refuse(err)
		return
	}
	granted, err := c.grantedSet(req, outs)
	if err = a.stillNewest(err); err != nil {
		a.refuse(err)
		return
	}
	held := make([]watchdog.Attached, len(outs))
	for i := range outs {
		held[i] = watchdog.Attached{Name: req.names[i], Outcome: outs[i]}
	}
	a.keep(held, granted.elapsed, granted.appendGrant)
}

// released tells which leases of a set were released one by one: all but those that are held
// now.
func (a *attachment) released(held []watchdog.Attached) error {
	before := a.held
	a.held = held
	if len(held) == len(before) {
		return nil
	}
	for i := range before {
		l := &before[i]
		if slices.ContainsFunc(held, func(other watchdog.Attached) bool { return other.Name == l.Name }) {
			continue
		}
		if err := a.event("released", "", func(b []byte) []byte {
			b = append(b, `{"name":`...)
			b = appendString(b, string(l.Name))
			b = appendStringMember(b, "lease", string(l.Outcome.Holder.Lease))
			b = appendIntMember(b, "fencing_token", int64(l.Outcome.Holder.Token))
			b = appendIntMember(b, "elapsed_ms", a.elapsed().Milliseconds())
			return append(b, '}')
		}); err != nil {
			return err
		}
	}
	return nil
}

// lostOne ends the stream of a set that has lost a lease, or has none left. The others are
// released when the client, which was told, leaves: until then it may believe in them. They
// end with their TTL at the latest.
func (a *attachment) lostOne(update *watchdog.Update) {
	switch problemOf(update.Err).Code {
	case fencing.CodeDraining, fencing.CodeReplaced:
		a.problem("lost", "", update.Err)
		return
	}
	if err := a.released(update.Leases); err != nil {
		a.cancel(err)
	}
	if len(update.Leases) == 0 { // the last one was released
		return
	}
	a.problem("lost", update.Name, update.Err)
	a.held = slices.DeleteFunc(update.Leases, func(l watchdog.Attached) bool { return l.Name == update.Name })
	a.releaseAfter()
}
