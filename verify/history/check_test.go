package history

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/verify/system"
)

const ms = time.Millisecond

// script builds a history by hand, times in milliseconds.
type script struct{ h History }

func (s *script) add(sent, done int, op Op) *Op {
	op.ID = len(s.h.Ops) + 1
	op.Sent, op.Done = Time(sent)*ms, Time(done)*ms
	if op.Call == 0 {
		op.Call = op.ID
	}
	if op.Names == nil {
		op.Names = []string{"n"}
	}
	if op.Lease == "" && op.Owner != "" {
		op.Lease = op.Owner + ".secret"
	}
	s.h.End = max(s.h.End, op.Done)
	s.h.Ops = append(s.h.Ops, op)
	return &s.h.Ops[len(s.h.Ops)-1]
}

// grant is an acquire that was granted, with 100 ms of TTL.
func (s *script) grant(sent, done int, owner string, token int64, more ...Op) *Op {
	op := Op{}
	if len(more) > 0 {
		op = more[0]
	}
	op.Verb, op.Verdict, op.Owner, op.Status, op.TTL = Acquire, Granted, owner, 201, cmp.Or(op.TTL, 100*ms)
	op.Mode, op.Hold = cmp.Or(op.Mode, "exclusive"), cmp.Or(op.Hold, 1)
	slot := -1
	if op.Limit > 0 {
		slot = op.Limit - 1 - int(token%2)
	}
	added := s.add(sent, done, op)
	added.Grants = []Grant{{Name: "n", Token: token, Slot: slot, Hold: op.Hold, Left: op.TTL, Deadline: added.Sent + op.TTL}}
	return added
}

func (s *script) renew(sent, done int, owner string, token int64, mode string) *Op {
	op := s.add(sent, done, Op{Verb: Renew, Verdict: Granted, Owner: owner, Status: 200, TTL: 100 * ms, Mode: mode})
	op.Grants = []Grant{{Name: "n", Token: token, Slot: -1, Hold: 1, Left: op.TTL, Deadline: op.Sent + op.TTL}}
	return op
}

func (s *script) does(sent, done int, verb Verb, owner string, verdict Verdict, more ...Op) *Op {
	op := Op{}
	if len(more) > 0 {
		op = more[0]
	}
	op.Verb, op.Owner, op.Verdict, op.TTL = verb, owner, verdict, 100*ms
	return s.add(sent, done, op)
}

// looks has somebody look every 100 ms, who sees an exclusive holder and some waiters.
func (s *script) looks(from, until int, holder string, waiters ...string) {
	look := Look{}
	if holder != "" {
		look.Holders = []Shown{{Owner: holder}}
	}
	for _, waiter := range waiters {
		look.Waiters = append(look.Waiters, Shown{Owner: waiter})
	}
	s.shows(from, until, look)
}

func (s *script) shows(from, until int, look Look) {
	look.Name = "n"
	for at := from; at <= until; at += 100 {
		look.Sent, look.Done = Time(at)*ms, Time(at+1)*ms
		s.h.Looks = append(s.h.Looks, look)
		s.h.End = max(s.h.End, look.Done)
	}
}

var (
	killed = Trouble{What: "gateway-kill", From: 10 * ms, Until: 1000 * ms, Calm: 5000 * ms, Restart: true, Killed: true}
	shared = Op{Mode: "shared"}
	two    = Op{Mode: "shared", Limit: 2}
)

// What is legal passes, and every kind of fault is found, told as what it is.
func TestCheck(t *testing.T) {
	quorum := func(r *Rules) { *r = RulesOf(system.Quorum) }
	for _, c := range []struct {
		what    string
		promise string // empty: legal
		rules   func(*Rules)
		make    func(*script)
	}{
		{"one after the other", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 6, Release, "a", Ended)
			s.grant(6, 8, "b", 11)
		}},
		{"the next is granted before the release is answered", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.grant(4, 6, "b", 11)
			s.does(5, 9, Release, "a", Ended)
		}},
		{"two at once", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.grant(4, 6, "b", 11)
			s.does(8, 9, Release, "a", Ended)
		}},
		{"two at once, and both let their lease run out", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.grant(4, 6, "b", 11)
		}},
		{"a token that is lower", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 6, Release, "a", Ended)
			s.grant(7, 8, "b", 9)
		}},
		{"a token that was there before", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 6, Release, "a", Ended)
			s.grant(7, 8, "b", 10)
		}},
		{"tokens of two that overlap may come in any order", "", nil, func(s *script) {
			s.grant(0, 9, "a", 11, shared)
			s.grant(1, 8, "b", 10, shared)
		}},
		{"an expiry that is early", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.grant(80, 95, "b", 11)
		}},
		{"an expiry in time", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.grant(80, 101, "b", 11)
			s.does(110, 111, Renew, "a", Lost)
		}},
		{"lost before the deadline", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(50, 51, Renew, "a", Lost)
		}},
		{"lost to an administrator", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.add(20, 30, Op{Verb: Break, Token: 10, Verdict: Ended})
			s.does(50, 51, Renew, "a", Lost)
			s.grant(55, 56, "b", 11)
		}},
		{"a break that broke nothing", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.add(20, 30, Op{Verb: Break, Token: 10, Verdict: Ended})
			s.renew(50, 51, "a", 10, "")
		}},
		{"a live token that can't be broken", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.add(20, 30, Op{Verb: Break, Token: 10, Verdict: Lost})
		}},
		{"an expiry that is late", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.renew(1500, 1501, "a", 10, "")
		}},
		{"a renewal keeps the lease", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.renew(90, 91, "a", 10, "")
			s.renew(180, 181, "a", 10, "")
		}},
		{"a renewal that brings the lease back", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.grant(120, 121, "b", 11)
			s.does(125, 126, Release, "b", Ended)
			s.renew(130, 131, "a", 10, "")
		}},
		{"a renewal with another token", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.renew(50, 51, "a", 11, "")
		}},
		{"a stranger that renews", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.renew(50, 51, "a", 10, "").Lease = "a.wrong"
		}},
		{"a stranger that is refused", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(50, 51, Release, "a", Lost).Lease = "a.wrong"
			s.renew(60, 61, "a", 10, "")
		}},
		{"a release whose answer was lost, and was done", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 6, Release, "a", Unknown)
			s.grant(7, 8, "b", 11)
		}},
		{"a release whose answer was lost, and was not done", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 6, Release, "a", Unknown)
			s.add(7, 8, Op{Verb: Acquire, Owner: "b", Mode: "exclusive", Verdict: Refused, Status: 423})
			s.renew(9, 10, "a", 10, "")
		}},
		{"a release that is repeated", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			first := s.does(5, 6, Release, "a", Unknown).ID
			s.grant(7, 8, "b", 11)
			s.does(9, 10, Release, "a", Ended).Call = first
		}},
		{"an acquire whose answer was lost, and that is repeated", "", nil, func(s *script) {
			first := s.does(0, 1, Acquire, "a", Unknown).ID
			s.does(2, 3, Acquire, "b", Refused)
			s.grant(4, 5, "a", 10, Op{Call: first})
		}},
		{"refused by nobody", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(2, 3, Release, "a", Ended)
			s.add(7, 8, Op{Verb: Acquire, Owner: "b", Mode: "exclusive", Verdict: Refused, Status: 423})
		}},
		{"readers together", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10, shared)
			s.grant(2, 3, "b", 11, shared)
			s.grant(4, 5, "c", 12, shared)
		}},
		{"a writer beside a reader", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10, shared)
			s.grant(2, 3, "b", 11)
		}},
		{"a third permit of two", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10, two)
			s.grant(2, 3, "b", 11, two)
			s.grant(4, 5, "c", 12, two)
		}},
		{"one slot twice", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10, two)
			s.grant(2, 3, "b", 12, two)
		}},
		{"stepping down lets readers in", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.renew(5, 6, "a", 10, "shared")
			s.grant(7, 8, "b", 11, shared)
		}},
		{"a depth that was skipped", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.grant(2, 3, "a", 10, Op{Hold: 3})
		}},
		{"deeper and back", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.grant(2, 3, "a", 10, Op{Hold: 2})
			s.does(4, 5, Release, "a", Granted).Hold = 2
			s.grant(6, 7, "a", 10)
			s.does(8, 9, Release, "a", Ended)
			s.grant(9, 10, "b", 11)
		}},
		{"deeper, perhaps back, and over when its last term is", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.grant(40, 41, "a", 10, Op{Hold: 2})
			s.does(50, 60, Release, "a", Unknown).Hold = 2
			s.grant(55, 150, "b", 11)
			s.does(145, 151, Release, "a", Lost)
		}},
		{"deeper, perhaps back, and over before its last term is", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.grant(40, 41, "a", 10, Op{Hold: 2})
			s.does(50, 60, Release, "a", Unknown).Hold = 2
			s.grant(55, 110, "b", 11)
			s.does(145, 151, Release, "a", Lost)
		}},
		{"shortened by a renewal whose first answer was lost", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.grant(5, 45, "b", 11)
			s.does(20, 60, Renew, "a", Lost).TTL = 10 * ms
		}},
		{"lost before such a renewal could have shortened it", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.grant(5, 25, "b", 11)
			s.does(20, 60, Renew, "a", Lost).TTL = 50 * ms
		}},
		{"broken, after a fail-over forgot its release", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 6, Release, "a", Ended)
			s.h.Troubles = []Trouble{{What: "fail-over", From: 10 * ms, Until: 30 * ms, Calm: 60 * ms, Forgets: true}}
			s.does(40, 41, Break, "", Ended).Token = 10
		}},
		{"broken after its release", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 6, Release, "a", Ended)
			s.does(40, 41, Break, "", Ended).Token = 10
		}},
		{"a lease id that was released is granted again", "P7", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(2, 3, Release, "a", Ended)
			s.grant(4, 5, "a", 11)
		}},
		{"a release that is told otherwise when it is repeated", "P7", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			first := s.does(2, 3, Release, "a", Ended).ID
			s.does(4, 5, Release, "a", Lost).Call = first
			s.grant(6, 7, "b", 11)
		}},
		{"a release that is repeated after a flush", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			first := s.does(2, 3, Release, "a", Ended).ID
			s.h.Troubles = []Trouble{{What: "flush", From: 10 * ms, Until: 12 * ms, Calm: 20 * ms, Forgets: true}}
			s.does(14, 15, Release, "a", Lost).Call = first
			s.grant(16, 17, "b", 11)
		}},
		{"a release that a master carried out, and the next one knows nothing of", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.grant(2, 9, "b", 11)
			s.h.Troubles = []Trouble{{What: "master-stop", From: 3 * ms, Until: 12 * ms, Calm: 60 * ms, Forgets: true, Split: true}}
			s.does(5, 11, Release, "a", Lost)
		}},
		{"granted before such a release", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.grant(2, 4, "b", 11)
			s.h.Troubles = []Trouble{{What: "master-stop", From: 3 * ms, Until: 12 * ms, Calm: 60 * ms, Forgets: true, Split: true}}
			s.does(5, 11, Release, "a", Lost)
		}},
		{"an unwinding that one master has not heard of the lease for, and the other has", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.h.Troubles = []Trouble{{What: "fail-over", From: 2 * ms, Until: 60 * ms, Calm: 90 * ms, Forgets: true, Split: true}}
			s.grant(3, 4, "a", 10, Op{Hold: 2})
			unwound := s.does(5, 6, Release, "a", Lost)
			unwound.Hold, unwound.Reason = 2, "unknown"
			s.renew(8, 9, "a", 10, "")
			s.does(10, 11, Release, "a", Ended)
		}},
		{"such an unwinding with one master", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.grant(3, 4, "a", 10, Op{Hold: 2})
			unwound := s.does(5, 6, Release, "a", Lost)
			unwound.Hold, unwound.Reason = 2, "unknown"
			s.renew(8, 9, "a", 10, "")
		}},
		{"a release that one master has not heard of the lease for, and the other has", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.h.Troubles = []Trouble{{What: "fail-over", From: 2 * ms, Until: 60 * ms, Calm: 90 * ms, Forgets: true, Split: true}}
			s.does(5, 6, Release, "a", Lost).Reason = "unknown"
			s.grant(8, 9, "a", 10)
		}},
		{"one of two masters says that a lease was let go, and nobody did", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.h.Troubles = []Trouble{{What: "fail-over", From: 2 * ms, Until: 60 * ms, Calm: 90 * ms, Forgets: true, Split: true}}
			s.does(5, 6, Renew, "a", Lost).Reason = "released"
			s.renew(8, 9, "a", 10, "")
		}},
		{"a release and a break that the next master has not heard of", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.h.Troubles = []Trouble{{What: "fail-over", From: 2 * ms, Until: 60 * ms, Calm: 90 * ms, Forgets: true, Split: true}}
			s.does(5, 6, Release, "a", Ended)
			s.grant(8, 9, "a", 10)
			s.add(10, 11, Op{Verb: Break, Token: 10, Verdict: Ended})
			s.renew(70, 71, "a", 10, "")
		}},
		{"a release that the next master has not heard of, and a lease that lives on for longer", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.h.Troubles = []Trouble{{What: "fail-over", From: 2 * ms, Until: 60 * ms, Calm: 90 * ms, Forgets: true, Split: true}}
			s.does(5, 6, Release, "a", Ended)
			s.renew(1200, 1201, "a", 10, "")
		}},
		{"granted with no time left", "P9", nil, func(s *script) {
			s.grant(0, 1, "a", 10).Grants[0].Left = 0
		}},
		{"a flush with a quarantine", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.h.Troubles = []Trouble{{What: "flush", From: 10 * ms, Until: 12 * ms, Calm: 20 * ms, Forgets: true}}
			s.does(30, 31, Renew, "a", Lost)
			s.grant(101, 102, "b", 11)
		}},
		{"a flush whose quarantine is too short", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.h.Troubles = []Trouble{{What: "flush", From: 10 * ms, Until: 12 * ms, Calm: 20 * ms, Forgets: true}}
			s.grant(60, 61, "b", 11)
		}},
		{"a flush without a quarantine", "", func(r *Rules) { r.NoQuarantine = true }, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.h.Troubles = []Trouble{{What: "flush", From: 10 * ms, Until: 12 * ms, Calm: 20 * ms, Forgets: true}}
			s.grant(60, 61, "b", 11)
			s.does(70, 71, Renew, "a", Lost)
		}},
		{"a flush without a quarantine, and the lease is asked for again", "", func(r *Rules) { r.NoQuarantine = true }, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.h.Troubles = []Trouble{{What: "flush", From: 10 * ms, Until: 12 * ms, Calm: 20 * ms, Forgets: true}}
			s.grant(60, 61, "a", 11)
		}},
		{"a lease that is asked for again has another token", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.grant(60, 61, "a", 11)
		}},
		{"a flush without a quarantine, and a token that is lower", "order", func(r *Rules) { r.NoQuarantine = true }, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.h.Troubles = []Trouble{{What: "flush", From: 10 * ms, Until: 12 * ms, Calm: 20 * ms, Forgets: true}}
			s.grant(60, 61, "b", 1)
		}},
		{"two masters for a moment, of which one knows the lease", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.h.Troubles = []Trouble{{What: "fail-over", From: 10 * ms, Until: 60 * ms, Calm: 60 * ms, Forgets: true, Split: true}}
			s.does(20, 21, Renew, "a", Lost).Reason = "unknown"
			s.renew(25, 26, "a", 10, "")
			s.does(70, 71, Release, "a", Lost)
			s.grant(126, 127, "b", 11)
		}},
		{"two masters that both grant", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.h.Troubles = []Trouble{{What: "fail-over", From: 10 * ms, Until: 60 * ms, Calm: 60 * ms, Forgets: true, Split: true}}
			s.grant(20, 21, "b", 11)
		}},
		{"a break that crosses a release, at one store", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.add(20, 30, Op{Verb: Break, Token: 10, Verdict: Ended})
			s.does(21, 29, Release, "a", Ended)
		}},
		{"a break that crosses a release, at several nodes", "", quorum, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.add(20, 30, Op{Verb: Break, Token: 10, Verdict: Ended})
			s.does(21, 29, Release, "a", Ended)
		}},
		{"a restart of the embedded store", "", func(r *Rules) { *r = RulesOf(system.Embedded) }, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.h.Troubles = []Trouble{{What: "gateway-kill", From: 50 * ms, Until: 1400 * ms, Calm: 1500 * ms, Restart: true}}
			s.renew(1490, 1491, "a", 10, "")
		}},

		{"killed before a release was flushed", "", func(r *Rules) { *r = RulesOf(system.Embedded) }, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 6, Release, "a", Ended)
			s.h.Troubles = []Trouble{killed}
			s.add(1060, 1061, Op{Verb: Break, Token: 10, Verdict: Ended})
		}},
		{"killed after a release was flushed", "order", func(r *Rules) { *r = RulesOf(system.Embedded) }, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 6, Release, "a", Ended)
			s.add(7, 9, Op{Verb: Break, Token: 3, Verdict: Ended, Names: []string{"another"}}) // flushed, and all before it
			s.h.Troubles = []Trouble{killed}
			s.add(1060, 1061, Op{Verb: Break, Token: 10, Verdict: Ended})
		}},
		{"killed before a release was flushed, and a break at the same time was", "", func(r *Rules) { *r = RulesOf(system.Embedded) }, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 8, Release, "a", Ended)
			s.add(7, 9, Op{Verb: Break, Token: 3, Verdict: Ended, Names: []string{"another"}})
			s.h.Troubles = []Trouble{killed}
			s.add(1060, 1061, Op{Verb: Break, Token: 10, Verdict: Ended})
		}},
		{"killed before a release was flushed, and granted to another", "order", func(r *Rules) { *r = RulesOf(system.Embedded) }, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 6, Release, "a", Ended)
			s.h.Troubles = []Trouble{killed}
			s.grant(1010, 1011, "b", 11)
			s.add(1060, 1061, Op{Verb: Break, Token: 10, Verdict: Ended})
		}},
		{"killed before a renewal that shortens was flushed", "", func(r *Rules) { *r = RulesOf(system.Embedded) }, func(s *script) {
			s.grant(0, 1, "a", 10, Op{TTL: 4000 * ms})
			s.renew(5, 6, "a", 10, "")
			s.h.Troubles = []Trouble{killed}
			s.add(4900, 4901, Op{Verb: Break, Token: 10, Verdict: Ended})
		}},
		{"killed after a renewal that shortens was flushed", "order", func(r *Rules) { *r = RulesOf(system.Embedded) }, func(s *script) {
			s.grant(0, 1, "a", 10, Op{TTL: 4000 * ms})
			s.renew(5, 6, "a", 10, "")
			s.add(7, 9, Op{Verb: Break, Token: 3, Verdict: Ended, Names: []string{"another"}})
			s.h.Troubles = []Trouble{killed}
			s.add(4900, 4901, Op{Verb: Break, Token: 10, Verdict: Ended})
		}},
		{"killed, and a grant is not there any more", "order", func(r *Rules) { *r = RulesOf(system.Embedded) }, func(s *script) {
			s.grant(0, 1, "a", 10, Op{TTL: 4000 * ms})
			s.h.Troubles = []Trouble{killed}
			s.does(1060, 1061, Renew, "a", Lost).Reason = "unknown"
		}},

		// By time.
		{"a waiter that is not woken", "P5", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.grant(5, 3700, "b", 11, Op{Wait: 5000 * ms})
			s.does(10, 11, Release, "a", Ended)
			s.looks(100, 3700, "", "b")
		}},
		{"a waiter that was granted the lock and is not told", "P5", nil, func(s *script) {
			s.does(0, 5000, Acquire, "b", Unknown).Wait = 5000 * ms
			s.looks(0, 5000, "b")
		}},
		{"a waiter that is nowhere", "P5", nil, func(s *script) {
			s.does(0, 5000, Acquire, "b", Refused).Wait = 5000 * ms
			s.looks(0, 5000, "a")
		}},
		{"a permit is free, and the first of the queue waits", "P5", nil, func(s *script) {
			s.does(0, 5000, Acquire, "b", Refused, two).Wait = 5000 * ms
			s.shows(0, 5000, Look{Holders: []Shown{{Owner: "a", Mode: "shared", Limit: 2}}, Waiters: []Shown{{Owner: "b"}}})
		}},
		{"all permits are taken", "", nil, func(s *script) {
			s.does(0, 5000, Acquire, "b", Refused, two).Wait = 5000 * ms
			permit := Shown{Owner: "a", Mode: "shared", Limit: 2}
			s.shows(0, 5000, Look{Holders: []Shown{permit, permit}, Waiters: []Shown{{Owner: "b"}}})
		}},
		{"a permit is free, and somebody is first who needs the whole lock", "", nil, func(s *script) {
			s.does(0, 5000, Acquire, "w", Refused).Wait = 5000 * ms
			s.does(1, 5000, Acquire, "b", Refused, two).Wait = 5000 * ms
			s.shows(0, 5000, Look{Holders: []Shown{{Owner: "a", Mode: "shared", Limit: 2}}, Waiters: []Shown{{Owner: "w"}, {Owner: "b"}}})
		}},
		{"a waiter behind the place of somebody who was refused", "P5", nil, func(s *script) {
			s.does(0, 100, Acquire, "w", Refused).Wait = 100 * ms
			s.does(1, 5000, Acquire, "b", Refused).Wait = 5000 * ms
			s.looks(0, 5000, "", "w", "b")
		}},
		{"a waiter that is woken", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.grant(5, 40, "b", 11, Op{Wait: 5000 * ms})
			s.does(10, 11, Release, "a", Ended)
		}},
		{"a waiter that runs out while nobody holds", "P5", nil, func(s *script) {
			s.does(0, 5000, Acquire, "b", Refused).Wait = 5000 * ms
			s.looks(0, 5000, "", "b")
		}},
		{"a waiter while an incomplete set holds", "", nil, func(s *script) {
			s.does(0, 5000, Acquire, "b", Refused).Wait = 5000 * ms
			s.add(0, 5000, Op{Verb: Acquire, Owner: "set", Names: []string{"m", "n"}, Verdict: Refused, Wait: 5000 * ms})
			s.looks(0, 5000, "set", "b")
		}},
		{"an answer that comes long after the wait", "P5", nil, func(s *script) {
			s.grant(0, 1, "a", 10, Op{TTL: 9000 * ms})
			s.does(5, 5000, Acquire, "b", Refused).Wait = 1000 * ms
		}},
		{"overtaken", "P5", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			b := s.grant(5, 90, "b", 12, Op{Wait: 1000 * ms})
			b.Grants[0].Token = 12
			s.looks(20, 20, "a", "b")
			s.does(30, 31, Release, "a", Ended)
			s.grant(40, 41, "c", 11)
			s.does(42, 43, Release, "c", Ended)
		}},
		{"readers that stream past a writer", "P5", nil, func(s *script) {
			s.grant(0, 1, "a", 10, Op{Mode: "shared", TTL: 3000 * ms})
			w := s.does(5, 2000, Acquire, "w", Refused)
			w.Wait, w.Mode = 1995*ms, "exclusive"
			s.looks(20, 20, "a", "w")
			s.grant(40, 41, "c", 11, shared)
		}},
		{"a lease that is shown after its TTL", "P4", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.looks(0, 2000, "a")
		}},
		{"a lease that is shown after it was released", "P4", nil, func(s *script) {
			s.grant(0, 1, "a", 10, Op{TTL: 4000 * ms})
			s.does(10, 11, Release, "a", Ended)
			s.looks(0, 2000, "a")
		}},
		{"a lease that was released, and stays at a node until its TTL", "", quorum, func(s *script) {
			s.grant(0, 1, "a", 10, Op{TTL: 4000 * ms})
			s.does(10, 11, Release, "a", Ended)
			s.looks(0, 4000, "a")
		}},
		{"a lease that was released, and stays at a node for longer", "P4", quorum, func(s *script) {
			s.grant(0, 1, "a", 10, Op{TTL: 1000 * ms})
			s.does(10, 11, Release, "a", Ended)
			s.looks(0, 4000, "a")
		}},
		{"a lease of somebody who left", "P6", nil, func(s *script) {
			op := s.does(0, 5, Acquire, "a", Left)
			op.TTL = 9000 * ms
			s.does(6, 7, Acquire, "b", Left)
			s.looks(0, 3000, "a")
		}},
		{"a place of somebody who left", "P5", nil, func(s *script) {
			s.does(0, 5, Acquire, "a", Left)
			s.looks(0, 3000, "", "a")
		}},
		{"a lease of somebody who left, for a moment", "", nil, func(s *script) {
			s.does(0, 5, Acquire, "a", Left)
			s.looks(0, 900, "a")
			s.looks(1000, 3000, "")
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			rules := RulesOf(system.Redis)
			rules.Kept = 0
			if c.rules != nil {
				c.rules(&rules)
			}
			s := &script{}
			c.make(s)
			slices.SortStableFunc(s.h.Ops, func(a, b Op) int { return cmp.Compare(a.ID, b.ID) })
			var promises []string
			found := Check(&s.h, rules, t.TempDir())
			for _, v := range found {
				promises = append(promises, v.Promise)
				if v.Promise == "order" && v.Picture == "" {
					t.Error("there is no picture")
				}
			}
			if got := strings.Join(slices.Compact(promises), " "); got != c.promise {
				t.Errorf("found %q, want %q: %v", got, c.promise, found)
			}
		})
	}
}
