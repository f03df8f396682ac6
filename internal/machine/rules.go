package machine

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"strings"

	"fencepost/internal/fencing"
)

// ErrRules is wrapped by the error of an entry or a snapshot from which on the log is decided by rules that this version does not
// know.
var ErrRules = errors.New("this version of the gateway does not know the rules of the log")

// Rules returns the version of the rules by which the next entry is decided, unless that raises it.
func (m *Machine) Rules() int { return m.state.Rules }

// Known returns the newest version of the rules that this machine knows.
func (m *Machine) Known() int { return m.known }

// Know has the machine know the rules up to a version, for tests of how builds behave that know others than this one.
func (m *Machine) Know(newest int) { m.known = newest }

// knows returns why rules can't be followed that a version of the gateway has put in force, nil if they can.
func (m *Machine) knows(rules int, writer string) error {
	if rules <= m.known {
		return nil
	}
	return fmt.Errorf("%w: it is decided by version %d of them, and this one knows up to %d: start version %s of the gateway, or a later one",
		ErrRules, rules, m.known, cmp.Or(writer, "that was there before"))
}

// raise has the rules of an entry be in force, if they are later ones.
func (m *Machine) raise(rules int) { m.state.Rules = max(m.state.Rules, rules) }

// RulesOf returns which version of the rules an entry puts in force, and which version of the gateway says so; 0 if the entry raises none, or can't be read at
// all. It is quick: what else is in the entry is passed over.
func RulesOf(data []byte) (rules int, writer string) {
	var e struct {
		Writer string `cbor:"8,keyasint"`
		Rules  int    `cbor:"9,keyasint"`
	}
	if Lenient.Unmarshal(data, &e) != nil {
		return 0, ""
	}
	return e.Rules, e.Writer
}

// KnowsAll returns why a log can't be followed of which these are the entries behind what this machine has carried out: ErrRules is wrapped.
// It carries out nothing.
func (m *Machine) KnowsAll(data []byte) error {
	rules, writer := RulesOf(data)
	return m.knows(rules, cmp.Or(writer, m.writer))
}

// Unread says of an entry that Decode has refused which version of the gateway reads it.
func (m *Machine) Unread(index uint64, data []byte, err error) error {
	_, writer := RulesOf(data)
	if writer = cmp.Or(writer, m.writer); writer != "" {
		err = fmt.Errorf("%w: version %s of the gateway has written it: start that one, or a later one", err, writer)
	}
	return fmt.Errorf("entry %d of the log can't be replayed: %w", index, err)
}

// Padded returns a Tick of so many bytes, and some more: what a turn of that size could not write is tried with it.
func Padded(bytes int) Op {
	return must(Encoding.Marshal(operation{Kind: kindTick, Owner: strings.Repeat("-", bytes)}))
}

// Knows returns an operation by which a gateway says which rules it knows, and which version of the gateway it is: a Tick, as which earlier versions
// take it.
func Knows(rules int, version string) Op {
	return must(Encoding.Marshal(operation{Kind: kindTick, Limit: rules, Owner: version}))
}

// Leaves returns an operation by which a gateway says that it writes nothing any more: a Tick as well, as which earlier versions take it.
func Leaves() Op { return must(Encoding.Marshal(operation{Kind: kindTick, Limit: leaves})) }

const leaves = -1 // rules that nobody knows

// Knowing is what a gateway has said of itself.
type Knowing struct {
	Rules   int    // the newest that it knows; 0: it has not said
	Version string // of the gateway; empty: it has not said
	Leaves  bool   // it has said that it writes nothing any more
}

// Gateways returns the gateways whose batches are in an entry, and what they say by Knows and Leaves.
func (d *Decoded) Gateways() iter.Seq2[fencing.Gateway, Knowing] {
	return func(yield func(fencing.Gateway, Knowing) bool) {
		for i := range d.batches {
			b := &d.batches[i]
			var is Knowing
			for j := range b.plain {
				switch o := &b.plain[j]; {
				case o.Kind == kindTick && o.Limit > 0:
					is = Knowing{Rules: o.Limit, Version: o.Owner}
				case o.Kind == kindTick && o.Limit == leaves:
					is.Leaves = true
				}
			}
			if b.Gateway != "" && !yield(fencing.Gateway(b.Gateway), is) {
				return
			}
		}
	}
}
