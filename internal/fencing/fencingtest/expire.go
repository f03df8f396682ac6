package fencingtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

// due returns the names on which an expire has something to do that a caller
// could tell, in order.
func (d *comparison) due() []fencing.Name {
	state := d.model.memory().state
	names := slices.Sorted(maps.Keys(state.Records))
	return slices.DeleteFunc(names, func(name fencing.Name) bool {
		return idle(state.Records[name]) || state.Due(name) > d.now
	})
}

// idle reports whether nothing can come of a record but that it is forgotten.
func idle(r *fencing.Record) bool { return r.Holders.Len() == 0 && r.Queue.Empty() }

// plain reports whether nothing but the ends of leases can come of a record.
func plain(r *fencing.Record) bool {
	return r.Queue.Empty() && !r.Holders.Unconfirmed()
}

// thorough returns c, or an expire that goes on until nothing is due where the
// answer to c would not tell which names were attended to.
func (d *comparison) thorough(c *command) *command {
	state := d.model.memory().state
	if c.verb != "expire" || d.caps.StepLimit == 0 && !slices.ContainsFunc(d.due(), func(name fencing.Name) bool { return !plain(state.Records[name]) }) {
		return c
	}
	all := *c
	all.repeat = true
	return &all
}

// expireModel does in the model what the store says it has done, and checks
// that the store was right to leave the rest.
func (d *comparison) expireModel(c *command, r *result) (result, error) {
	want := result{now: d.now, err: r.err}
	switch {
	case r.err != nil && (!d.skewed(c.handle) || r.err.Code != fencing.CodeClockSkew):
		return want, fmt.Errorf("it can't fail so here: %w", r.err)
	case r.err != nil:
		d.swept[c.handle] = false // what it can't do, it leaves to the other
		return want, nil
	case r.expiry.Standby:
		if !d.swept[1-c.handle] || len(r.expiry.Ended) > 0 {
			return want, errors.New("standby, but the other handle did not do the work when it was last asked, or this one did some")
		}
		want.expiry = r.expiry
		return want, nil
	}
	d.swept[c.handle] = true
	names := d.due()
	if d.skewed(c.handle) {
		if len(names) > 0 {
			return want, errors.New("something is due; while the clocks differ it can't be judged, which is to be said")
		}
		r.err = &fencing.Error{Code: fencing.CodeClockSkew} // as well said as not, with nothing to do
		want.err = r.err
		return want, nil
	}
	if r.expiry.Next == 0 { // it has not come to all of them
		names = slices.DeleteFunc(names, func(name fencing.Name) bool {
			return !slices.ContainsFunc(r.expiry.Ended, func(e fencing.Ended) bool { return e.Name == name })
		})
	}
	d.attend(c.handle, names, &want, true)
	return want, d.checkNext(c.handle, r.expiry)
}

// heartbeatModel gives a heartbeat to the model.
func (d *comparison) heartbeatModel(c *command) (result, error) {
	want, err := ask(d.ctx, quiet{d.model.handles[c.handle]}, c, 0, d.now)
	if err == nil && want.err == nil {
		d.attend(c.handle, d.due(), &want, false)
	}
	return want, err
}

// quiet leaves what is due to its caller, which is to know what comes of it.
type quiet struct{ *Model }

func (q quiet) Heartbeat(ctx context.Context, _ []fencing.Name) error {
	return q.Model.Heartbeat(ctx, nil)
}

// attend does in the model what time has brought about on names: all of it, or what
// one step does.
func (d *comparison) attend(handle int, names []fencing.Name, want *result, all bool) {
	model := d.model.handles[handle]
	model.memory.mu.Lock()
	defer model.memory.mu.Unlock()
	for _, name := range names {
		for more := true; more; {
			out := model.attend(name)
			want.expiry.Ended = append(want.expiry.Ended, out.Ended...)
			want.undone = append(want.undone, undone(name, &out)...)
			more = all && out.More
		}
	}
}

// checkNext checks when the store wants to be called again by a handle, against what
// is left.
func (d *comparison) checkNext(handle int, expiry fencing.Expiry) error {
	left := d.model.memory().state
	own := d.model.handles[handle].gateway
	if _, known := left.Gateways.Seen[own]; !known || !d.caps.Gateways { // who asks is not dead, nor is a store's one gateway
		left = left.Clone()
		left.Gateways.Seen[own] = fencing.Instant(fencing.MaxToken)
	}
	var next time.Duration = 1<<63 - 1
	forgets := false // a record may be forgotten, which no caller can tell
	moved := false   // by signs of life, which a store may learn of when it looks
	for name, record := range left.Records {
		moved = moved || !plain(record)
		if !idle(record) {
			next = min(next, left.Due(name).Sub(d.now))
		} else if left.Due(name) <= d.now {
			forgets = true
		}
	}
	switch {
	case expiry.Next > 0 && next <= 0:
		return fmt.Errorf("something is left that was due %s ago, and the next call is only in %s", -next, expiry.Next)
	case expiry.Next > 0 && expiry.Next > next:
		return fmt.Errorf("the next call is in %s, and something is due in %s", expiry.Next, next)
	case expiry.Next == 0 && next > 0 && !forgets && !moved && len(expiry.Ended) == 0:
		return errors.New("the next call is to be at once, and nothing is due")
	}
	return nil
}
