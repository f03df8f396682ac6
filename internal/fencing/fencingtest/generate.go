package fencingtest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

// longTTL is a TTL that outlives its tombstone: a lease that had it is remembered until its former
// end, not for fencing.TombstoneTTL.
const longTTL = 2 * fencing.TombstoneTTL

// generator makes up the next command of a history. It looks at the model to
// aim at what is interesting: the present holders and waiters, the instant of an
// expiry, a gateway that falls silent.
type generator struct {
	rand   *rand.Rand
	d      *comparison
	recent []string // leases used lately, the newest last
	fresh  int      // how many leases were made up

	silent  int // the handle that sends nothing, or -1
	silence int // for how many steps more it is so
}

func newGenerator(seed uint64, d *comparison) *generator {
	return &generator{rand: rand.New(rand.NewPCG(seed, 0)), d: d, silent: -1}
}

func pick[T any](g *generator, from ...T) T { return from[g.rand.IntN(len(from))] }

// oneIn is true once in n times.
func (g *generator) oneIn(n int) bool { return g.rand.IntN(n) == 0 }

// waits reports whether requests wait and sets are taken in the histories: what
// comes of them can be compared if there is one state of the gateways.
func (g *generator) waits() bool { return g.d.caps.OneState }

// limit picks one of limits, if the store has any.
func (g *generator) limit(limits ...int) int {
	if g.d.caps.Quorum {
		return 0
	}
	return pick(g, limits...)
}

// permits picks how many permits of a limit are asked for.
func (g *generator) permits(limit int) int {
	if limit == 0 {
		return 0
	}
	return pick(g, 0, 0, 1, 1+g.rand.IntN(limit), limit)
}

func (g *generator) next(step int) *command {
	c := &command{where: fmt.Sprintf("step %d", step), handle: g.handle()}
	switch n := g.rand.IntN(110); {
	case n < 33:
		c.verb = "acquire"
		g.acquire(c)
	case n < 41:
		c.verb = "renew"
		g.lease(c, 70, 80)
		c.ttl = pick(g, 0, 0, time.Second, 10*time.Second, longTTL)
		if g.oneIn(3) {
			c.mode = pick(g, fencing.ModeShared, fencing.ModeShared, fencing.ModeExclusive)
			if c.mode == fencing.ModeShared {
				c.limit = g.limit(0, 0, 1, 2, 3)
			}
		} else if h := g.holding(c); h != nil && h.Permits > 1 && !g.oneIn(3) {
			c.permits = pick(g, 1, h.Permits-1, h.Permits, h.Permits+1)
		}
		if h := g.holding(c); h != nil && !g.d.caps.Quorum && c.mode == "" && h.Mode == fencing.ModeShared { // nothing is drawn for it, as below
			switch n := g.d.steps; n % 3 {
			case 0:
				c.mode = fencing.ModeShared
				fallthrough
			case 1:
				c.limit = max(0, []int{1, h.Permits, h.Limit - 1, h.Limit, h.Limit + 1, h.Limit + 3}[n/3%6])
			case 2:
				if h.Limit > 0 && len(g.places(c.name)) > 0 { // a raise may serve who waits
					c.limit = h.Limit + 1 + n/3%3
				}
			}
		}
		if h := g.holding(c); h != nil && h.BreakAt != 0 { // which bounds what is asked for
			c.ttl, c.mode, c.limit, c.permits = longTTL, "", 0, 0
		}
		if !g.d.caps.Quorum && c.handle == 1 { // nothing is drawn for it, so that the histories stay as they are
			switch c.ttl {
			case time.Second:
				c.owner = "renamed"
			case 10 * time.Second:
				c.owner, c.metadata = "w1", map[string]string{"build": "43"}
			case longTTL:
				c.metadata = map[string]string{}
			}
		}
		if c.ttl == 0 {
			g.stream(c)
		}
	case n < 51:
		c.verb = "release"
		g.lease(c, 70, 80)
		if h := g.holding(c); h != nil && g.oneIn(2) {
			c.hold = pick(g, h.Hold, h.Hold, h.Hold+1, 1, 2)
		}
		if g.oneIn(4) {
			g.stamp(c)
			if c.handle == 1 { // nothing is drawn for it, so that the histories stay as they are
				c.hold, c.linger = 0, 10*time.Second
			}
			g.toldOf(c)
		} else if g.d.steps%3 == 0 { // nothing is drawn for it either
			c.hold, c.linger = 0, time.Duration(1+g.d.steps%4)*4*time.Second
		}
	case n < 56:
		c.verb = "takeback"
		g.lease(c, 45, 75)
		g.stamp(c)
		c.refused, c.unknown = n < 53, !g.d.caps.Quorum && g.oneIn(3) // a quorum tells nothing that could be unknown
		if h := g.holding(c); h != nil && h.Attached != "" {          // as in stream
			c.stamp = g.d.stamps[h.Attached]
			if n := g.d.steps % 4; n > 0 {
				c.left, c.linger = true, time.Duration(n-1)*5*time.Second
			}
			if g.d.steps%5 == 0 {
				c.stamp = fmt.Sprint("r", 1+g.d.steps/5%3)
			}
			g.toldOf(c)
		}
	case n < 61:
		c.verb, c.name = "break", pick(g, historyNames...)
		c.back = pick(g, 0, 1, 1, 1, 1, 2, 3, 8, 9)
		c.breakReason = pick(g, "", "stuck", "100% \"stuck\"")
		c.notice = pick(g, 0, 0, time.Second, 20*time.Second, longTTL+time.Minute)
	case n < 63 && g.waits():
		c.verb, c.breakReason = "evict", pick(g, "", "stuck")
		g.lease(c, 15, 75)
	case n < 65 && g.waits():
		c.verb = "leave"
		g.lease(c, 20, 80)
		g.stamp(c)
	case n < 70 && g.waits():
		c.verb = "confirm"
		g.lease(c, 80, 85)
		g.stamp(c)
	case n < 74 && (g.waits() || g.d.caps.Quorum):
		c.verb = "heartbeat"
	case n < 76:
		g.list(c)
	case n < 77:
		c.verb, c.name = "history", pick(g, historyNames...)
		if c.holders = g.d.steps % 3; g.d.steps%2 == 0 {
			c.verb = "inspect"
		}
	case n < 81:
		c.verb, c.limit, c.repeat = "expire", pick(g, 0, 0, 1, 2), !g.oneIn(3)
	case n < 82:
		c.verb = "stats"
	case n < 85 && g.d.caps.Claims:
		c.verb = "claim"
		g.claim(c)
	case n < 87 && g.d.caps.Quarantine && g.waits() && !g.d.skewed(c.handle):
		c.verb, c.name = "arrive", pick(g, historyNames...)
		g.arrive(c)
	case n < 88 && g.d.caps.OwnClock:
		c.verb = "clock" // not while a gateway's is wrong: of two no step can tell which was
		if g.d.off == 0 && g.d.ahead == [2]time.Duration{} {
			c.by = pick(g, 30*time.Minute, -30*time.Minute, 12*time.Second, -12*time.Second, 3*time.Second, -3*time.Second)
		}
	case n < 90 && g.d.caps.OwnClock:
		c.verb = "skew"
		if g.d.off != 0 {
			break
		}
		c.by = pick(g, 0, 0, 0, 0, MaxSkew, -MaxSkew, MaxSkew+time.Microsecond, -MaxSkew-time.Microsecond, 5*time.Second, -time.Hour, 24*time.Hour)
	case n >= 107:
		c.verb, c.name = "judge", pick(g, historyNames...)
		g.token(c)
	case n >= 100:
		c.verb, c.name = "admit", pick(g, historyNames...)
		g.token(c)
		if c.slot = fencing.NoSlot; !g.d.caps.Quorum {
			c.slot = pick(g, fencing.NoSlot, fencing.NoSlot, 0, 0, 1, 63, 64)
		}
	default:
		c.verb, c.by = "advance", g.step()
	}
	return c
}

// handle picks a handle. At times one of them falls silent for some steps.
func (g *generator) handle() int {
	if g.silence--; g.silence < 0 {
		g.silent, g.silence = -1, 15
		if g.oneIn(2) {
			g.silent, g.silence = g.rand.IntN(2), 30
		}
	}
	if g.silent >= 0 {
		return 1 - g.silent
	}
	if g.oneIn(3) {
		return 1
	}
	return 0
}

func (g *generator) acquire(c *command) {
	g.lease(c, 25, 45)
	c.ttl = pick(g, 0, time.Second, 10*time.Second, 10*time.Second, longTTL)
	if g.oneIn(40) {
		c.ttl = 24 * time.Hour
	}
	if g.oneIn(4) {
		c.maxHold = pick(g, longTTL, 24*time.Hour)
	}
	c.owner = pick(g, "", "w1", "W 2", `"<%s>"`)
	if !g.d.caps.Quorum && c.handle == 0 { // nothing is drawn for it, so that the histories stay as they are
		switch c.owner {
		case "W 2":
			c.lockDelay = 2 * time.Second
		case `"<%s>"`:
			if c.maxHold == longTTL {
				c.lockDelay = 30 * time.Second
			}
		}
	}
	if g.oneIn(3) {
		c.metadata = map[string]string{"build": pick(g, "42", "", "4 2")}
	}
	if g.oneIn(4) {
		c.metadata = map[string]string{"zone": "b", "ключ": "☂ 𝄞"}
	}
	if c.mode = pick(g, "", "", fencing.ModeExclusive, fencing.ModeShared, fencing.ModeShared); c.mode == fencing.ModeShared {
		c.limit = g.limit(0, 0, 1, 2, 2, 3, 19)
		c.permits = g.permits(c.limit)
	}
	g.agree(c)
	if g.d.caps.Claims && c.mode != fencing.ModeShared {
		c.intent = pick(g, 0, 0, 500*time.Millisecond, 10*time.Second)
	}
	if g.d.caps.Claims && g.oneIn(4) {
		g.propose(c)
	}
	c.stamp = pick(g, "r1", "r1", "r2", "r3")
	if h := g.holding(c); h != nil {
		c.hold = pick(g, 0, h.Hold, h.Hold+1, h.Hold+1, h.Hold+2)
	} else if g.oneIn(30) {
		c.hold = 2
	}
	if !g.waits() {
		c.attach = g.d.caps.Quorum && g.d.steps%3 > 0
		return
	}
	if !g.oneIn(3) && (c.intent == 0 || g.oneIn(2)) {
		c.wait = 10 * time.Second
		c.keep = g.oneIn(2)
		c.again = g.oneIn(6)
		c.waiters = pick(g, 0, 0, 0, 2, 3)
	}
	c.setName = pick(g, "", "", "", "", "s")
	if held, stamp, set := g.present(c); held && !g.oneIn(6) {
		c.setName = set
		if g.oneIn(2) {
			c.stamp = cmp.Or(stamp, c.stamp)
		}
	}
	c.attach = g.oneIn(4)
	if h := g.holding(c); h != nil && c.attach { // which it has seen, mostly as it is; nothing is drawn for it
		c.epoch = max(0, h.Epoch+[]int64{-1, 0, 0, 1}[g.d.steps%4])
	}
}

// agree has an acquire name nothing, most often, that contradicts what its lease id has.
func (g *generator) agree(c *command) {
	mode, limit, permits, owner, waits := fencing.Mode(""), 0, 0, "", false
	if h := g.holding(c); h != nil {
		mode, limit, permits, owner = h.Mode, h.Limit, h.Permits, h.Owner
	} else if i := slices.IndexFunc(g.places(c.name), func(p fencing.Place) bool { return p.Ask.Lease.Public() == leaseOf(c.lease).Public() }); i >= 0 {
		ask := g.places(c.name)[i].Ask
		mode, limit, permits, owner, waits = ask.Mode, ask.Limit, ask.Permits, ask.Owner, true
	}
	if mode == "" || g.oneIn(4) {
		return
	}
	has := limit
	if c.mode = pick(g, "", mode); c.mode != fencing.ModeShared {
		limit = 0
	}
	c.limit, c.owner = pick(g, 0, limit), pick(g, "", owner)
	if c.permits = 0; c.limit > 0 {
		c.permits = pick(g, 0, permits)
	}
	if waits && has > 0 && g.d.steps%4 > 0 { // it may say anew what it tolerates; nothing is drawn for it, as above
		c.mode, c.limit = fencing.ModeShared, []int{0, has + 1, has, has + 3, max(1, permits)}[g.d.steps%5]
		if c.limit == 0 {
			c.permits = 0
		}
	}
}

// propose picks a token that an acquire proposes.
func (g *generator) propose(c *command) {
	c.token = pick(g, newToken, nowToken, nowToken, nowToken)
	c.above = pick(g, 0, 0, 3, -1, -int(MaxSkew/time.Microsecond), -int(MaxSkew/time.Microsecond)-1, int(time.Hour/time.Microsecond))
	tokens := g.d.tokensOf(c)
	if !g.d.caps.OneState && (c.above > 3 || tokens[ofStore] != tokens[ofModel] || g.rank(c.name, ofStore, tokens[ofStore]) != g.rank(c.name, ofModel, tokens[ofModel])) {
		c.token, c.above = "", 0 // with several partitions, what lies between two tokens differs
	}
	c.claimed = c.token != "" && g.d.steps%2 == 0 // nothing is drawn for it, so that the histories stay as they are
}

// claim picks a lease and a token for it: a new one as often as not, else one near
// a token that was seen.
func (g *generator) claim(c *command) {
	g.lease(c, 85, 90)
	c.token, c.above = newToken, pick(g, 0, 0, 0, 3)
	if g.oneIn(2) && len(g.d.grants[c.name]) > 0 {
		c.token, c.above, c.back = "", pick(g, -1, 0, 0, 1, 2), 1+g.rand.IntN(min(6, len(g.d.grants[c.name])))
	}
	if h := g.holding(c); h != nil && h.Claimed && g.oneIn(2) { // it is to stay as it is
		g.near(c, h.Token, pick(g, -1, -1, 0, 1))
	} else if r := g.record(c.name); h != nil && r.Holders.Len() > 1 && g.oneIn(3) { // perhaps somebody else's
		g.near(c, pick(g, slices.Collect(r.Holders.All())...).Token, 0)
	}
	if g.oneIn(12) && g.d.caps.OneState { // how far ahead is too far depends on the counter of the partition
		c.above = pick(g, int(time.Hour/time.Microsecond), int(time.Hour/time.Microsecond)/2)
	}
	if tokens := g.d.tokensOf(c); g.rank(c.name, ofStore, tokens[ofStore]) != g.rank(c.name, ofModel, tokens[ofModel]) {
		c.token, c.above = newToken, 0 // with several partitions, what lies between two tokens differs
	}
}

// token picks a token to admit or to judge: most often one of the last grants, sometimes one
// that was never issued.
func (g *generator) token(c *command) {
	c.claimed = g.d.caps.Claims && g.oneIn(4)
	if grants := len(g.d.grants[c.name]); grants > 0 && !g.oneIn(8) {
		c.back = 1 + g.rand.IntN(min(4, grants))
		return
	}
	c.token, c.above = newToken, int(60*24*time.Hour/time.Microsecond) // the step itself may hand on, with a token of the clock
}

// near has a claim name what lies above the token of a holder.
func (g *generator) near(c *command, token fencing.Token, above int) {
	for i, known := range g.d.grants[c.name] {
		if known.tokens[ofModel] == token {
			c.token, c.above, c.back = "", above, len(g.d.grants[c.name])-i
		}
	}
}

// rank returns which of the tokens that were seen on a name are equal to or below a
// token, as a number.
func (g *generator) rank(name fencing.Name, of int, token fencing.Token) (rank int) {
	for _, known := range g.d.grants[name] {
		rank *= 3
		rank += cmp.Compare(known.tokens[of], token) + 1
		rank %= 1 << 40
	}
	return rank
}

// arrive picks what a gateway finds: quarantines are short, so that they do not bring
// everything to a halt.
func (g *generator) arrive(c *command) {
	c.arrival = fencing.Arrival{
		Server: pick(g, "S", "S", "T"), Longest: pick(g, 0, 0, time.Second, time.Minute),
		Least: pick(g, 0, time.Second), Most: pick(g, 0, 2*time.Second, 2*time.Second, 5*time.Second),
		Lossless: g.oneIn(4), Lost: g.oneIn(4), Late: g.oneIn(4),
	}
	if g.oneIn(4) {
		c.until = 3 * time.Second
	}
}

// present returns the label of the stamp and the set of the lease id of c on its
// name, if it is there.
func (g *generator) present(c *command) (there bool, stamp, set string) {
	if h := g.holding(c); h != nil {
		return true, g.d.stamps[h.Stamp], h.Set
	}
	for _, p := range g.places(c.name) {
		if p.Ask.Lease.Public() == leaseOf(c.lease).Public() {
			return true, g.d.stamps[p.Stamp], p.Ask.Set
		}
	}
	return false, "", ""
}

// stream has a stream renew: most often the one that the lease hangs on, else one that was
// replaced, or of which the store may have forgotten. Nothing is drawn for it, so that the
// histories stay as they are.
func (g *generator) stream(c *command) {
	h := g.holding(c)
	if h == nil {
		c.stamp = "r1"
		return
	}
	n := g.d.steps
	c.stamp = cmp.Or(g.d.stamps[h.Attached], g.d.stamps[h.Stamp], "r1")
	if n%3 == 0 {
		c.stamp = fmt.Sprint("r", 1+n/3%3)
	}
	g.toldOf(c)
}

// toldOf has a stream say how many takeovers it was told of, of which the store may have forgotten.
// Nothing is drawn for it either.
func (g *generator) toldOf(c *command) {
	if h := g.holding(c); h != nil && !g.d.caps.Quorum {
		c.epoch = max(0, h.Epoch+int64(g.d.steps/9%3)-1)
	}
}

// stamp picks a stamp, most often that of the lease or place.
func (g *generator) stamp(c *command) {
	c.stamp = pick(g, "r1", "r2", "r3")
	if _, stamp, _ := g.present(c); stamp != "" && !g.oneIn(4) {
		c.stamp = stamp
	}
}

func (g *generator) record(name fencing.Name) *fencing.Record {
	return g.d.model.memory().state.Records[name]
}

// holding returns the holding of the lease id of c on its name, or nil.
func (g *generator) holding(c *command) *fencing.Holding {
	if r := g.record(c.name); r != nil {
		if h, ok := r.Holders.Find(leaseOf(c.lease).Public()); ok {
			return &h
		}
	}
	return nil
}

func (g *generator) places(name fencing.Name) []fencing.Place {
	r := g.record(name)
	if r == nil {
		return nil
	}
	return append(r.Queue.Waiting(), r.Queue.Resting()...)
}

// lease picks a name and a lease: that of a holder in so many of a hundred times,
// that of a place up to so many, one used lately, or a new one; sometimes with
// another secret.
func (g *generator) lease(c *command, holders, places int) {
	if c.name = pick(g, historyNames...); g.oneIn(2) {
		c.name = historyNames[0]
	}
	record, waiting := g.record(c.name), g.places(c.name)
	switch n := g.rand.IntN(100); {
	case n < holders && record != nil && record.Holders.Len() > 0:
		c.lease = g.d.leases[pick(g, slices.Collect(record.Holders.All())...).Lease]
	case n < places && len(waiting) > 0:
		c.lease = g.d.leases[pick(g, waiting...).Ask.Lease.Public()]
	case n < (places+100)/2 && len(g.recent) > 0:
		c.lease = pick(g, g.recent...)
	default:
		c.lease = string(rune('A' + g.fresh%26))
		if g.fresh >= 26 {
			c.lease += fmt.Sprint(g.fresh / 26)
		}
		g.fresh++
		g.recent = append(g.recent, c.lease)
		if len(g.recent) > 4 {
			g.recent = g.recent[1:]
		}
	}
	if g.oneIn(16) {
		c.lease += "'"
	}
}

func (g *generator) list(c *command) {
	c.verb, c.walk = "list", g.oneIn(2)
	c.list.Prefix = pick(g, "", "", "a", "a/", "c")
	c.list.Query = pick(g, "", "", "", "W1", "b", "%")
	c.mode = pick[fencing.Mode](g, "", "", "", fencing.ModeExclusive, fencing.ModeShared)
	c.list.Mode = c.mode
	c.list.HeldFor = pick[time.Duration](g, 0, 0, 0, time.Second, 10*time.Second)
	c.list.EndsIn = pick[time.Duration](g, 0, 0, 0, time.Second, 10*time.Second)
	c.list.Waiting = g.waits() && g.oneIn(4)
	c.list.Attached, c.list.Unrenewed = g.oneIn(4), g.oneIn(4)
	c.list.Count = g.oneIn(3)
	c.list.After = pick[fencing.Name](g, "", "", "a", "a/a")
	c.limit = pick(g, 0, 1, 2)
	c.list.Limit = c.limit
}

// step picks how far to move the time: a little, much, or exactly to where
// something ends or is forgotten, give or take a microsecond.
func (g *generator) step() time.Duration {
	if g.silent >= 0 && g.oneIn(2) { // short of a gap in which nobody is heard of
		return pick(g, 600*time.Millisecond, fencing.HeartbeatInterval, fencing.StallAfter-time.Microsecond, fencing.StallAfter, fencing.GatewayTTL-time.Microsecond)
	}
	if g.oneIn(2) {
		state := g.d.model.memory().state
		ends := []fencing.Instant{state.Quarantine.Until}
		for _, name := range historyNames {
			if record := state.Records[name]; record != nil {
				if !idle(record) || g.oneIn(10) {
					ends = append(ends, state.Due(name))
				}
				ends = append(ends, record.Intent.Until, record.DelayedUntil)
			}
			for _, lease := range g.recent {
				if tomb, ok := state.Tombstones[fencing.EndedLease{Name: name, Lease: leaseOf(lease).Public()}]; ok && g.oneIn(3) {
					ends = append(ends, tomb.Until)
				}
			}
		}
		ends = slices.DeleteFunc(ends, func(end fencing.Instant) bool { return end <= g.d.now+1 })
		if len(ends) > 0 {
			return pick(g, ends...).Sub(g.d.now) + pick(g, -time.Microsecond, 0, 0, time.Microsecond)
		}
	}
	if g.oneIn(30) {
		return pick(g, 24*time.Hour, 25*time.Hour)
	}
	return pick(g, time.Microsecond, time.Millisecond, 100*time.Millisecond, time.Second, 9*time.Second, 30*time.Second, fencing.TombstoneTTL, fencing.TombstoneTTL+time.Minute)
}
