package fencing

import (
	"iter"
	"math/bits"
	"strconv"
	"strings"
)

// Slots are the numbers of the permits of a lease that has several, in ascending order: a
// list of ranges such as "0-4,7". Empty: the lease has one, or none. The twin of
// slots_text in holders.lua.
type Slots string

// All visits the numbers.
func (s Slots) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for first, last := range s.ranges() {
			for n := first; n <= last; n++ {
				if !yield(n) {
					return
				}
			}
		}
	}
}

func (s Slots) ranges() iter.Seq2[int, int] {
	return func(yield func(first, last int) bool) {
		for text := range strings.SplitSeq(string(s), ",") {
			from, to, several := strings.Cut(text, "-")
			first, err := strconv.Atoi(from)
			if err != nil {
				return
			}
			last := first
			if several {
				last, _ = strconv.Atoi(to)
			}
			if !yield(first, last) {
				return
			}
		}
	}
}

// slotsOf returns ascending numbers; one alone is no Slots.
func slotsOf(numbers []int) Slots {
	if len(numbers) < 2 {
		return ""
	}
	var text []byte
	for i := 0; i < len(numbers); i++ {
		if i > 0 {
			text = append(text, ',')
		}
		first := i
		for i+1 < len(numbers) && numbers[i+1] == numbers[i]+1 {
			i++
		}
		text = strconv.AppendInt(text, int64(numbers[first]), 10)
		if i > first {
			text = strconv.AppendInt(append(text, '-'), int64(numbers[i]), 10)
		}
	}
	return Slots(text)
}

// AllSlots visits the numbers of the permits of a lease, in ascending order.
func (h *Holder) AllSlots() iter.Seq[int] { return allSlots(h.Slot, h.Slots) }

func allSlots(slot int, slots Slots) iter.Seq[int] {
	if slots != "" || slot == NoSlot {
		return slots.All()
	}
	return func(yield func(int) bool) { yield(slot) }
}

// hasSlot reports whether one of the permits has a number.
func (h *Holder) hasSlot(n int) bool {
	for first, last := range h.Slots.ranges() {
		if first <= n && n <= last {
			return true
		}
	}
	return h.Slots == "" && h.Slot == n
}

// keep gives permits back, those with the highest slots, so that so many are left.
func (h *Holder) keep(permits int) {
	left := make([]int, 0, permits)
	for n := range h.Slots.All() {
		if len(left) == permits {
			break
		}
		left = append(left, n)
	}
	h.Permits, h.Slots = permits, slotsOf(left)
}

// slotSet is a set of slots, a bit each.
type slotSet []uint64

func (s *slotSet) add(n int) {
	for n/64 >= len(*s) {
		*s = append(*s, 0)
	}
	(*s)[n/64] |= 1 << (n % 64)
}

func (s slotSet) remove(n int) { s[n/64] &^= 1 << (n % 64) }

// free returns the lowest numbers that are not in the set, so many.
func (s slotSet) free(count int) []int {
	all := make([]int, 0, count)
	for i := 0; len(all) < count; i++ {
		open := ^uint64(0)
		if i < len(s) {
			open = ^s[i]
		}
		for ; open != 0 && len(all) < count; open &= open - 1 {
			all = append(all, i*64+bits.TrailingZeros64(open))
		}
	}
	return all
}

// first returns the lowest number that is not in the set.
func (s slotSet) first() int {
	for i, word := range s {
		if ^word != 0 {
			return i*64 + bits.TrailingZeros64(^word)
		}
	}
	return len(s) * 64
}
