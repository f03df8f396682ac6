package history

import (
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
)

// move is a step of the model: what must have happened to a name at one moment
// between a call and its return.
type move struct {
	what    moveKind
	lease   string
	owner   string // for people
	token   int64
	bears   int    // how many permits the lease tolerates, its own included
	slots   uint64 // that it has, a bit each
	permits int    // how many it takes, from 1
	hold    int    // the depth after the move; of a release that to unwind
	term    int    // the answer that set the deadline: an expire is only for its own
	gone    bool
	known   Time // of a grant: when somebody was told of it first; of a look: it shows all that were known then
	frail   bool // of an end: it may be lost, and the lease be there again
	ended   bool // of a 412: it says that somebody has let go, or broken the lease

	shown   []Shown      // of a look: the holders of whose grant somebody was told, at any time
	whole   bool         // it shows all holders
	verdict string       // on token
	guess   bool         // whether the lease of token lives is not judged
	issued  int64        // with the verdict: the highest token
	told    bool         // of issued: somebody was told of its grant, at any time
	read    fmt.Stringer // the Look or the Judged
}

type moveKind string

const (
	moveGrant     moveKind = "grant"
	moveRenew     moveKind = "renew"
	moveDowngrade moveKind = "downgrade" // with a renewal
	moveRelease   moveKind = "release"
	moveNotHeld   moveKind = "not held" // 412
	moveHeld      moveKind = "refused"  // somebody was in the way
	moveBreak     moveKind = "break"
	moveNoToken   moveKind = "no such token"
	moveLook      moveKind = "look"    // GET of a lock
	moveVerdict   moveKind = "verdict" // GET of a fence

	// These may happen or not: done to a lease that is not there, they are nothing.
	moveExpire         moveKind = "expires"
	moveMayRelease     moveKind = "may be released"
	moveMayBreak       moveKind = "may be broken"
	moveMayDowngrade   moveKind = "may be downgraded"
	moveMayBeForgotten moveKind = "may be forgotten" // all leases; gone: and granted to others
)

// unlimited is what a shared lease without a limit tolerates.
const unlimited = math.MaxInt32

func tolerance(mode string, limit int) int {
	switch {
	case mode != "shared":
		return 1
	case limit == 0:
		return unlimited
	}
	return limit
}

// lock is the state of a name. It is never changed.
type lock struct {
	last    int64 // the highest token granted
	over    int64 // the highest token of a lease that has ended
	holders []holding
}

type holding struct {
	lease, owner string
	token        int64
	bears        int
	permits      int
	slots        uint64 // a bit each
	hold, term   int
	known        Time // when somebody was told of it first
	doubt        doubt
}

// doubt is what the store may have come to know of a lease.
type doubt uint8

const (
	sure      doubt = iota
	mayBeLost       // the store may have forgotten it, but grants to nobody else (quarantine)
	mayBeGone       // the same without a quarantine; or it has ended, and may be there again
)

func (l *lock) find(lease string) int {
	return slices.IndexFunc(l.holders, func(h holding) bool { return h.lease == lease })
}

func (l *lock) without(i int) *lock {
	n := &lock{last: l.last, over: max(l.over, l.holders[i].token), holders: make([]holding, 0, len(l.holders))}
	n.holders = append(append(n.holders, l.holders[:i]...), l.holders[i+1:]...)
	return n
}

// ended returns the state after a holder's lease has ended.
func (l *lock) ended(i int, m *move) *lock {
	if m.frail {
		return l.with(i, func(h *holding) { h.doubt = mayBeGone })
	}
	return l.without(i)
}

func (l *lock) with(i int, change func(*holding)) *lock {
	n := &lock{last: l.last, over: l.over, holders: slices.Clone(l.holders)}
	change(&n.holders[i])
	return n
}

// maskOf returns slots as bits; a history has few.
func maskOf(slots []int) (mask uint64) {
	for _, slot := range slots {
		mask |= 1 << slot
	}
	return mask
}

// fits is the one rule of all modes.
func (l *lock) fits(bears, permits int) bool {
	for _, h := range l.holders {
		if h.doubt != mayBeGone {
			permits += h.permits
			bears = min(bears, h.bears)
		}
	}
	return permits <= bears
}

// apply returns the state after a move, or nil if the rules don't allow it.
func (l *lock) apply(m *move, r *Rules) *lock {
	i := -1
	if m.lease != "" {
		i = l.find(m.lease)
	}
	switch m.what {
	case moveGrant:
		return l.grant(i, m, r)
	case moveRenew, moveDowngrade:
		if i < 0 || l.holders[i].token != m.token {
			return nil
		}
		return l.with(i, func(h *holding) {
			h.term, h.doubt = m.term, sure
			if m.what == moveDowngrade {
				h.bears = m.bears
			}
		})
	case moveRelease:
		switch {
		case i < 0:
			return nil
		case m.hold < 2:
			return l.ended(i, m)
		}
		return l.with(i, func(h *holding) { h.hold = min(h.hold, m.hold-1) })
	case moveNotHeld:
		if i < 0 || l.holders[i].doubt == mayBeGone || l.holders[i].doubt == mayBeLost && !m.ended { // who has forgotten it knows of no end
			return l
		}
		return nil
	case moveHeld:
		if l.fits(m.bears, m.permits) {
			return nil
		}
		return l
	case moveBreak, moveMayBreak, moveNoToken:
		j := slices.IndexFunc(l.holders, func(h holding) bool { return h.token == m.token })
		switch {
		case m.what == moveNoToken && j >= 0 && l.holders[j].doubt == sure, m.what == moveBreak && j < 0:
			return nil
		case m.what == moveNoToken || j < 0:
			return l
		}
		return l.ended(j, m)
	case moveLook, moveVerdict:
		switch {
		case m.what == moveVerdict && l.judges(m):
			return l
		case m.what == moveLook && l.looksLike(m):
			return l.after(m)
		}
		return nil
	case moveExpire:
		if i < 0 || l.holders[i].term != m.term {
			return l
		}
		return l.without(i)
	case moveMayRelease:
		if i < 0 {
			return l
		}
		return l.without(i)
	case moveMayDowngrade:
		if i < 0 || l.holders[i].bears != 1 {
			return l
		}
		return l.with(i, func(h *holding) { h.bears = m.bears })
	case moveMayBeForgotten:
		n := &lock{last: l.last, over: l.over, holders: slices.Clone(l.holders)}
		for i := range n.holders {
			n.holders[i].doubt = max(n.holders[i].doubt, mayBeLost)
			if m.gone {
				n.holders[i].doubt = mayBeGone
			}
		}
		return n
	}
	panic("history: no rule for " + string(m.what))
}

// looksLike reports whether a look may show this state. What a client knows of a holder is its
// token, its owner, how many permits it has, and tolerates; of the leases that nobody was told of the
// model knows nothing.
func (l *lock) looksLike(m *move) bool {
	for i, s := range m.shown {
		twice := slices.ContainsFunc(m.shown[:i], func(o Shown) bool { return o.Token == s.Token })
		if twice || !slices.ContainsFunc(l.holders, func(h holding) bool { return h.looksLike(s) }) {
			return false
		}
	}
	return !m.whole || !slices.ContainsFunc(l.holders, func(h holding) bool {
		return h.doubt == sure && h.known <= m.known && !slices.ContainsFunc(m.shown, func(s Shown) bool { return s.Token == h.token })
	})
}

// after returns the state after a look. It is answered when what it shows is on disk: a lease that it
// does not show and that has ended can't be there again.
func (l *lock) after(m *move) *lock {
	for i := len(l.holders) - 1; i >= 0 && m.whole; i-- {
		h := &l.holders[i]
		if h.doubt == mayBeGone && !slices.ContainsFunc(m.shown, func(s Shown) bool { return s.Token == h.token }) {
			l = l.without(i)
		}
	}
	return l
}

// looksLike reports whether a look may show a holder so.
func (h *holding) looksLike(s Shown) bool {
	return h.token == s.Token && h.owner == s.Owner &&
		(h.doubt != sure || h.bears == tolerance(s.Mode, s.Limit) && h.permits == max(1, s.Permits))
}

// judges reports whether a fence may say this of a token.
func (l *lock) judges(m *move) bool {
	if l.last > m.issued || m.told && l.last < m.issued {
		return false
	}
	i := slices.IndexFunc(l.holders, func(h holding) bool { return h.token == m.token })
	if m.verdict == "live" {
		return m.token <= m.issued && (m.guess || i >= 0)
	}
	return m.verdict == verdictOver(m.token, m.issued) && (m.guess || i < 0 || l.holders[i].doubt != sure)
}

// verdictOver returns the verdict on a token that no live lease has.
func verdictOver(token, issued int64) string {
	switch {
	case token > issued:
		return "unissued"
	case token == issued:
		return "ended"
	}
	return "superseded"
}

// grant is an acquire that was answered with a lease: a new one, or the one that the
// lease id has.
func (l *lock) grant(i int, m *move, r *Rules) *lock {
	if i >= 0 && l.holders[i].doubt == mayBeGone && l.holders[i].token != m.token {
		l, i = l.without(i), -1 // forgotten, and asked for again
	}
	if i >= 0 {
		h := l.holders[i]
		if h.token != m.token || h.doubt == sure && m.hold != h.hold && m.hold != h.hold+1 {
			return nil
		}
		return l.with(i, func(h *holding) { h.term, h.hold, h.doubt = m.term, m.hold, sure })
	}
	switch {
	case m.hold > 1, !l.fits(m.bears, m.permits):
		return nil
	case r.SharedTokensUnordered && m.bears > 1:
		if m.token <= l.over || slices.ContainsFunc(l.holders, func(h holding) bool { return h.token == m.token }) {
			return nil
		}
	case m.token <= l.last:
		return nil
	}
	n := &lock{last: max(l.last, m.token), over: l.over, holders: make([]holding, 0, len(l.holders)+1)}
	for _, h := range l.holders {
		switch {
		case h.doubt == mayBeGone && (m.bears == 1 || h.bears == 1): // it is gone
			n.over = max(n.over, h.token)
			continue
		case h.doubt == sure && h.slots&m.slots != 0:
			return nil
		}
		n.holders = append(n.holders, h)
	}
	n.holders = append(n.holders, holding{
		lease: m.lease, owner: m.owner, token: m.token, bears: m.bears, permits: m.permits, slots: m.slots, hold: m.hold, term: m.term, known: m.known,
	})
	slices.SortFunc(n.holders, func(a, b holding) int { return strings.Compare(a.lease, b.lease) })
	return n
}

var seed = maphash.MakeSeed()

func (l *lock) hash() uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	maphash.WriteComparable(&h, l.last)
	for _, held := range l.holders {
		maphash.WriteComparable(&h, held)
	}
	return h.Sum64()
}

// model returns the rules of a name for the search.
func model(r *Rules) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return &lock{} },
		Step: func(state, input, _ any) (bool, any) {
			next := state.(*lock).apply(input.(*move), r)
			return next != nil, next
		},
		Equal: func(a, b any) bool {
			l, o := a.(*lock), b.(*lock)
			return l.last == o.last && l.over == o.over && slices.Equal(l.holders, o.holders)
		},
		Hash:              func(state any) uint64 { return state.(*lock).hash() },
		DescribeOperation: func(input, _ any) string { return input.(*move).String() },
		DescribeState: func(state any) string {
			l := state.(*lock)
			var b strings.Builder
			fmt.Fprintf(&b, "last %d;", l.last)
			for _, h := range l.holders {
				fmt.Fprintf(&b, " %s token %d of %d", h.owner, h.token, h.bears)
				if h.doubt != sure {
					b.WriteString(" (perhaps forgotten)")
				}
			}
			return b.String()
		},
	}
}

func (m *move) String() string {
	text := string(m.what)
	if m.owner != "" {
		text += " " + m.owner
	}
	if m.token != 0 {
		text += fmt.Sprintf(" token %d", m.token)
	}
	switch m.what {
	case moveLook:
		text += fmt.Sprintf(" %v", m.shown)
	case moveVerdict:
		text += fmt.Sprintf(" %s, of %d", m.verdict, m.issued)
	}
	if m.hold > 1 {
		text += fmt.Sprintf(" hold %d", m.hold)
	}
	return text
}
