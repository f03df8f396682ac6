package history

import "testing"

// What a fail-over, a flush, a kill -9 and nodes that disagree explain, and no more.
func TestCheckFaults(t *testing.T) {
	checkCases(t, []checkCase{
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
		{"a release that is repeated after a clock was ahead", "", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			first := s.does(2, 3, Release, "a", Ended).ID
			s.h.Troubles = []Trouble{{What: "clock", From: 10 * ms, Until: 12 * ms, Calm: 20 * ms, Ends: true}}
			s.does(14, 15, Release, "a", Lost).Call = first
			s.grant(16, 17, "b", 11)
		}},
		{"what lived while a clock was ahead is granted to another", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.h.Troubles = []Trouble{{What: "clock", From: 10 * ms, Until: 12 * ms, Calm: 20 * ms, Ends: true}}
			s.grant(14, 15, "b", 11)
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
		{"a break that crosses a release, at several nodes", "", ofQuorum, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.add(20, 30, Op{Verb: Break, Token: 10, Verdict: Ended})
			s.does(21, 29, Release, "a", Ended)
		}},
		{"a break that comes first at one node, and the release at most", "", ofQuorum, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 9, Release, "a", Lost, Op{Reason: "broken"})
			s.add(5, 8, Op{Verb: Break, Token: 10, Verdict: Lost})
		}},
		{"such a break at one store", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 9, Release, "a", Lost, Op{Reason: "broken"})
			s.add(5, 8, Op{Verb: Break, Token: 10, Verdict: Lost})
		}},
		{"stepping down, whose first answer was lost, and the time is over when it is asked again", "", nil, func(s *script) {
			s.h.Troubles = []Trouble{{What: "swallow-reply", From: 10 * ms, Until: 20 * ms, Calm: 500 * ms}}
			s.grant(0, 1, "a", 10)
			s.does(12, 300, Renew, "a", Lost, Op{Mode: "shared", Reason: "expired"})
			s.grant(13, 15, "b", 11, shared)
		}},
		{"stepping down, which is refused, and whose first answer can't have been lost", "order", nil, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(12, 300, Renew, "a", Lost, Op{Mode: "shared", Reason: "expired"})
			s.grant(13, 15, "b", 11, shared)
		}},
		{"a restart of the embedded store", "", ofEmbedded, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.h.Troubles = []Trouble{{What: "gateway-kill", From: 50 * ms, Until: 1400 * ms, Calm: 1500 * ms, Restart: true}}
			s.renew(1490, 1491, "a", 10, "")
		}},

		{"killed before a release was flushed", "", ofEmbedded, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 6, Release, "a", Ended)
			s.h.Troubles = []Trouble{killed}
			s.add(1060, 1061, Op{Verb: Break, Token: 10, Verdict: Ended})
		}},
		{"killed after a release was flushed", "order", ofEmbedded, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 6, Release, "a", Ended)
			s.add(7, 9, Op{Verb: Break, Token: 3, Verdict: Ended, Names: []string{"another"}}) // flushed, and all before it
			s.h.Troubles = []Trouble{killed}
			s.add(1060, 1061, Op{Verb: Break, Token: 10, Verdict: Ended})
		}},
		{"killed before a release was flushed, and a break at the same time was", "", ofEmbedded, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 8, Release, "a", Ended)
			s.add(7, 9, Op{Verb: Break, Token: 3, Verdict: Ended, Names: []string{"another"}})
			s.h.Troubles = []Trouble{killed}
			s.add(1060, 1061, Op{Verb: Break, Token: 10, Verdict: Ended})
		}},
		{"killed before a release was flushed, and granted to another", "order", ofEmbedded, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 6, Release, "a", Ended)
			s.h.Troubles = []Trouble{killed}
			s.grant(1010, 1011, "b", 11)
			s.add(1060, 1061, Op{Verb: Break, Token: 10, Verdict: Ended})
		}},
		{"killed before a renewal that shortens was flushed", "", ofEmbedded, func(s *script) {
			s.grant(0, 1, "a", 10, Op{TTL: 4000 * ms})
			s.renew(5, 6, "a", 10, "")
			s.h.Troubles = []Trouble{killed}
			s.add(4900, 4901, Op{Verb: Break, Token: 10, Verdict: Ended})
		}},
		{"killed after a renewal that shortens was flushed", "order", ofEmbedded, func(s *script) {
			s.grant(0, 1, "a", 10, Op{TTL: 4000 * ms})
			s.renew(5, 6, "a", 10, "")
			s.add(7, 9, Op{Verb: Break, Token: 3, Verdict: Ended, Names: []string{"another"}})
			s.h.Troubles = []Trouble{killed}
			s.add(4900, 4901, Op{Verb: Break, Token: 10, Verdict: Ended})
		}},
		{"killed, and a grant is not there any more", "order", ofEmbedded, func(s *script) {
			s.grant(0, 1, "a", 10, Op{TTL: 4000 * ms})
			s.h.Troubles = []Trouble{killed}
			s.does(1060, 1061, Renew, "a", Lost).Reason = "unknown"
		}},
	})
}
