package session

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// late has a call at a gateway wait, the one with a number of those of some operations, until pass is called. A stream that is
// there already may renew at any moment: where there is one, renewals can't be counted.
func (w *world) late(gateway int, number int32, ops ...string) (pass func()) {
	passed := make(chan struct{})
	pass = sync.OnceFunc(func() { close(passed) })
	w.held = append(w.held, pass)
	var calls atomic.Int32
	w.wires[gateway].Set(func(wire *fencingtest.Wire) {
		wire.Before = func(op string) error {
			if slices.Contains(ops, op) && calls.Add(1) == number {
				<-passed
			}
			return nil
		}
	})
	return pass
}

// goesOn checks that a stream is the only one of its lease id that is left: it has all of its names, keeps them for longer than
// they would live, and was told of nothing else.
func (w *world) goesOn(a *kept, refused *whole) {
	w.t.Helper()
	w.refused(refused, fencing.CodeReplaced, "")
	w.closes(refused)
	advance(2 * a.TTL)
	w.holdsSession(a.whole, nil)
	for _, u := range a.updates {
		if u.Err != nil {
			w.t.Errorf("the newest stream was told %v", u.Err)
		}
	}
}

// A stream that has taken the first of its names, and comes late to the second, which a newer one has by then, takes nothing
// from that. It is refused itself, and lets go of nothing that the newer one has.
func TestAnOlderStreamComesLateToAName(t *testing.T) {
	for _, held := range []bool{false, true} {
		inWorld(t, func(w *world) {
			r := asks("")
			r.Attach = true

			if held {
				before := r
				before.Stamp = fencing.NewStamp()
				w.attach(before, nil, "a", "b")
			}
			older, newer := r, r
			older.Stamp, newer.Stamp = fencing.NewStamp(), fencing.NewStamp()
			pass := w.late(0, 6, "acquire", "confirm") // each name is asked for, each confirmed or looked at, and then the first one attached
			first := w.ask(0, older, "a", "b")
			if h := w.holder("a"); h == nil || h.Attached != older.Stamp {
				t.Fatalf("held %t: a is held by %+v", held, h)
			}
			second := w.ask(1, newer, "a", "b")
			w.holdsSession(second, nil)
			stays := w.follow(second, nil)
			pass()
			w.goesOn(stays, first)
		})
	}
}

// The newest stream comes to the second name when an older one has taken it since it was seen, and was refused: it has it all the same.
func TestTheNewestStreamHasANameBack(t *testing.T) {
	inWorld(t, func(w *world) {
		r := asks("")
		r.Attach = true
		older, newer := r, r
		older.Stamp, newer.Stamp = fencing.NewStamp(), fencing.NewStamp()
		passOlder := w.late(0, 6, "acquire", "confirm")
		first := w.ask(0, older, "a", "b")
		passNewer := w.late(1, 6, "acquire", "confirm")
		second := w.ask(1, newer, "a", "b")
		w.waits(second)
		passOlder()
		synctest.Wait()
		if h := w.holder("b"); h == nil || h.Epoch != 2 { // it was taken over, and left to linger
			t.Fatalf("b is held by %+v", h)
		}
		passNewer()
		synctest.Wait()
		w.holdsSession(second, nil)
		w.goesOn(w.follow(second, nil), first)
	})
}

// A stream that was refused a name, and has the first one still, is not the newest any more by the time that it asks for the name
// again: it takes nothing from who is.
func TestAStreamIsTheNewestNoMore(t *testing.T) {
	inWorld(t, func(w *world) {
		r := asks("")
		r.Attach = true
		oldest, older, newest := r, r, r
		oldest.Stamp, older.Stamp, newest.Stamp = fencing.NewStamp(), fencing.NewStamp(), fencing.NewStamp()
		passOldest := w.late(1, 6, "acquire", "confirm")
		w.ask(1, oldest, "a", "b")
		passOlder := w.late(0, 6, "acquire", "confirm")
		first := w.ask(0, older, "a", "b")
		passOldest() // it takes b, and is refused
		synctest.Wait()
		passAgain := w.late(0, 2, "acquire", "renew") // it is refused b, and does one of two things before it asks for that again
		passOlder()
		w.waits(first)
		w.late(1, 0) // none
		second := w.ask(1, newest, "a", "b")
		w.holdsSession(second, nil)
		stays := w.follow(second, nil)
		passAgain()
		w.goesOn(stays, first)
	})
}

// The first name was left to linger, or taken over, since a stream saw it: it looks again, and is the newest.
func TestAStreamLooksAgainAtItsFirstName(t *testing.T) {
	for _, lingers := range []bool{false, true} {
		inWorld(t, func(w *world) {
			before := asks("")
			before.Attach = true
			older := w.attach(before, nil, "a", "b")
			r := before
			r.Stamp = fencing.NewStamp()
			pass := w.late(1, 5, "acquire") // each is asked for and looked at
			newest := w.ask(1, r, "a", "b")
			w.waits(newest)
			for _, name := range older.names {
				var err error
				if lingers {
					_, err = w.dogs[0].Do(w.t.Context(), fencing.ReleaseRequest{Name: name, Lease: r.Lease, Stamp: before.Stamp, Linger: 5 * time.Second})
				} else {
					other := before
					other.Name, other.Set, other.Stamp, other.Epoch = name, fencing.AnyNames, fencing.NewStamp(), w.holder(name).Epoch
					_, err = w.dogs[0].Do(w.t.Context(), other)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			pass()
			w.holdsSession(newest, nil)
			newest.Told()
		})
	}
}

// A stream that finds a lease which was renewed for longer, or less, is told that it lives for the TTL of its grant: so it does.
func TestFoundLivesAsGranted(t *testing.T) {
	for _, names := range [][]fencing.Name{{"a"}, {"a", "b"}} {
		for _, part := range []time.Duration{2, 40} {
			inWorld(t, func(w *world) {
				r := asks("")
				r.Attach = true
				w.attach(r, nil, names...)
				for _, name := range names {
					if _, err := w.dogs[0].Do(w.t.Context(), fencing.RenewRequest{Name: name, Lease: r.Lease, TTL: part * r.TTL / 10}); err != nil {
						t.Fatal(err)
					}
				}
				r.Stamp = fencing.NewStamp()
				found := w.ask(1, r, names...)
				w.holdsSession(found, nil)
				for i, out := range found.outs {
					if left := out.Holder.ExpiresAt.Sub(out.Now); left != r.TTL || out.Holder.TTL != r.TTL {
						t.Errorf("%s lives for %s, and was granted for %s", names[i], left, r.TTL)
					}
				}
				found.Told()
			})
		}
	}
}

// A stream that has found a lease, and whose client leaves before it has the TTL of its grant, lets it go as its end does.
func TestFoundAndLeft(t *testing.T) {
	inWorld(t, func(w *world) {
		r := asks("a")
		r.Attach = true
		w.attach(r, nil)
		if _, err := w.dogs[0].Do(w.t.Context(), fencing.RenewRequest{Name: "a", Lease: r.Lease, TTL: 40 * r.TTL}); err != nil {
			t.Fatal(err)
		}
		r.Stamp = fencing.NewStamp()
		pass := w.late(1, 1, "renew")
		found := w.ask(1, r)
		if found.cancel(); found.answered() {
			t.Fatal("it was not to be answered yet")
		}
		pass()
		synctest.Wait()
		if !found.answered() || found.err == nil {
			t.Fatalf("answered %t: %v", found.answered(), found.err)
		}
		w.closes(found)
		w.free("a")
	})
}

// Of two streams of one lease id, each of which stops before any one of its calls while the other goes on, one is left.
func TestOneStreamIsLeftWhereverTheyStop(t *testing.T) {
	const calls = 12
	for n := range 2 * calls * calls {
		held, stops := n%2 == 0, [2]int32{int32(n/2%calls) + 1, int32(n/2/calls) + 1}
		inWorld(t, func(w *world) {
			r := asks("")
			r.Attach = true
			if held {
				before := r
				before.Stamp = fencing.NewStamp()
				w.attach(before, nil, "a", "b")
				for _, name := range []fencing.Name{"a", "b"} { // asking who is newest ends it sooner
					if _, err := w.dogs[0].Do(w.t.Context(), fencing.RenewRequest{Name: name, Lease: r.Lease, TTL: 4 * r.TTL}); err != nil {
						t.Fatal(err)
					}
				}
			}
			var sent [2]*whole
			var pass [2]func()
			var left []*kept
			for i := range sent {
				pass[i] = w.late(i, stops[i], "acquire", "confirm", "renew")
				r.Stamp = fencing.NewStamp()
				sent[i] = w.ask(i, r, "a", "b")
			}
			for i := range sent {
				pass[i]()
				synctest.Wait()
				for _, a := range sent[:i+1] {
					if a.answered() && a.err == nil && !slices.ContainsFunc(left, func(k *kept) bool { return k.whole == a }) {
						left = append(left, w.follow(a, nil))
					}
				}
			}
			for _, k := range left {
				for i, name := range k.names {
					if h := w.holder(name); h != nil && h.Attached == k.Stamp && h.ExpiresAt < k.outs[i].Holder.ExpiresAt {
						t.Errorf("held %t, stopped before the calls %v: %s lives for %s less than the stream was told", held, stops, name, k.outs[i].Holder.ExpiresAt.Sub(h.ExpiresAt))
					}
				}
			}
			advance(8 * r.TTL)
			synctest.Wait()
			var goOn []*kept
			for _, k := range left {
				if len(k.updates) > 0 && k.updates[len(k.updates)-1].Err == nil {
					goOn = append(goOn, k)
				}
			}
			if len(goOn) != 1 {
				t.Errorf("held %t, stopped before the calls %v: %d go on; the requests came to %v and %v", held, stops, len(goOn), sent[0].err, sent[1].err)
				return
			}
			w.holdsSession(goOn[0].whole, nil)
		})
	}
}
