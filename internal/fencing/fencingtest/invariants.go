package fencingtest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

// learn remembers grants, with their tokens on both sides.
func (d *comparison) learn(c *command, r, want *result) error {
	for _, e := range want.ended() {
		if e.Reason != fencing.ReasonReleased && !e.Holder.Provisional {
			d.delayed[e.Name] = max(d.delayed[e.Name], e.At.Add(e.Holder.LockDelay-d.off))
		}
	}
	for i := range want.out.Granted {
		w := &want.out.Granted[i]
		for j := range r.out.Granted {
			if g := &r.out.Granted[j]; g.Name == w.Name && g.Holder.Lease == w.Holder.Lease {
				if err := d.learnGrant(w.Name, &g.Holder, &w.Holder); err != nil {
					return err
				}
			}
		}
	}
	if c.verb == "claim" && r.err == nil && want.err == nil {
		return d.learnClaim(c, &r.out.Holder, &want.out.Holder)
	}
	if c.verb != "acquire" || r.err != nil || want.err != nil || r.out.Holder.Token == 0 || want.out.Holder.Token == 0 {
		return nil
	}
	return d.learnGrant(c.name, &r.out.Holder, &want.out.Holder)
}

func (d *comparison) learnGrant(name fencing.Name, got, want *fencing.Holder) error {
	tokens := [2]fencing.Token{got.Token, want.Token}
	var last grant
	for _, g := range d.grants[name] { // the highest ones: a claim may be lower than what was issued
		last.tokens = [2]fencing.Token{max(last.tokens[ofStore], g.tokens[ofStore]), max(last.tokens[ofModel], g.tokens[ofModel])}
	}
	if g := d.grantOf(name, ofModel, want.Token); g != nil && want.Claimed {
		g.lease, g.over = want.Lease, false // known, or one that somebody else has given up
		return nil
	}
	if tokens[ofModel] <= last.tokens[ofModel] && !want.Claimed {
		return nil // known
	}
	d.enter(name, &grant{lease: want.Lease, tokens: tokens})
	switch token := tokens[ofStore]; {
	case d.right() < d.delayed[name]:
		return fmt.Errorf("it is granted %s before the lock delay is over", d.delayed[name].Sub(d.right()))
	case got.Claimed && token >= fencing.Token(d.now.Add(-MaxSkew)): // proposed; Step says whether it may be below the last one
	case token <= last.tokens[ofStore]:
		return fmt.Errorf("P2: the token %d is not above %d, the last one of the name", token, last.tokens[ofStore])
	case token < fencing.Token(d.now):
		return fmt.Errorf("P2: the token %d is below the clock, %d", token, d.now)
	case token > fencing.MaxToken:
		return fmt.Errorf("the token %d is above the largest", token)
	}
	return nil
}

func (d *comparison) enter(name fencing.Name, g *grant) {
	d.grants[name] = append(d.grants[name], g)
	if d.number {
		g.label = fmt.Sprintf("#%d", len(d.labels)+1)
		d.labels[g.label] = g
	}
}

// learnClaim remembers the token that a lease has been given.
func (d *comparison) learnClaim(c *command, got, want *fencing.Holder) error {
	tokens := [2]fencing.Token{got.Token, want.Token}
	if tokens != d.asked {
		return fmt.Errorf("the token claimed is %d instead of %d", got.Token, d.asked[ofStore])
	}
	for _, g := range d.grants[c.name] {
		if g.lease == want.Lease && !g.over && g.tokens != tokens {
			g.over = true // the token counts for nothing any more
		}
	}
	if g := d.grantOf(c.name, ofModel, want.Token); g != nil { // its own, or one that somebody else has given up
		g.lease, g.over = want.Lease, false
		return nil
	}
	d.enter(c.name, &grant{lease: want.Lease, tokens: tokens})
	return nil
}

func (d *comparison) grantOf(name fencing.Name, of int, token fencing.Token) *grant {
	i := slices.IndexFunc(d.grants[name], func(g *grant) bool { return g.tokens[of] == token })
	if i < 0 {
		return nil
	}
	return d.grants[name][i]
}

// account keeps the books of P4: every grant ends once, or is taken back; and of P9: none
// expires before its holder was told. The answer of the store has been found to be that
// of the model.
func (d *comparison) account(c *command, want *result) error {
	for _, e := range want.ended() {
		lease := fencing.EndedLease{Name: e.Name, Lease: e.Holder.Lease}
		if early := d.told[lease].Sub(d.right()); e.Reason == fencing.ReasonExpired && early > 0 {
			return fmt.Errorf("P9: the lease %s on %s has expired %s before its holder was told", side{d, ofStore}.leaseLabel(e.Holder.Lease), e.Name, early)
		}
		delete(d.told, lease)
		delete(d.holders, lease)
		g := d.grantOf(e.Name, ofModel, e.Holder.Token)
		switch label := (side{d, ofModel}).leaseLabel(e.Holder.Lease); {
		case g == nil:
			return fmt.Errorf("the lease %s on %s ended that was never granted", label, e.Name)
		case g.over:
			return fmt.Errorf("P4: the lease %s on %s ended twice", label, e.Name)
		default:
			g.over = true
		}
	}
	for _, u := range want.undone { // by who was told
		delete(d.told, fencing.EndedLease{Name: u.name, Lease: u.lease})
		delete(d.holders, fencing.EndedLease{Name: u.name, Lease: u.lease})
	}
	if h := &want.out.Holder; want.err == nil && h.Token != 0 && !h.Provisional {
		d.told[fencing.EndedLease{Name: c.name, Lease: h.Lease}] = d.right().Add(h.ExpiresAt.Sub(want.out.Now))
	}
	for name, grants := range d.grants {
		for _, g := range grants {
			if g.over || d.held(name, g) {
				continue
			}
			if !slices.Contains(want.undone, undo{name, g.lease}) {
				return fmt.Errorf("P4: the end of the lease %s on %s was never told", side{d, ofStore}.leaseLabel(g.lease), name)
			}
			g.over = true
		}
	}
	return nil
}

// streamEpoch is what one stream at most has renewed.
type streamEpoch struct {
	fencing.EndedLease
	token fencing.Token
	epoch int64
}

// oneStream checks that a lease hangs on one stream at a time, the newest: one that it does not
// hang on renews it only where the store has forgotten of it, and no two do between two takeovers.
func (d *comparison) oneStream(c *command, want *result) error {
	if c.verb != "renew" || c.stamp == "" || want.err != nil {
		return nil
	}
	h, stamp := &want.out.Holder, stampOf(c.stamp)
	lease := fencing.EndedLease{Name: c.name, Lease: h.Lease}
	if was, ok := d.shown[lease]; ok && was.Attached != stamp && c.epoch <= was.Epoch {
		return fmt.Errorf("the stream %s has renewed a lease that hangs on another one, or on none", c.stamp)
	}
	renewed := streamEpoch{lease, h.Token, h.Epoch}
	if other, ok := d.renewed[renewed]; ok && other != stamp {
		return fmt.Errorf("the streams %s and %s have renewed one lease", d.stamps[other], c.stamp)
	}
	d.renewed[renewed] = stamp
	return nil
}

// leftForGood checks that a lease that its holder has left is, for its lease id and for streams, released: nothing goes on with it.
func (d *comparison) leftForGood(c *command, want *result) error {
	h := &want.out.Holder
	was, ok := d.shown[fencing.EndedLease{Name: c.name, Lease: h.Lease}]
	if ok && was.Left() && was.Token == h.Token && want.err == nil && (!h.Left() || c.verb != "release" && c.verb != "break") {
		return fmt.Errorf("the lease %s goes on, and its holder has left it", side{d, ofModel}.leaseLabel(h.Lease))
	}
	return nil
}

// held reports whether the model remembers a grant as a lease, expired or not.
func (d *comparison) held(name fencing.Name, g *grant) bool {
	record := d.model.memory().state.Records[name]
	if record == nil {
		return false
	}
	_, held := record.Holders.WithToken(g.tokens[ofModel])
	return held
}

// checkViews compares what both sides show of every name after a command, through either handle
// in turn, and checks what holds of every view.
func (d *comparison) checkViews(after *command) error {
	for _, name := range slices.Sorted(maps.Keys(d.grants)) {
		c := &command{verb: "inspect", name: name, handle: d.steps % 2}
		r, err := ask(d.ctx, d.store.Store(c.handle), c, 0, d.now)
		if err != nil {
			return fmt.Errorf("then inspect %s: %w", name, err)
		}
		want, err := ask(d.ctx, d.model.handles[c.handle], c, 0, d.now)
		if err == nil && d.collected(name, &r, &want) {
			want, err = ask(d.ctx, d.model.handles[c.handle], c, 0, d.now)
		}
		if err != nil {
			return err
		}
		if err := d.learnFromView(name, &r, &want); err != nil {
			return err
		}
		if err := d.compare(c, &r, &want); err != nil {
			return fmt.Errorf("then inspect %s: unlike Step, which says %q: %w", name, describe(c, &want, side{d, ofModel}), err)
		}
		for i := range want.out.Lock.Holders {
			h := &want.out.Lock.Holders[i]
			d.shown[fencing.EndedLease{Name: name, Lease: h.Lease}] = *h
		}
		if err := errors.Join(d.crowded(r.out.Lock, after), d.endless(r.out.Lock), d.idles(r.out.Lock)); err != nil {
			return fmt.Errorf("then inspect %s: %w", name, err)
		}
	}
	return nil
}

// learnFromView learns of grants that no answer told of: those of an expire and
// of a heartbeat.
func (d *comparison) learnFromView(name fencing.Name, r, want *result) error {
	if r.err != nil || want.err != nil {
		return nil
	}
	for i := range want.out.Lock.Holders {
		w := &want.out.Lock.Holders[i]
		for j := range r.out.Lock.Holders {
			if g := &r.out.Lock.Holders[j]; g.Lease == w.Lease {
				if err := d.learnGrant(name, g, w); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// crowded checks P1: nobody is granted a name with whom there are more permits than a holder
// tolerates then, though a holder may lower that beside those there are; no holder has more itself;
// no two have the same slot, and each got its slots below its limit. The limit of a holder changes by a
// renewal of its lease alone. Nor are there more holders than a name may have.
func (d *comparison) crowded(lock *fencing.Lock, after *command) error {
	slots := map[int]bool{}
	if most := d.caps.MaxHolders; most > 0 && len(lock.Holders) > most {
		return fmt.Errorf("there are %d live holders, and a name may have %d", len(lock.Holders), most)
	}
	newcomers := slices.ContainsFunc(lock.Holders, func(h fencing.Holder) bool {
		was, known := d.holders[fencing.EndedLease{Name: lock.Name, Lease: h.Lease}]
		return !known || was.Permits < h.Permits
	})
	for i := range lock.Holders {
		h := &lock.Holders[i]
		lease := fencing.EndedLease{Name: lock.Name, Lease: h.Lease}
		was, known := d.holders[lease]
		switch bears := tolerates(h.Mode, h.Limit); {
		case newcomers && permitsOf(lock) > bears:
			return fmt.Errorf("P1: the live holders have %d permits, and %s tolerates %d", permitsOf(lock), h.Lease, bears)
		case h.Permits > bears:
			return fmt.Errorf("P1: %s has %d permits itself, and tolerates %d", h.Lease, h.Permits, bears)
		case known && was.Limit != h.Limit && !(after.verb == "renew" && after.name == lock.Name && leaseOf(after.lease).Public() == h.Lease):
			return fmt.Errorf("the limit of %s has become %d, and was %d, and nobody has renewed it", h.Lease, h.Limit, was.Limit)
		}
		own := slices.Collect(h.AllSlots())
		if limited := h.Slot != fencing.NoSlot; limited && (len(own) != h.Permits || own[0] != h.Slot) || !limited && len(own)+h.Permits != 1 {
			return fmt.Errorf("%s has %d permits, and the slots %v from %d", h.Lease, h.Permits, own, h.Slot)
		}
		had := slices.Collect(was.AllSlots())
		for _, slot := range own {
			if slots[slot] || slot < 0 || slot >= h.Limit && !(known && slices.Contains(had, slot)) {
				return fmt.Errorf("P1: the slot %d is another's as well, or not below the limit", slot)
			}
			slots[slot] = true
		}
	}
	for i := range lock.Holders {
		d.holders[fencing.EndedLease{Name: lock.Name, Lease: lock.Holders[i].Lease}] = lock.Holders[i]
	}
	return nil
}

// permitsOf returns how many permits the holders have.
func permitsOf(lock *fencing.Lock) (permits int) {
	for i := range lock.Holders {
		permits += lock.Holders[i].Permits
	}
	return permits
}

// endless checks P4: no lease lives for longer than its TTL from here on. A clock that is wrong
// can't show it.
func (d *comparison) endless(lock *fencing.Lock) error {
	if d.off != 0 {
		return nil
	}
	for i := range lock.Holders {
		if h := &lock.Holders[i]; h.ExpiresAt.Sub(lock.Now) > h.TTL {
			return fmt.Errorf("P4: the lease %s has a TTL of %s and lives for %s", h.Lease, h.TTL, h.ExpiresAt.Sub(lock.Now))
		}
	}
	return nil
}

func tolerates(mode fencing.Mode, limit int) int {
	switch {
	case mode == fencing.ModeExclusive:
		return 1
	case limit == 0:
		return 1 << 30
	}
	return limit
}

// idles checks P5: where nothing is due, the first live waiter would not fit.
func (d *comparison) idles(lock *fencing.Lock) error {
	state := d.model.memory().state
	record := state.Records[lock.Name]
	if record == nil || len(lock.Waiters) == 0 || state.Due(lock.Name) <= d.now || record.RetryAt > d.now { // in quarantine
		return nil
	}
	for _, p := range record.Queue.Waiting() {
		if p.Ask.Lease.Public() != lock.Waiters[0].Lease {
			continue
		}
		bears := tolerates(p.Ask.Mode, p.Ask.Limit)
		for i := range lock.Holders {
			bears = min(bears, tolerates(lock.Holders[i].Mode, lock.Holders[i].Limit))
		}
		if permitsOf(lock)+max(1, p.Ask.Permits) <= bears && len(lock.Holders) < cmp.Or(d.caps.MaxHolders, 1<<30) {
			return fmt.Errorf("P5: the first waiter, %s, fits and is not granted", side{d, ofStore}.leaseLabel(lock.Waiters[0].Lease))
		}
	}
	return nil
}

// finishRounds bounds how long finish hands on: longer queues than this are not
// in use.
const finishRounds = 100

// finish lets everything run out, and checks that nothing is left (P4).
func (d *comparison) finish() error {
	if d.caps.OwnClock {
		d.setClock(0)
		d.setSkew(0, 0)
		d.setSkew(1, 0)
	}
	play := func(c *command) (result, error) {
		r, err := d.run(c)
		if err != nil {
			return r, fmt.Errorf("at the end, %s: %w", c, err)
		}
		return r, nil
	}
	for round := 0; round == 0 || d.busy(); round++ {
		if round == finishRounds {
			return errors.New("P4: at the end, the lock goes round without end")
		}
		for _, c := range d.confirmations() { // a gateway that lives confirms
			if _, err := play(c); err != nil {
				return err
			}
		}
		for _, c := range []*command{
			{verb: "advance", by: 25 * time.Hour}, // the longest TTL is 24 h
			{verb: "expire", repeat: true}, {verb: "expire", repeat: true, handle: 1},
			{verb: "advance", by: fencing.RestTTL}, // gateways are judged again, and rests end
			{verb: "expire", repeat: true}, {verb: "expire", repeat: true, handle: 1},
		} {
			if _, err := play(c); err != nil {
				return err
			}
		}
	}
	for _, c := range []*command{{verb: "stats"}, {verb: "list", walk: true}} {
		r, err := play(c)
		if err != nil {
			return err
		}
		if r.stats.Held != 0 || len(r.page.Locks) != 0 {
			return fmt.Errorf("P4: at the end, %s: %s", c, describe(c, &r, side{d, ofStore}))
		}
	}
	for name, grants := range d.grants {
		for _, g := range grants {
			if !g.over {
				return fmt.Errorf("P4: the end of the lease %s on %s was never told", side{d, ofStore}.leaseLabel(g.lease), name)
			}
		}
	}
	return nil
}

// confirmations returns commands that confirm all provisional leases.
func (d *comparison) confirmations() []*command {
	var all []*command
	for name, record := range d.model.memory().state.Records {
		for h := range record.Holders.All() {
			if h.Provisional {
				label := d.leases[h.Lease]
				if !h.Secret.Equal(leaseOf(label).Hash()) {
					label += "'"
				}
				all = append(all, &command{verb: "confirm", name: name, lease: label, stamp: d.stamps[h.Stamp]})
			}
		}
	}
	return all
}

// busy reports whether a name has a holder or a place.
func (d *comparison) busy() bool {
	for _, record := range d.model.memory().state.Records {
		if !idle(record) {
			return true
		}
	}
	return false
}
