package fencingtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// comparison gives the same commands to a store and to a model of it, and compares
// all that can be seen of the two after each of them.
type comparison struct {
	ctx   context.Context
	caps  Capabilities
	store Backend
	model *modelBackend

	now    fencing.Instant  // by the store's clock
	latest fencing.Instant  // that it has shown
	off    time.Duration    // how far that is ahead of the right time
	ahead  [2]time.Duration // how far the clocks of the handles' gateways are
	skew   [2]time.Duration // how far these are ahead of the store's
	swept  [2]bool          // handles whose Expire did the work: the other may be on standby
	number bool             // label every grant: #1, #2, …
	steps  int

	gateways  [2]fencing.Gateway // of the handles, as the store names them; learned
	recorders [2][2]*recorder    // of each side and handle

	leases map[fencing.LeasePublic]string // labels
	stamps map[fencing.Stamp]string       // labels
	labels map[string]*grant
	asked  [2]fencing.Token          // by the last claim
	grants map[fencing.Name][]*grant // in order; also lists the names in use

	told    map[fencing.EndedLease]fencing.Instant // until when holders were told that their leases live, by the right time
	shown   map[fencing.EndedLease]fencing.Holder  // leases as they were shown last
	holders map[fencing.EndedLease]fencing.Holder  // those that the store has shown and that have not ended
	renewed map[streamEpoch]fencing.Stamp          // the streams that have renewed
	kept    map[fencing.EndedLease]keptUntil       // tombstones, with OwnExpiry
	delayed map[fencing.Name]fencing.Instant       // until when nobody may be granted a name, by the leases that were told to have ended and the right time
}

// grant is one grant of a lease, with its token in the store and in the model.
type grant struct {
	label  string
	lease  fencing.LeasePublic
	tokens [2]fencing.Token
	over   bool // ended, taken back or flushed
}

// The sides of a comparison, as indexes of grant.tokens.
const (
	ofStore = 0
	ofModel = 1
)

func newComparison(t testing.TB, open Open, caps Capabilities) *comparison {
	d := &comparison{
		ctx: t.Context(), caps: caps, store: open(t), model: newModelBackend(caps), now: Epoch,
		leases: map[fencing.LeasePublic]string{}, stamps: map[fencing.Stamp]string{}, labels: map[string]*grant{}, grants: map[fencing.Name][]*grant{},
		shown: map[fencing.EndedLease]fencing.Holder{}, holders: map[fencing.EndedLease]fencing.Holder{}, renewed: map[streamEpoch]fencing.Stamp{},
		kept: map[fencing.EndedLease]keptUntil{}, told: map[fencing.EndedLease]fencing.Instant{}, delayed: map[fencing.Name]fencing.Instant{},
	}
	d.setTime(Epoch)
	d.listen()
	return d
}

func (d *comparison) setTime(now fencing.Instant) {
	d.now, d.latest = now, max(d.latest, now)
	d.store.SetTime(now)
	d.model.SetTime(now)
	d.expireTombstones()
}

// setSkew sets the clock of a handle's gateway, ahead of the right time by so much.
func (d *comparison) setSkew(handle int, ahead time.Duration) {
	skew := ahead - d.off
	d.ahead[handle], d.skew[handle] = ahead, skew
	d.store.SetSkew(handle, skew)
	d.model.SetSkew(handle, skew)
}

// setClock sets the store's clock, ahead of the right time by so much, and no other.
func (d *comparison) setClock(off time.Duration) {
	right := d.right()
	d.off = off
	d.setTime(right.Add(off))
	for handle := range d.ahead {
		d.setSkew(handle, d.ahead[handle])
	}
}

// right returns the right time.
func (d *comparison) right() fencing.Instant { return d.now.Add(-d.off) }

func (d *comparison) skewed(handle int) bool { return d.skew[handle].Abs() > MaxSkew }

// run gives a command to both sides. It returns the answer of the store, and an
// error that says what is wrong with it.
func (d *comparison) run(c *command) (result, error) {
	d.steps++
	switch c.verb {
	case "advance":
		d.setTime(d.now.Add(c.by))
		return result{}, d.checkViews(c)
	case "skew":
		d.setSkew(c.handle, c.by)
		return result{}, nil
	case "clock":
		d.setClock(c.by)
		return result{}, d.checkViews(c)
	case "heed":
		d.store.(Arriver).Heed(c.handle)
		d.model.Heed(c.handle)
		return result{}, nil
	case "flush":
		d.flush()
		return result{}, d.checkViews(c)
	}
	if c.lease != "" {
		d.leases[leaseOf(c.lease).Public()] = strings.TrimRight(c.lease, "'")
	}
	if c.verb == "acquire" || c.stamp != "" {
		d.stamps[stampOf(c.stampLabel())] = c.stampLabel()
	}
	if c.name != "" && d.grants[c.name] == nil {
		d.grants[c.name] = []*grant{}
	}
	r, want, err := d.ask(d.thorough(c))
	d.keepTombstones()
	if err != nil {
		return r, err
	}
	if err := d.learn(c, &r, &want); err != nil {
		return r, err
	}
	if c.want != nil {
		if err := c.want.check(c, &r, side{d, ofStore}); err != nil {
			return r, err
		}
	}
	if err := d.compare(c, &r, &want); err != nil {
		return r, fmt.Errorf("unlike Step, which says %q: %w", describe(c, &want, side{d, ofModel}), err)
	}
	if err := errors.Join(d.account(c, &want), d.oneStream(c, &want), d.leftForGood(c, &want)); err != nil {
		return r, err
	}
	return r, d.checkViews(c)
}

// ask gives the command to both sides.
func (d *comparison) ask(c *command) (r, want result, err error) {
	switch c.verb {
	case "heard":
		r, want = d.hear(c.handle)
		return r, want, nil
	case "heartbeat":
		all := *c
		all.names = slices.Sorted(maps.Keys(d.grants))
		c = &all
	case "arrive":
		return d.arrive(c)
	}
	tokens := d.tokensOf(c)
	d.asked = tokens
	if r, err = ask(d.ctx, d.store.Store(c.handle), c, tokens[ofStore], d.now); err != nil {
		return r, want, err
	}
	if want, err = d.askModel(c, &r, tokens[ofModel]); err != nil {
		return r, want, err
	}
	if c.verb == "heartbeat" && d.caps.tells() {
		r.entries, want.entries = d.recorders[ofStore][c.handle].had(), d.recorders[ofModel][c.handle].had()
	}
	return r, want, nil
}

// arrive tells both sides who serves.
func (d *comparison) arrive(c *command) (r, want result, err error) {
	a := c.arrival
	if c.until > 0 {
		a.Until = d.now.Add(c.until)
	}
	r, want = result{now: d.now}, result{now: d.now}
	if r.quarantine, err = d.store.(Arriver).Arrive(c.handle, c.name, a); err != nil {
		return r, want, err
	}
	want.quarantine, err = d.model.Arrive(c.handle, c.name, a)
	return r, want, err
}

// tokensOf returns the token that a break or a claim names, on each side.
func (d *comparison) tokensOf(c *command) [2]fencing.Token {
	g := d.toBreak(c)
	if c.token == newToken {
		g = &grant{tokens: [2]fencing.Token{1, 1}}
		for _, known := range d.grants[c.name] {
			for of := range g.tokens {
				g.tokens[of] = max(g.tokens[of], known.tokens[of]+1)
			}
		}
	}
	if c.token == nowToken {
		now := fencing.Token(d.now)
		for d.onlyOneSideHas(c.name, now) {
			now++
		}
		g = &grant{tokens: [2]fencing.Token{now, now}}
	}
	above := fencing.Token(c.above)
	return [2]fencing.Token{g.tokens[ofStore] + above, g.tokens[ofModel] + above}
}

// onlyOneSideHas reports whether a token of a name was issued by the store or by the model, and not by
// the other: an Expire of several names issues tokens of the clock in an order that is the store's.
func (d *comparison) onlyOneSideHas(name fencing.Name, token fencing.Token) bool {
	return (d.grantOf(name, ofStore, token) == nil) != (d.grantOf(name, ofModel, token) == nil)
}

// toBreak returns the grant whose token a break names. One that was never issued
// has the token 1: tokens start at the clock.
func (d *comparison) toBreak(c *command) *grant {
	if g := d.labels[c.token]; g != nil {
		return g
	}
	if grants := d.grants[c.name]; c.back > 0 && c.back <= len(grants) {
		return grants[len(grants)-c.back]
	}
	return &grant{tokens: [2]fencing.Token{1, 1}}
}

// askModel gives the command to the model. Where a store has a choice, the model
// follows the answer r of the store, or the error says why the choice is wrong.
func (d *comparison) askModel(c *command, r *result, token fencing.Token) (result, error) {
	handle := d.model.handles[c.handle]
	if c.verb == "expire" {
		return d.expireModel(c, r)
	}
	if c.verb == "heartbeat" {
		return d.heartbeatModel(c)
	}
	if c.verb == "list" {
		all := *c
		all.list.Limit, all.walk = fencing.MaxListLimit, true
		return ask(d.ctx, handle, &all, 0, d.now)
	}
	if c.verb == "break" && d.skewed(c.handle) && (r.code() == fencing.CodeOK || r.code() == fencing.CodeClockSkew) {
		// While the clocks differ a retried break succeeds until the idle record is collected,
		// and when that is only the store knows.
		record := d.model.memory().state.Records[c.name]
		if record == nil || idle(record) && d.model.memory().state.Due(c.name) <= d.now {
			return result{now: d.now, out: fencing.Outcome{Now: d.now}, err: r.err}, nil
		}
	}
	return ask(d.ctx, handle, c, token, d.now)
}

func (d *comparison) flush() {
	d.store.(Flusher).Flush()
	d.model.Flush()
	clear(d.kept)
	clear(d.told)
	clear(d.shown)
	clear(d.holders)
	clear(d.renewed)
	clear(d.delayed)
	for _, grants := range d.grants {
		for _, g := range grants {
			g.over = true
		}
	}
}
