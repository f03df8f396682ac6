package fencingtest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// duel gives the same commands to a store and to a model of it, and compares
// all that can be seen of the two after each of them.
type duel struct {
	ctx   context.Context
	caps  Capabilities
	store Backend
	model *modelBackend

	now    fencing.Instant
	skew   [2]time.Duration
	swept  [2]bool // handles whose Expire did the work: the other may be on standby
	number bool    // label every grant: #1, #2, …
	steps  int

	leases map[fencing.LeasePublic]string // labels
	labels map[string]*grant
	grants map[fencing.Name][]*grant // in order; also lists the names in use
}

// grant is one grant of a lease, with its token in the store and in the model.
type grant struct {
	label  string
	lease  fencing.LeasePublic
	tokens [2]fencing.Token
	over   bool // ended, taken back or flushed
}

// The sides of a duel, as indexes of grant.tokens.
const (
	ofStore = 0
	ofModel = 1
)

func newDuel(t testing.TB, open Open, caps Capabilities) *duel {
	d := &duel{
		ctx: t.Context(), caps: caps, store: open(t), model: newModelBackend(caps.OwnClock || caps.Flush), now: Epoch,
		leases: map[fencing.LeasePublic]string{}, labels: map[string]*grant{}, grants: map[fencing.Name][]*grant{},
	}
	d.setTime(Epoch)
	return d
}

func (d *duel) setTime(now fencing.Instant) {
	d.now = now
	d.store.SetTime(now)
	d.model.SetTime(now)
}

func (d *duel) setSkew(handle int, skew time.Duration) {
	d.skew[handle] = skew
	d.store.SetSkew(handle, skew)
	d.model.SetSkew(handle, skew)
}

func (d *duel) skewed(handle int) bool { return d.skew[handle].Abs() > MaxSkew }

// run gives a command to both sides. It returns the answer of the store, and an
// error that says what is wrong with it.
func (d *duel) run(c *command) (result, error) {
	d.steps++
	switch c.verb {
	case "advance":
		d.setTime(d.now.Add(c.by))
		return result{}, d.checkViews()
	case "skew":
		d.setSkew(c.handle, c.by)
		return result{}, nil
	case "flush":
		d.flush()
		return result{}, d.checkViews()
	}
	if c.lease != "" {
		d.leases[leaseOf(c.lease).Public()] = strings.TrimRight(c.lease, "'")
	}
	if c.name != "" && d.grants[c.name] == nil {
		d.grants[c.name] = []*grant{}
	}
	broken := d.toBreak(c)
	r, err := ask(d.ctx, d.store.Store(c.handle), c, broken.tokens[ofStore], d.now)
	if err != nil {
		return r, err
	}
	want, err := d.askModel(c, &r, broken.tokens[ofModel])
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
	if err := d.account(c, &r); err != nil {
		return r, err
	}
	return r, d.checkViews()
}

// toBreak returns the grant whose token a break names. One that was never issued
// has the token 1: tokens start at the clock.
func (d *duel) toBreak(c *command) *grant {
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
func (d *duel) askModel(c *command, r *result, token fencing.Token) (result, error) {
	handle := d.model.handles[c.handle]
	if c.verb == "expire" {
		return d.expireModel(c, r)
	}
	if c.verb == "list" {
		all := *c
		all.list.Limit, all.walk = fencing.MaxListLimit, true
		return ask(d.ctx, handle, &all, 0, d.now)
	}
	if c.verb == "break" && d.skewed(c.handle) && (r.code() == fencing.CodeOK || r.code() == fencing.CodeClockSkew) {
		// Out of skew a retried break succeeds until the idle record is collected,
		// and when that is only the store knows.
		record := d.model.memory().state.Records[c.name]
		if record == nil || len(record.Holders) == 0 && record.Due() <= d.now {
			return result{now: d.now, out: fencing.Outcome{Now: d.now}, err: r.err}, nil
		}
	}
	return ask(d.ctx, handle, c, token, d.now)
}

// learn remembers a grant, with its token on both sides.
func (d *duel) learn(c *command, r, want *result) error {
	if c.verb != "acquire" || r.err != nil || want.err != nil {
		return nil
	}
	tokens := [2]fencing.Token{r.out.Holder.Token, want.out.Holder.Token}
	var last grant
	grants := d.grants[c.name]
	if len(grants) > 0 {
		last = *grants[len(grants)-1]
	}
	if tokens[ofModel] <= last.tokens[ofModel] {
		return nil // the same lease again
	}
	g := &grant{lease: leaseOf(c.lease).Public(), tokens: tokens}
	d.grants[c.name] = append(grants, g)
	if d.number {
		g.label = fmt.Sprintf("#%d", len(d.labels)+1)
		d.labels[g.label] = g
	}
	switch token := tokens[ofStore]; {
	case token <= last.tokens[ofStore]:
		return fmt.Errorf("P2: the token %d is not above %d, the last one of the name", token, last.tokens[ofStore])
	case token < fencing.Token(d.now):
		return fmt.Errorf("P2: the token %d is below the clock, %d", token, d.now)
	case token > fencing.MaxToken:
		return fmt.Errorf("the token %d is above the largest", token)
	}
	return nil
}

// account keeps the books of P4: every grant ends once.
func (d *duel) account(c *command, r *result) error {
	for _, e := range r.ended() {
		grants := d.grants[e.Name]
		i := slices.IndexFunc(grants, func(g *grant) bool { return g.tokens[ofStore] == e.Holder.Token })
		if i < 0 {
			return fmt.Errorf("a lease on %s with the token %d ended that was never granted", e.Name, e.Holder.Token)
		}
		if grants[i].over {
			return fmt.Errorf("P4: the lease %s on %s ended twice", side{d, ofStore}.leaseLabel(e.Holder.Lease), e.Name)
		}
		grants[i].over = true
	}
	if c.verb == "takeback" && r.err == nil {
		if record := d.model.memory().state.Records[c.name]; record == nil || len(record.Holders) == 0 {
			for _, g := range d.grants[c.name] {
				g.over = true
			}
		}
	}
	return nil
}

func (d *duel) flush() {
	d.store.(Flusher).Flush()
	d.model.Flush()
	for _, grants := range d.grants {
		for _, g := range grants {
			g.over = true
		}
	}
}

// checkViews compares what both sides show of every name, through either handle
// in turn.
func (d *duel) checkViews() error {
	for _, name := range slices.Sorted(maps.Keys(d.grants)) {
		c := &command{verb: "inspect", name: name, handle: d.steps % 2}
		r, err := ask(d.ctx, d.store.Store(c.handle), c, 0, d.now)
		if err != nil {
			return fmt.Errorf("then inspect %s: %w", name, err)
		}
		want, err := ask(d.ctx, d.model.handles[c.handle], c, 0, d.now)
		if err != nil {
			return err
		}
		if err := d.compare(c, &r, &want); err != nil {
			return fmt.Errorf("then inspect %s: unlike Step, which says %q: %w", name, describe(c, &want, side{d, ofModel}), err)
		}
		if live := len(r.out.Lock.Holders); live > 1 {
			return fmt.Errorf("P1: %s has %d live holders", name, live)
		}
	}
	return nil
}

// finish lets every lease run out, and checks that nothing is left (P4).
func (d *duel) finish() error {
	if d.caps.OwnClock {
		d.setSkew(0, 0)
		d.setSkew(1, 0)
	}
	d.setTime(d.now.Add(25 * time.Hour)) // the longest TTL is 24 h
	end := []*command{{verb: "expire", repeat: true}, {verb: "expire", repeat: true, handle: 1}, {verb: "stats"}, {verb: "list", walk: true}}
	for _, c := range end {
		r, err := d.run(c)
		if err != nil {
			return fmt.Errorf("at the end, a day later: %s: %w", c, err)
		}
		if r.stats.Held != 0 || len(r.page.Locks) != 0 {
			return fmt.Errorf("P4: at the end, a day later: %s: %s", c, describe(c, &r, side{d, ofStore}))
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

// side is the lexicon of one side of a duel.
type side struct {
	*duel
	of int
}

func (s side) bind(label string, name fencing.Name, token fencing.Token) error {
	if g := s.labels[label]; g != nil {
		if g.tokens[s.of] != token {
			return fmt.Errorf("it is not %s", label)
		}
		return nil
	}
	for _, g := range s.grants[name] {
		if g.tokens[s.of] == token && g.label == "" {
			g.label = label
			s.labels[label] = g
			return nil
		}
	}
	return fmt.Errorf("%s would stand for a token that was never granted on %s, or has another label", label, name)
}

func (s side) resolve(label string) (fencing.Token, bool) {
	g := s.labels[label]
	if g == nil {
		return 0, false
	}
	return g.tokens[s.of], true
}

func (s side) tokenLabel(name fencing.Name, token fencing.Token) string {
	for _, g := range s.grants[name] {
		if g.tokens[s.of] == token && g.label != "" {
			return g.label
		}
	}
	return token.String()
}

func (s side) leaseLabel(lease fencing.LeasePublic) string {
	if label := s.leases[lease]; label != "" {
		return label
	}
	return string(lease)
}
