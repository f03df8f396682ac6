package history

import "testing"

// What there is one order for, and what not.
func TestCheck(t *testing.T) {
	checkCases(t, []checkCase{
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
		{"several permits beside others", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10, Op{Mode: "shared", Limit: 3, Permits: 2})
			s.grant(2, 3, "b", 12, Op{Mode: "shared", Limit: 3})
		}},
		{"more permits than there are", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10, Op{Mode: "shared", Limit: 2, Permits: 2})
			s.grant(2, 3, "b", 12, Op{Mode: "shared", Limit: 5})
		}},
		{"a slot of several twice", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10, Op{Mode: "shared", Limit: 5, Permits: 2})
			s.grant(2, 3, "b", 12, Op{Mode: "shared", Limit: 5, Permits: 2})
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
	})
}
