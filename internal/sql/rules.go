package sql

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// rulesEvery is how often each gateway says in the log which rules it knows. Who was heard of within the last two of these, and has not said
// that it knows later ones, holds back that they are raised.
const rulesEvery = 30 * time.Second

// said is what the log has of a gateway.
type said struct {
	at      fencing.Instant // of its last entry, by the database's clock
	known   int             // the newest rules that it has said to know; 0: it has said nothing
	version string          // that it has said to be
}

// hear notes what an entry says of gateways.
func (m *memory) hear(d *machine.Decoded) {
	for gateway, known := range d.Gateways() {
		if known.Leaves {
			delete(m.heard, gateway)
			continue
		}
		is := m.heard[gateway]
		is.at = max(is.at, fencing.Instant(d.Now))
		is.known, is.version = max(is.known, known.Rules), cmp.Or(known.Version, is.version)
		m.heard[gateway] = is
	}
}

// heldBack returns up to which rules all know them that were heard of lately, and those who know the least. Who was not is forgotten.
func (m *memory) heldBack(now fencing.Instant, self fencing.Gateway, every time.Duration) (to int, by []string) {
	to = m.Known()
	for gateway, is := range m.heard {
		switch {
		case gateway == self:
		case now.Sub(is.at) >= 2*every:
			delete(m.heard, gateway)
		case max(1, is.known) < m.Known():
			to = min(to, max(1, is.known))
			by = append(by, fmt.Sprintf("gateway %s (version %s)", gateway, cmp.Or(is.version, "unknown")))
		}
	}
	slices.Sort(by)
	return to, by
}

// others reports whether another gateway was heard of lately, and has not said since that it leaves.
func (m *memory) others(now fencing.Instant, self fencing.Gateway, every time.Duration) bool {
	for gateway, is := range m.heard {
		if gateway != self && now.Sub(is.at) < 2*every {
			return true
		}
	}
	return false
}

// says reports whether this turn is to say which rules this gateway knows.
func (t *turn) says() bool {
	if t.failing || time.Since(t.said) < t.options.rulesEvery {
		return false
	}
	t.said = time.Now() // also if it fails: the next time will do
	return true
}

// say has the entry of the turn say which rules this gateway knows, and raise them if all others know later ones. It has to have listened for two
// periods where a snapshot may have taken the place of what was said before.
func (t *turn) say() {
	m := &t.memory
	t.ops = append(t.ops, machine.Knows(m.Known(), t.options.Version))
	if m.since == 0 {
		m.since = t.now
	}
	to, by := m.heldBack(t.now, t.gateway, t.options.rulesEvery)
	if to > m.Rules() && (m.from == 0 || t.now.Sub(m.since) >= 2*t.options.rulesEvery) {
		t.raise = to
	}
	t.noteRules(by)
}

// noteRules has findings say which rules are in force, and who holds back later ones.
func (s *Store) noteRules(heldBack []string) {
	f := rulesFinding(s.memory.Rules(), heldBack)
	s.rules.Store(&f)
}

// rulesFinding says which rules are in force, and who holds back later ones.
func rulesFinding(rules int, heldBack []string) fencing.Finding {
	f := fine(checkRules, fmt.Sprintf("version %d of the rules is in force", rules))
	if len(heldBack) > 0 {
		f.Detail += "; a later one waits for " + strings.Join(heldBack, ", ")
		f.Remedy = "upgrade these, or stop them: a minute later they hold nothing back"
	}
	return f
}

// noteRaise says that an entry has raised the rules, if it has.
func (s *Store) noteRaise(before int) {
	if to := s.memory.Rules(); to > before {
		s.log.Info("the rules of the store are raised: a version of the gateway that does not know them can't use it any more", "rules", to, "before", before)
		s.noteRules(nil)
	}
}

// wayOut says what to do where this version comes to something else than the one that wrote the log.
func wayOut(writer string) string {
	return fmt.Sprintf("start version %s here. To go over to another one, stop all gateways of the store with SIGTERM while they have that version, "+
		"and then start them with the other one", cmp.Or(writer, "that was there before"))
}
