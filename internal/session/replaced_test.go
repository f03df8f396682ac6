package session

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// A stream whose lease another request has taken over ends, though nobody tells it: with its next
// renewal, which does not prolong the lease, or a heartbeat if that is sooner, and at once where messages may have been
// lost. So it hears of a break, of a notice and of a release whose event was lost.
func TestAReplacedStreamIsNotTold(t *testing.T) {
	for _, ttl := range []time.Duration{600 * time.Millisecond, 3 * time.Second, fencing.LongestTTL} {
		for _, gap := range []string{"", "of messages", "of events"} {
			for what, end := range map[string]func(w *world, r fencing.AcquireRequest, attach bool) fencing.Code{
				"replaced": func(w *world, r fencing.AcquireRequest, attach bool) fencing.Code {
					newer := r
					newer.Stamp, newer.Attach = fencing.NewStamp(), attach
					if _, err := w.dogs[1].Do(w.t.Context(), newer); err != nil {
						w.t.Fatal(err)
					}
					return fencing.CodeReplaced
				},
				"broken": func(w *world, r fencing.AcquireRequest, _ bool) fencing.Code {
					w.breaks("a", 0)
					return fencing.CodeLeaseLost
				},
				"released": func(w *world, r fencing.AcquireRequest, _ bool) fencing.Code {
					w.release(1, "a", r.Lease)
					return fencing.CodeLeaseLost
				},
			} {
				for _, attach := range []bool{true, false} {
					inWorld(t, func(w *world) {
						w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Unheard, wire.Deaf = true, true })
						r := asks("a")
						r.TTL = ttl
						older := w.attach(r, nil)
						advance(100 * time.Millisecond)
						code := end(w, r, attach)
						told := min(ttl/3, fencing.HeartbeatInterval)
						switch gap {
						case "of messages":
							w.wires[0].Gap()
							told = min(told, 100*time.Millisecond+10*time.Millisecond)
						case "of events":
							w.wires[0].EventGap()
							told = min(told, 100*time.Millisecond+10*time.Millisecond)
						}
						var expires fencing.Instant
						if h := w.holder("a"); h != nil {
							expires = h.ExpiresAt
						}
						if u, at := older.ended(); fencing.CodeOf(u.Err) != code || at > told {
							t.Errorf("TTL %s, %s, gap %q, attach %t: it ended after %s with %v", ttl, what, gap, attach, at, u.Err)
						}
						if h := w.holder("a"); h != nil && h.ExpiresAt != expires {
							t.Errorf("TTL %s, %s, gap %q, attach %t: the lease was prolonged from %v to %v", ttl, what, gap, attach, expires, h.ExpiresAt)
						}
					})
				}
			}
		}
	}
}

// A stream that can't ask whose the lease is, for its client has not acknowledged yet what it was told, asks as
// soon as it has, however long the lease lives.
func TestReplacedBeforeTheGrantIsAcknowledged(t *testing.T) {
	inWorld(t, func(w *world) {
		r := asks("a")
		r.TTL = fencing.LongestTTL
		granted := time.Now()
		older := w.attach(r, func() bool { return time.Since(granted) > 40*time.Millisecond })
		newer := r
		newer.Stamp, newer.Attach = fencing.NewStamp(), true
		if _, err := w.dogs[1].Do(w.t.Context(), newer); err != nil {
			t.Fatal(err)
		}
		if u, at := older.ended(); fencing.CodeOf(u.Err) != fencing.CodeReplaced || at > time.Second {
			t.Errorf("it ended after %s with %v", at, u.Err)
		}
	})
}

// A store that has forgotten to whom a lease went has it go back to the newest stream by its
// renewal, and the one that it remembers is told so.
func TestAStoreForgetsTheNewestStream(t *testing.T) {
	inWorld(t, func(w *world) {
		w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Unheard = true })
		r := asks("a")
		r.TTL = 3 * time.Second
		older := w.attach(r, nil)
		newer := r
		newer.Stamp, newer.Attach = fencing.NewStamp(), true
		s := w.ask(1, newer)
		s.outs[0].Holder.Epoch += 2 // as if the store had been told more than it remembers
		kept := w.follow(s, nil)
		advance(4 * time.Second)
		if u, _ := older.ended(); fencing.CodeOf(u.Err) != fencing.CodeReplaced {
			t.Errorf("the older stream ended with %v", u.Err)
		}
		if h := w.holder("a"); h == nil || h.Attached != newer.Stamp || h.Epoch != s.outs[0].Holder.Epoch {
			t.Errorf("%+v", h)
		}
		synctest.Wait()
		for _, u := range kept.updates {
			if u.Err != nil {
				t.Errorf("the newest stream was told %v", u.Err)
			}
		}
	})
}

// A store that has forgotten to whom a lease went has it released by the end of the newest stream, or
// left to linger, though that hangs on the older one there.
func TestAForgottenStreamCloses(t *testing.T) {
	for _, linger := range []time.Duration{0, 5 * time.Second} {
		inWorld(t, func(w *world) {
			r := asks("a")
			older := w.attach(r, nil)
			newer := r
			newer.Stamp, newer.Attach = fencing.NewStamp(), true
			s, err := w.all[1].Begin(&Request{AcquireRequest: newer, Linger: linger})
			if err != nil {
				t.Fatal(err)
			}
			out := older.outs[0]
			out.Holder.Attached, out.Holder.Epoch = newer.Stamp, out.Holder.Epoch+1 // which the store has not kept
			s.got(&out)
			ctx, cancel := context.WithCancel(w.t.Context())
			s.Keep(ctx, nil)
			cancel()
			s.Close()
			h := w.holder("a")
			if linger == 0 && h != nil || linger > 0 && (h == nil || h.Attached != "" || time.Until(h.ExpiresAt.Time()) > linger) {
				t.Errorf("what is left: %+v", h)
			}
		})
	}
}

// A message that comes between the confirmation of a grant and its delivery is not lost; one that is late, for the
// lease has come back since, refuses nobody.
func TestReplacedWhileItsGrantIsConfirmed(t *testing.T) {
	for _, late := range []bool{false, true} {
		inWorld(t, func(w *world) {
			holder := w.ask(1, asks("a"))
			r := asks("a")
			r.Attach = true
			waiter := w.ask(0, r)
			w.waits(waiter)
			w.wires[0].Set(func(wire *fencingtest.Wire) {
				wire.After = func(op string) error {
					switch {
					case op == "confirm" && late:
						hearer{w.all[0]}.Replaced("a", r.Stamp)
					case op == "confirm":
						newer := r
						newer.Stamp = fencing.NewStamp()
						if _, err := w.dogs[1].Do(w.t.Context(), newer); err != nil {
							t.Error(err)
						}
					}
					return nil
				}
			})
			w.release(1, "a", holder.Lease)
			if synctest.Wait(); !late {
				w.refused(waiter, fencing.CodeReplaced, "")
				return
			}
			w.holds(waiter, true)
		})
	}
}

// What is heard of one name while the store does not answer about another one is acted on at once.
func TestNewsWhileARenewalFails(t *testing.T) {
	inWorld(t, func(w *world) {
		r := asks("")
		r.TTL = time.Hour
		a := w.attach(r, nil, "a", "b")
		w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Before = fencingtest.Failing("renew") })
		if _, err := w.dogs[1].Do(w.t.Context(), fencing.BreakRequest{Name: "a", Token: w.holder("a").Token, Notice: time.Minute}); err != nil {
			t.Fatal(err)
		}
		advance(50 * time.Millisecond)
		w.breaks("b", 0)
		w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Before = nil })
		if u, at := a.ended(); u.Name != "b" || at > fencing.HeartbeatInterval/2 { // a heartbeat would find it, too
			t.Errorf("it ended after %s with %s: %v", at, u.Name, u.Err)
		}
	})
}

// A lease that another request shortens is renewed in time from then on, and its holder is told.
func TestAnAttachedLeaseIsShortened(t *testing.T) {
	inWorld(t, func(w *world) {
		r := asks("a")
		r.TTL = 9 * time.Second
		a := w.attach(r, nil)
		advance(time.Second)
		if _, err := w.dogs[0].Do(w.t.Context(), fencing.RenewRequest{Name: "a", Lease: r.Lease, TTL: time.Second}); err != nil {
			t.Fatal(err)
		}
		advance(10 * time.Second)
		if h := w.holder("a"); h == nil || h.TTL != time.Second || !h.Live(fencing.InstantOf(time.Now())) {
			t.Errorf("%+v", h)
		}
		a.leaves()
		if u, _ := a.ended(); u.Err != nil || len(a.updates) < 30 || a.at[0] != time.Second {
			t.Errorf("%d updates, the first after %s: %v", len(a.updates), a.at[0], u.Err)
		}
	})
}

// Where a store loses one answer after the other, streams ask it no more often for that.
func TestGapsWithoutEnd(t *testing.T) {
	inWorld(t, func(w *world) {
		r := asks("a")
		r.TTL = 5 * time.Minute
		a := w.attach(r, nil)
		w.wires[0].Set(func(wire *fencingtest.Wire) {
			wire.After = func(op string) error {
				if op == "heartbeat" {
					w.wires[0].Gap()
				}
				return nil
			}
		})
		w.wires[0].Gap()
		advance(time.Minute)
		if n := w.wires[0].Count("renew"); n != 0 {
			t.Errorf("%d renewals within a minute", n)
		}
		if n := w.wires[0].Count("heartbeat"); n < 60 || n > 60*25 {
			t.Errorf("%d heartbeats within a minute", n)
		}
		a.leaves()
		if u, _ := a.ended(); u.Err != nil {
			t.Error(u.Err)
		}
	})
}

// A name that has to be waited for longer than the others' TTL is added: the older stream renews
// them meanwhile.
func TestASessionWaitsForLongerThanItsTTL(t *testing.T) {
	inWorld(t, func(w *world) {
		r := asks("")
		r.TTL = 600 * time.Millisecond
		a := w.attach(r, nil, "a")
		other := asks("b")
		other.TTL = time.Minute
		held := w.ask(0, other)
		more := a.AcquireRequest
		more.Attach, more.Stamp = true, fencing.NewStamp()
		token := w.holder("a").Token
		grows := w.start(1, more, "a", "b")
		advance(time.Second)
		w.release(0, held.Name, held.Lease)
		w.holdsSession(grows, map[fencing.Name]fencing.Token{"a": token})
	})
}

// Of two requests for the same names under one lease id, one is granted them, though each was the
// last to ask for one.
func TestSetsAreSentTogether(t *testing.T) {
	for _, attach := range []bool{false, true} {
		inWorld(t, func(w *world) {
			older := asks("")
			older.Attach = attach
			newer := older
			newer.Stamp = fencing.NewStamp()
			var ofOlder, ofNewer atomic.Int32
			passed := make(chan struct{})
			w.wires[0].Set(func(wire *fencingtest.Wire) {
				wire.Before = func(op string) error {
					if op == "acquire" && ofOlder.Add(1) == 2 {
						<-passed
					}
					return nil
				}
			})
			w.wires[1].Set(func(wire *fencingtest.Wire) {
				wire.After = func(op string) error {
					if op == "acquire" && ofNewer.Add(1) == 2 {
						close(passed)
						advance(time.Millisecond) // the older one has the second name then
					}
					return nil
				}
			})
			first := w.start(0, older, "a", "b")
			synctest.Wait()
			second := w.start(1, newer, "a", "b")
			advance(time.Second)
			synctest.Wait()
			if !first.answered() || !second.answered() || second.err != nil || fencing.CodeOf(first.err) != fencing.CodeReplaced {
				t.Fatalf("attach %t: the older one came to %v, the newer one to %v", attach, first.err, second.err)
			}
			for i, name := range second.names {
				if h := w.holder(name); h == nil || h.Token != second.outs[i].Holder.Token || h.Provisional || attach != (h.Attached == newer.Stamp) {
					t.Errorf("attach %t: %s: told %+v, held by %+v", attach, name, second.outs[i].Holder, h)
				}
			}
		})
	}
}

// A set that an older one has taken a name from, and that can't ask which of them is the newest, is told that nothing is
// known: it was not told that it is not.
func TestASetThatCanNotAskWhetherItIsTheNewest(t *testing.T) {
	inWorld(t, func(w *world) {
		older := asks("")
		newer := older
		newer.Stamp = fencing.NewStamp()
		var ofOlder, ofNewer atomic.Int32
		passed := make(chan struct{})
		w.wires[0].Set(func(wire *fencingtest.Wire) {
			wire.Before = func(op string) error {
				switch {
				case op == "confirm": // the newer one asks before
					advance(100 * time.Millisecond)
				case op == "acquire" && ofOlder.Add(1) == 2:
					<-passed
				}
				return nil
			}
		})
		w.wires[1].Set(func(wire *fencingtest.Wire) {
			wire.Before = func(op string) error {
				if op == "acquire" && ofNewer.Add(1) == 3 {
					return fencing.Unavailable(fencingtest.ErrCut)
				}
				return nil
			}
			wire.After = func(op string) error {
				if op == "acquire" && ofNewer.Load() == 2 {
					close(passed)
					advance(time.Millisecond) // the older one has the second name then
				}
				return nil
			}
		})
		w.start(0, older, "a", "b")
		synctest.Wait()
		second := w.start(1, newer, "a", "b")
		advance(time.Second)
		w.refused(second, fencing.CodeUnavailable, "")
	})
}

// A session that is refused though one of its names hangs on it by now leaves none attached to
// nobody.
func TestASessionIsRefusedWhileItAttaches(t *testing.T) {
	inWorld(t, func(w *world) {
		a := w.attach(asks(""), nil, "a", "b")
		more := a.AcquireRequest
		more.Attach, more.Stamp = true, fencing.NewStamp()
		var asked atomic.Int32
		w.wires[1].Set(func(wire *fencingtest.Wire) {
			wire.Before = func(op string) error {
				if op != "acquire" {
					return nil
				}
				if asked.Add(1) == 6 { // of three names each is asked for, two are looked at, and then all attached
					if _, err := w.dogs[0].Do(w.t.Context(), fencing.BreakRequest{Name: "b", Token: w.holder("b").Token}); err != nil {
						t.Error(err)
					}
				}
				return nil
			}
		})
		grows := w.ask(1, more, "a", "b", "c")
		if grows.err == nil {
			t.Fatal("it was granted")
		}
		if u, _ := a.ended(); u.Err == nil {
			t.Error("the older stream goes on")
		}
		w.free("c")
		if w.holder("a") == nil {
			t.Error("a was released before the older stream's client can have heard")
		}
		advance(takeOverLinger)
		if h := w.holder("a"); h != nil && h.Live(fencing.InstantOf(time.Now())) {
			t.Errorf("a is held by %+v", h)
		}
	})
}

// A request that takes a lease over, and is refused for too few replicas have heard of it, lets go of it: the
// older stream has it no more. It lingers for as long as the clients need to hear of that, and ask again.
func TestATakeoverThatTooFewReplicasHave(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Minute} {
		inWorld(t, func(w *world) {
			r := asks("a")
			older := w.attach(r, nil)
			newer := r
			newer.Stamp, newer.Attach, newer.Wait = fencing.NewStamp(), true, wait
			w.wires[1].Set(func(wire *fencingtest.Wire) {
				wire.After = func(op string) error {
					if op == "acquire" {
						return &fencing.Error{Code: fencing.CodeNotReplicated}
					}
					return nil
				}
			})
			refused := w.ask(1, newer)
			w.refused(refused, fencing.CodeNotReplicated, "")
			if u, _ := older.ended(); fencing.CodeOf(u.Err) != fencing.CodeReplaced {
				t.Errorf("the older stream ended with %v", u.Err)
			}
			w.closes(refused)
			advance(takeOverLinger - 100*time.Millisecond)
			if h := w.holder("a"); h == nil || h.Attached != "" || !h.Live(fencing.InstantOf(time.Now())) {
				t.Fatalf("what lingers: %+v", h)
			}
			advance(200 * time.Millisecond)
			if h := w.holder("a"); h != nil && h.Live(fencing.InstantOf(time.Now())) {
				t.Errorf("it is held by %+v", h)
			}
		})
	}
}

// What is taken back says how many takeovers its stream was told of where a lease hangs on that, and
// nothing of one that hangs on an older stream.
func TestATakeBackSaysOfHowManyTakeoversItWasTold(t *testing.T) {
	s := &Session{
		ask: &Request{AcquireRequest: fencing.AcquireRequest{Stamp: "newer"}}, names: []fencing.Name{"a", "b", "c"},
		outs: []fencing.Outcome{{Holder: fencing.Holder{Attached: "newer", Epoch: 3}}, {Holder: fencing.Holder{Attached: "older", Epoch: 2}}},
	}
	for i, want := range []int64{3, 0, 0} {
		if r := s.takeBackOf(i, fencing.TakeBackRequest{Left: true}); r.Name != s.names[i] || r.Epoch != want {
			t.Errorf("%s: %+v", s.names[i], r)
		}
	}
}

// What an acquire without an answer may have got is left to a client that asks again, and taken back where it did not hear that
// it is to.
func TestARefusalThatIsNotHeard(t *testing.T) {
	for _, attach := range []bool{false, true} {
		for _, heard := range []bool{false, true} {
			inWorld(t, func(w *world) {
				w.wires[0].Set(func(wire *fencingtest.Wire) { wire.After = fencingtest.Failing("acquire") })
				r := asks("a")
				r.TTL, r.Wait, r.Keep, r.Attach = time.Minute, 0, true, attach
				a := w.ask(0, r)
				w.refused(a, fencing.CodeUnavailable, "")
				if !heard {
					a.Unheard()
				}
				if taken := w.closes(a); taken == heard {
					t.Errorf("attach %t, heard %t: taken back %t", attach, heard, taken)
				}
				advance(10 * time.Second) // what is taken back is repeated after the skew guard's span
				if h := w.holder("a"); heard != (h != nil) {
					t.Errorf("attach %t, heard %t: held by %+v", attach, heard, h)
				}
			})
		}
	}
}
