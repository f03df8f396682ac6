package history

import "testing"

func TestDelays(t *testing.T) {
	delayed := Op{LockDelay: 200 * ms}
	checkCases(t, []checkCase{
		{"a grant after the delay", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10, delayed)
			s.grant(310, 311, "b", 11)
		}},
		{"a grant before the delay is over", "delay", nil, func(s *script) {
			s.grant(0, 1, "a", 10, delayed)
			s.grant(200, 210, "b", 11)
		}},
		{"a reader is let in before the delay is over", "delay", nil, func(s *script) {
			s.grant(0, 1, "a", 10, delayed)
			s.grant(200, 210, "b", 11, shared)
		}},
		{"a grant before the delay of a renewed lease is over", "delay", nil, func(s *script) {
			s.grant(0, 1, "a", 10, delayed)
			s.renew(50, 51, "a", 10, "")
			s.grant(310, 320, "b", 11)
		}},
		{"a grant after a release", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10, delayed)
			s.does(10, 11, Release, "a", Ended)
			s.grant(12, 13, "b", 11)
		}},
		{"a grant after a release of several names, of which others were lost", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10, delayed)
			s.does(10, 11, Release, "a", Lost, Op{Names: []string{"m", "n"}, Missing: []string{"m"}})
			s.grant(12, 13, "b", 11)
		}},
		{"a grant after a release that says it was lost", "delay", nil, func(s *script) {
			s.grant(0, 1, "a", 10, delayed)
			s.does(210, 211, Release, "a", Lost)
			s.grant(220, 221, "b", 11)
		}},
		{"a grant after a release of which nothing is known", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10, delayed)
			s.does(10, 11, Release, "a", Unknown)
			s.grant(12, 13, "b", 11)
		}},
		{"a grant before the delay after a break is over", "delay", nil, func(s *script) {
			s.grant(0, 1, "a", 10, Op{LockDelay: 200 * ms, TTL: 5000 * ms})
			s.add(20, 21, Op{Verb: Break, Verdict: Ended, Token: 10})
			s.grant(150, 151, "b", 11)
		}},
		{"a grant after the delay of a break", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10, Op{LockDelay: 200 * ms, TTL: 5000 * ms})
			s.add(20, 21, Op{Verb: Break, Verdict: Ended, Token: 10})
			s.grant(222, 223, "b", 11)
		}},
		{"a reader beside a reader", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10, Op{Mode: "shared", LockDelay: 200 * ms})
			s.grant(50, 51, "b", 11, shared)
		}},
		{"a refusal of a lock that is free, but delayed", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10, delayed)
			s.does(250, 251, Acquire, "b", Refused, Op{Mode: "exclusive", Status: 423, Code: "locked", Delayed: true})
		}},
		{"a waiter at a lock that is free, but delayed", "", nil, func(s *script) {
			s.does(0, 5000, Acquire, "b", Refused).Wait = 5000 * ms
			s.shows(0, 5000, Look{Delayed: true, Waiters: []Shown{{Owner: "b"}}})
		}},
		{"while something fails", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10, delayed)
			s.grant(200, 210, "b", 11)
			s.h.Troubles = append(s.h.Troubles, Trouble{What: "fail-over", From: 50 * ms, Until: 60 * ms, Calm: 70 * ms, Forgets: true})
		}},
	})
}
