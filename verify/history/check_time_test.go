package history

import "testing"

// Who waits is served in turn and told, and who left or whose time is over is not shown.
func TestCheckTime(t *testing.T) {
	checkCases(t, []checkCase{
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
		{"overtaken when its wait was over, and told later", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10, Op{TTL: 1200 * ms})
			s.does(5, 3000, Acquire, "b", Refused).Wait = 1000 * ms
			s.looks(20, 20, "a", "b")
			s.grant(40, 2000, "c", 11, Op{Wait: 4000 * ms})
		}},
		{"overtaken before its wait was over", "P5", nil, func(s *script) {
			s.grant(0, 1, "a", 10, Op{TTL: 400 * ms})
			s.does(5, 3000, Acquire, "b", Refused).Wait = 1000 * ms
			s.looks(20, 20, "a", "b")
			s.grant(40, 600, "c", 11, Op{Wait: 4000 * ms})
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
		{"a lease that was released, and stays at a node until its TTL", "", ofQuorum, func(s *script) {
			s.grant(0, 1, "a", 10, Op{TTL: 4000 * ms})
			s.does(10, 11, Release, "a", Ended)
			s.looks(0, 4000, "a")
		}},
		{"a lease that was released, and stays at a node for longer", "P4", ofQuorum, func(s *script) {
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
	})
}
