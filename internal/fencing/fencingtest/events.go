package fencingtest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/seed"
)

// How many histories are watched: with FENCEPOST_LONG the second number.
const (
	eventHistories     = 3
	longEventHistories = 10
)

// runEvents plays random histories and compares the events that each gateway is
// told with those of Step.
func runEvents(t *testing.T, open Open, caps Capabilities) {
	seed := seed.Of(t)
	for i := range long(eventHistories, longEventHistories) {
		if err := watchedHistory(t, open, caps, seed+i); err != nil {
			t.Fatalf("history with FENCEPOST_SEED=%d: %v", seed+i, err)
		}
	}
}

func watchedHistory(t testing.TB, open Open, caps Capabilities, seed uint64) error {
	defer scoped(&t)()
	d := newComparison(t, open, caps)
	var witnesses [2]*witness
	for handle := range witnesses {
		witnesses[handle] = newWitness()
		defer d.store.Store(handle).Watch(witnesses[handle])()
	}
	reference := newWitness()
	defer d.model.Store(0).Watch(reference)()
	g := newGenerator(seed, d)
	for i := range historySteps {
		c := g.next(i)
		if _, err := d.run(c); err != nil {
			return fmt.Errorf("%s: %s: %w", c.where, c, err)
		}
	}
	if err := d.finish(); err != nil {
		return err
	}
	want := reference.await(0)
	var first []fencing.Event
	for handle, w := range witnesses {
		got := w.await(len(want))
		if err := d.compareEvents(got, want); err != nil {
			return fmt.Errorf("gateway %d was told: %w", handle+1, err)
		}
		if first == nil {
			first = got
			continue
		}
		if d.caps.OwnEventIDs {
			for i := range got {
				if slices.ContainsFunc(first, func(e fencing.Event) bool { return e.ID == got[i].ID }) {
					return fmt.Errorf("the other gateway knows the id %s, and hears events in another order", got[i].ID)
				}
			}
		} else if !slices.EqualFunc(first, got, func(a, b fencing.Event) bool { return a.ID == b.ID }) {
			return errors.New("the events have other ids on the other gateway")
		}
	}
	return nil
}

// compareEvents compares the events of each name, in order.
func (d *comparison) compareEvents(got, want []fencing.Event) error {
	ids := map[string]bool{}
	for i := range got {
		if id := got[i].ID; id == "" || ids[id] {
			return fmt.Errorf("the id %q is empty or was there before", id)
		}
		ids[got[i].ID] = true
	}
	for i := range want {
		if i == len(got) {
			return fmt.Errorf("%d events instead of %d: none is like %+v", len(got), len(want), want[i])
		}
		g, w := got[i], want[i]
		if err := d.compareToken("the token of an event", w.Name, g.Token, w.Token); err != nil && w.Token != 0 {
			return err
		}
		g.ID, g.Token, w.ID, w.Token = "", 0, "", 0
		if g != w {
			return fmt.Errorf("event %d is %+v instead of %+v", i, g, w)
		}
	}
	if len(got) > len(want) {
		return fmt.Errorf("%d events instead of %d: nothing is like %+v", len(got), len(want), got[len(want)])
	}
	return nil
}

// witness is an event sink that remembers.
type witness struct {
	mu      sync.Mutex
	events  []fencing.Event
	changed chan struct{}
}

func newWitness() *witness { return &witness{changed: make(chan struct{}, 1)} }

func (w *witness) Event(e fencing.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func (w *witness) Gap() {}

// await waits for so many events, and returns those that have come, by name.
func (w *witness) await(n int) []fencing.Event {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		w.mu.Lock()
		events := slices.Clone(w.events)
		w.mu.Unlock()
		if len(events) >= n {
			slices.SortStableFunc(events, func(a, b fencing.Event) int { return compareGrants(a.Name, 0, b.Name, 0) })
			return events
		}
		select {
		case <-w.changed:
		case <-deadline.C:
			n = 0
		}
	}
}
