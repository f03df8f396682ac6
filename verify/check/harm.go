package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Harm is what a fault has done, as it shows at whom it is done to.
type Harm struct {
	To   string // whom, such as "gateway 2"
	What string // was done to it, in the plural, such as "calls delayed"
	N    int    // how many of them; 0: the fault did nothing
}

// Harms is what each kind of fault has done. The zero value is nothing. Many goroutines may use one.
type Harms struct {
	mu    sync.Mutex
	kinds map[string]*harmed
}

// harmed is what the faults of one kind have done.
type harmed struct {
	what        string
	times, idle int // how often it was done, and did nothing
	to          map[string]int
}

// Add notes what a fault of a kind has done. One kind does the same at all times.
func (h *Harms) Add(kind string, did Harm) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.of(kind, did.What)
	k.times++
	k.to[did.To] += did.N
	if did.N == 0 {
		k.idle++
	}
}

// Join adds what others have done. They are not in use any more.
func (h *Harms) Join(others *Harms) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for kind, other := range others.kinds {
		k := h.of(kind, other.what)
		k.times += other.times
		k.idle += other.idle
		for to, n := range other.to {
			k.to[to] += n
		}
	}
}

// of returns a kind. h.mu is held.
func (h *Harms) of(kind, what string) *harmed {
	if h.kinds == nil {
		h.kinds = map[string]*harmed{}
	}
	if h.kinds[kind] == nil {
		h.kinds[kind] = &harmed{what: what, to: map[string]int{}}
	}
	return h.kinds[kind]
}

// Times returns how many faults there were.
func (h *Harms) Times() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range h.kinds {
		n += k.times
	}
	return n
}

// Lines returns what each kind has done to whom, in order of their names.
func (h *Harms) Lines() (lines []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, kind := range slices.Sorted(maps.Keys(h.kinds)) {
		k := h.kinds[kind]
		var to []string
		for _, name := range slices.Sorted(maps.Keys(k.to)) {
			to = append(to, fmt.Sprintf("%s %d", name, k.to[name]))
		}
		line := fmt.Sprintf("%s, %d times: %s: %s", kind, k.times, k.what, strings.Join(to, ", "))
		if k.idle > 0 {
			line += fmt.Sprintf("; **%d times it did nothing**", k.idle)
		}
		lines = append(lines, line)
	}
	return lines
}

// Idle returns the kinds that never did anything, with what they were to do: what was checked under them was checked without them.
func (h *Harms) Idle() (kinds []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, kind := range slices.Sorted(maps.Keys(h.kinds)) {
		if k := h.kinds[kind]; k.idle == k.times {
			kinds = append(kinds, fmt.Sprintf("the fault %s did nothing, %d times: no %s of %s", kind, k.times, k.what, strings.Join(slices.Sorted(maps.Keys(k.to)), ", ")))
		}
	}
	return kinds
}
