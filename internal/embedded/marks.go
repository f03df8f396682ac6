package embedded

import (
	"fmt"

	"fencepost/internal/fencing"
)

// slotsPerEntry is how many slots of a name share an entry of the file: an admission
// writes no more than these, and a name has at most 157 of such entries.
const slotsPerEntry = 64

// markGroup is an entry of bucket marks: a name, and which of its slots.
type markGroup struct {
	name  fencing.Name
	group int
}

func groupOf(name fencing.Name, slot int) markGroup { return markGroup{name, slot / slotsPerEntry} }

func (g markGroup) key() []byte { return subKey(g.name, string([]byte{byte(g.group)})) }

// diskMarks are the marks of a group: the place of a slot in it, and its token.
type diskMarks map[int]int64

func (c *changes) mark(g markGroup) {
	if c.marks == nil {
		c.marks = map[markGroup]struct{}{}
	}
	c.marks[g] = struct{}{}
}

// encodeMarks takes down the marks that have changed.
func (c *changes) encodeMarks(w *writes, state *fencing.State) {
	for g := range c.marks {
		found := diskMarks{}
		if r := state.Records[g.name]; r != nil && r.SlotMarks != nil {
			for at := range slotsPerEntry {
				if token, ok := r.SlotMarks[g.group*slotsPerEntry+at]; ok {
					found[at] = int64(token)
				}
			}
		}
		if len(found) == 0 {
			w.remove(marks, g.key())
		} else {
			w.put(marks, g.key(), found)
		}
	}
}

// noteMarks takes down which marks of slots a step has moved or dropped; before is what
// they were, and token that of the operation's own slot.
func (s *Store) noteMarks(op fencing.Op, before map[int]fencing.Token, token fencing.Token) {
	name := op.LockName()
	var after map[int]fencing.Token
	if r := s.state.Records[name]; r != nil {
		after = r.SlotMarks
	}
	if after == nil {
		for slot := range before {
			s.next.changed.mark(groupOf(name, slot))
		}
		return
	}
	if r, admits := op.(fencing.AdmitRequest); admits && after[r.Slot] != token {
		s.next.changed.mark(groupOf(name, r.Slot))
	}
}

// marksOf returns the marks of the slots of an operation's name, and that of its own slot.
func (s *Store) marksOf(op fencing.Op) (all map[int]fencing.Token, own fencing.Token) {
	if r := s.state.Records[op.LockName()]; r != nil {
		all = r.SlotMarks
	}
	if r, admits := op.(fencing.AdmitRequest); admits {
		own = all[r.Slot]
	}
	return all, own
}

// slotMarks takes in an entry of bucket marks.
func (l *loading) slotMarks(key, value []byte) error {
	name, r, group, err := l.below(key)
	if err != nil {
		return err
	}
	found := diskMarks{}
	if err := decode(value, &found); err != nil {
		return fmt.Errorf("the marks of the fence of %q: %w", name, err)
	}
	if len(group) != 1 {
		return fmt.Errorf("a key of the marks of the fence of %q is damaged: %x", name, key)
	}
	if r.SlotMarks == nil {
		r.SlotMarks = map[int]fencing.Token{}
	}
	for at, token := range found {
		r.SlotMarks[int(group[0])*slotsPerEntry+at] = fencing.Token(token)
	}
	return nil
}
