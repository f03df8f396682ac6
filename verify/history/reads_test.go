package history

import (
	"strings"
	"testing"

	"fencepost/verify/system"
)

// What is looked at is as it was at one moment between the request and its answer.
func TestCheckReads(t *testing.T) {
	show := func(s *script, at int, token int64) {
		look := Look{}
		if token != 0 {
			look.Holders = []Shown{{Owner: "a", Token: token}}
		}
		s.shows(at, at, look)
	}
	says := func(s *script, sent, done int, token int64, verdict string, issued int64) {
		s.h.Verdicts = append(s.h.Verdicts, Judged{Name: "n", Sent: Time(sent) * ms, Done: Time(done) * ms, Token: token, Verdict: verdict, Issued: issued})
	}
	for _, c := range []struct {
		what  string
		fault string // what is said of it; empty: legal
		of    system.Kind
		make  func(*script)
	}{
		{"a look that shows what has ended", "0.0080s-0.0090s GET n shows the holders [{a 10", system.Raft, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 6, Release, "a", Ended)
			show(s, 8, 10)
		}},
		{"a look that shows what was broken", "0.0080s-0.0090s GET n shows the holders [{a 10", system.Raft, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 6, Break, "", Ended, Op{Token: 10})
			show(s, 8, 10)
		}},
		{"a look that shows what has ended, of another store", "", system.Redis, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 6, Release, "a", Ended)
			show(s, 8, 10)
		}},
		{"a look beside a release", "", system.Raft, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 9, Release, "a", Ended)
			show(s, 8, 10)
			show(s, 7, 0)
		}},
		{"a look that does not show what lives", "0.0080s-0.0090s GET n shows the holders []", system.Raft, func(s *script) {
			s.grant(0, 1, "a", 10)
			show(s, 8, 0)
		}},
		{"a look that does not show what was renewed", "0.1500s-0.1510s GET n shows the holders []", system.Raft, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.renew(90, 95, "a", 10, "")
			show(s, 150, 0)
		}},
		{"a look after a renewal that shortens", "", system.Raft, func(s *script) {
			s.grant(0, 1, "a", 10, Op{TTL: 1000 * ms})
			s.renew(90, 95, "a", 10, "")
			show(s, 250, 0)
		}},
		{"a look after the deadline that shows the lease, and one that does not", "", system.Raft, func(s *script) {
			s.grant(0, 1, "a", 10)
			show(s, 100, 10)
			show(s, 200, 0)
		}},
		{"a look that goes back behind the one before it, beside a release", "0.0120s-0.0130s GET n shows the holders [{a 10", system.Raft, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 50, Release, "a", Ended)
			show(s, 10, 0)
			show(s, 12, 10)
		}},
		{"a look that goes back behind the one before it, beside a grant", "0.0120s-0.0130s GET n shows the holders []", system.Embedded, func(s *script) {
			s.grant(5, 50, "a", 10)
			show(s, 10, 10)
			show(s, 12, 0)
		}},
		{"looks beside a grant", "", system.Embedded, func(s *script) {
			s.grant(5, 50, "a", 10)
			show(s, 10, 0)
			show(s, 12, 10)
		}},
		{"a look after which the gateway of a lease was not heard of, which tells of it later", "", system.Raft, func(s *script) {
			s.grant(0, 50, "a", 10)
			show(s, 5, 10)
			show(s, 8, 0)
			show(s, 60, 10)
		}},
		{"a look that does not show what was told", "0.0600s-0.0610s GET n shows the holders []", system.Raft, func(s *script) {
			s.grant(0, 50, "a", 10)
			show(s, 8, 0)
			show(s, 60, 0)
		}},
		{"a look that goes back behind the end of a lease that ran out", "0.1200s-0.1210s GET n shows the holders [{a 10", system.Raft, func(s *script) {
			s.grant(0, 1, "a", 10)
			show(s, 105, 0)
			show(s, 120, 10)
		}},
		{"a look before a restart, which has leases begin anew", "", system.Embedded, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.h.Troubles = []Trouble{{What: "gateway-kill", From: 110 * ms, Until: 115 * ms, Calm: 5000 * ms, Restart: true, Killed: true}}
			show(s, 105, 0)
			show(s, 120, 10)
		}},
		{"a look at a release that a kill has undone", "", system.Embedded, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 6, Release, "a", Ended)
			s.h.Troubles = []Trouble{killed}
			show(s, 1010, 10)
		}},
		{"a look at a release before the kill, which it has on disk", "1.3000s-1.3010s GET n shows the holders [{a 10", system.Embedded, func(s *script) {
			s.grant(0, 1, "a", 10, Op{TTL: 4000 * ms})
			s.does(5, 6, Release, "a", Ended)
			show(s, 8, 0)
			s.h.Troubles = []Trouble{{What: "gateway-kill", From: 1100 * ms, Until: 1200 * ms, Calm: 5000 * ms, Restart: true, Killed: true}}
			show(s, 1300, 10)
		}},
		{"a look at the time of the kill, which that may undo", "", system.Embedded, func(s *script) {
			s.grant(0, 1, "a", 10, Op{TTL: 4000 * ms})
			s.does(5, 6, Release, "a", Ended)
			show(s, 8, 0)
			s.h.Troubles = []Trouble{killed}
			show(s, 1010, 10)
		}},
		{"a look at a release that was on disk before the kill", "1.0100s-1.0110s GET n shows the holders [{a 10", system.Embedded, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(2, 3, Release, "a", Ended)
			s.grant(4, 5, "b", 11)
			s.h.Troubles = []Trouble{killed}
			show(s, 1010, 10)
		}},
		{"a look that shows the token of another", "0.0080s-0.0090s GET n shows the holders [{b 10", system.Raft, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.shows(8, 8, Look{Holders: []Shown{{Owner: "b", Token: 10}}})
		}},
		{"a look that shows a lease of which nobody was told", "", system.Raft, func(s *script) {
			s.does(0, 100, Acquire, "a", Unknown)
			show(s, 8, 10)
			show(s, 18, 0)
			s.grant(20, 21, "b", 11)
		}},
		{"a look that shows two of three readers", "0.0080s-0.0090s GET n shows the holders [{a 10", system.Raft, func(s *script) {
			for i, owner := range []string{"a", "b", "c"} {
				s.grant(2*i, 2*i+1, owner, int64(10+i), shared)
			}
			s.shows(8, 8, Look{Holders: []Shown{{Owner: "a", Token: 10, Mode: "shared"}, {Owner: "c", Token: 12, Mode: "shared"}}})
		}},
		{"a look that shows what holders were granted", "", system.Raft, func(s *script) {
			s.grant(0, 1, "a", 10, shared)
			s.grant(2, 3, "b", 11, Op{Mode: "shared", Limit: 3, Permits: 2})
			s.shows(8, 8, Look{Holders: []Shown{{Owner: "a", Token: 10, Mode: "shared"}, {Owner: "b", Token: 11, Mode: "shared", Limit: 3, Permits: 2}}})
		}},
		{"a look that shows an exclusive lease as a shared one", "0.0080s-0.0090s GET n shows the holders [{a 10", system.Raft, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.shows(8, 8, Look{Holders: []Shown{{Owner: "a", Token: 10, Mode: "shared", Limit: 7}}})
		}},
		{"a look that shows another limit", "0.0080s-0.0090s GET n shows the holders [{a 10", system.Embedded, func(s *script) {
			s.grant(0, 1, "a", 10, two)
			s.shows(8, 8, Look{Holders: []Shown{{Owner: "a", Token: 10, Mode: "shared", Limit: 3}}})
		}},
		{"a look that shows other permits", "0.0080s-0.0090s GET n shows the holders [{a 10", system.Raft, func(s *script) {
			s.grant(0, 1, "a", 10, Op{Mode: "shared", Limit: 3, Permits: 2})
			s.shows(8, 8, Look{Holders: []Shown{{Owner: "a", Token: 10, Mode: "shared", Limit: 3, Permits: 3}}})
		}},
		{"a look that shows a holder twice", "0.0080s-0.0090s GET n shows the holders [{a 10", system.Raft, func(s *script) {
			s.grant(0, 1, "a", 10, shared)
			s.shows(8, 8, Look{Holders: []Shown{{Owner: "a", Token: 10, Mode: "shared"}, {Owner: "a", Token: 10, Mode: "shared"}}})
		}},
		{"looks beside a downgrade, and after one whose answer was lost", "", system.Embedded, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.renew(10, 20, "a", 10, "shared")
			show(s, 12, 10)
			s.shows(14, 14, Look{Holders: []Shown{{Owner: "a", Token: 10, Mode: "shared"}}})
			s.does(22, 23, Release, "a", Ended)
			s.grant(30, 31, "b", 11)
			s.does(40, 41, Renew, "b", Unknown, Op{Mode: "shared"})
			s.shows(45, 45, Look{Holders: []Shown{{Owner: "b", Token: 11}}})
			s.shows(50, 50, Look{Holders: []Shown{{Owner: "b", Token: 11, Mode: "shared"}}})
		}},
		{"a look that goes back behind a downgrade", "0.0160s-0.0170s GET n shows the holders [{a 10 exclusive", system.Raft, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.renew(10, 20, "a", 10, "shared")
			s.shows(14, 14, Look{Holders: []Shown{{Owner: "a", Token: 10, Mode: "shared"}}})
			s.shows(16, 16, Look{Holders: []Shown{{Owner: "a", Token: 10, Mode: "exclusive"}}})
		}},
		{"a look that shows as many as it may", "", system.Raft, func(s *script) {
			look := Look{}
			for i := range int64(holdersShown) {
				look.Holders = append(look.Holders, Shown{Owner: "x", Token: 20 + i})
			}
			s.grant(0, 1, "a", 10, shared)
			s.shows(8, 8, look)
		}},
		{"verdicts on a lease, and on the one after it", "", system.Raft, func(s *script) {
			s.grant(0, 1, "a", 10)
			says(s, 2, 3, 10, "live", 10)
			s.does(5, 6, Release, "a", Ended)
			says(s, 7, 8, 10, "ended", 10)
			s.grant(9, 10, "b", 11)
			says(s, 11, 12, 10, "superseded", 11)
		}},
		{"verdicts beside a hand-over", "", system.Raft, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 20, Release, "a", Ended)
			s.grant(6, 20, "b", 11)
			says(s, 8, 9, 10, "live", 10)
			says(s, 10, 11, 10, "ended", 10)
			says(s, 12, 13, 10, "superseded", 11)
		}},
		{"a verdict that goes back, beside a hand-over", "0.0120s-0.0130s GET the fence of n says of token 10 that it is live, and of 10", system.Raft, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 20, Release, "a", Ended)
			s.grant(6, 20, "b", 11)
			says(s, 10, 11, 10, "ended", 10)
			says(s, 12, 13, 10, "live", 10)
		}},
		{"a verdict that is live after the release", "0.0070s-0.0080s GET the fence of n says of token 10 that it is live", system.Embedded, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 6, Release, "a", Ended)
			says(s, 7, 8, 10, "live", 10)
		}},
		{"a verdict that does not know of the next grant", "0.0110s-0.0120s GET the fence of n says of token 10 that it is ended", system.Raft, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 6, Release, "a", Ended)
			s.grant(9, 10, "b", 11)
			says(s, 11, 12, 10, "ended", 10)
		}},
		{"a verdict that ends what lives", "0.0070s-0.0080s GET the fence of n says of token 10 that it is ended", system.Raft, func(s *script) {
			s.grant(0, 1, "a", 10)
			says(s, 7, 8, 10, "ended", 10)
		}},
		{"a verdict that does not know what was released", "0.0070s-0.0080s GET the fence of n says of token 10 that it is unissued", system.Raft, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 6, Release, "a", Ended)
			says(s, 7, 8, 10, "unissued", 10)
		}},
		{"a verdict that is ended, of what is superseded", "0.0070s-0.0080s GET the fence of n says of token 10 that it is ended, and of 11", system.Embedded, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 6, Release, "a", Ended)
			says(s, 7, 8, 10, "ended", 11)
		}},
		{"a verdict that is superseded, of what has ended", "0.0070s-0.0080s GET the fence of n says of token 10 that it is superseded, and of 10", system.Raft, func(s *script) {
			s.grant(0, 1, "a", 10)
			s.does(5, 6, Release, "a", Ended)
			says(s, 7, 8, 10, "superseded", 10)
		}},
		{"a verdict that knows of no token", "0.0030s-0.0040s GET the fence of n says of token 10 that it is unissued, and of 0", system.Raft, func(s *script) {
			s.grant(0, 1, "a", 10)
			says(s, 3, 4, 10, "unissued", 0)
		}},
		{"verdicts on a lease of which nobody was told", "", system.Raft, func(s *script) {
			s.does(0, 100, Acquire, "a", Unknown)
			says(s, 3, 4, 10, "live", 10)
			says(s, 5, 6, 10, "ended", 10)
		}},
		{"a verdict on such a lease that is not that of its tokens", "0.0030s-0.0040s GET the fence of n says of token 10 that it is ended, and of 12", system.Raft, func(s *script) {
			s.does(0, 100, Acquire, "a", Unknown)
			says(s, 3, 4, 10, "ended", 12)
		}},
		{"a verdict before its lease was told that is not that of its tokens", "0.0070s-0.0080s GET the fence of n says of token 10 that it is unissued", system.Raft, func(s *script) {
			s.grant(0, 50, "a", 10)
			says(s, 7, 8, 10, "unissued", 10)
		}},
		{"a verdict on a lease that its gateway was not heard of yet", "", system.Raft, func(s *script) {
			s.grant(0, 50, "a", 10)
			show(s, 5, 10)
			says(s, 7, 8, 10, "ended", 10)
		}},
		{"a verdict that knows of a token sooner than it was issued", "0.0030s-0.0040s GET the fence of n says of token 10 that it is live, and of 11", system.Raft, func(s *script) {
			s.grant(0, 1, "a", 10)
			says(s, 3, 4, 10, "live", 11)
			s.does(5, 6, Release, "a", Ended)
			s.grant(9, 10, "b", 11)
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			rules, s := RulesOf(c.of), &script{}
			c.make(s)
			found := Check(&s.h, rules, t.TempDir())
			switch {
			case c.fault == "" && len(found) > 0:
				t.Errorf("found %v", found)
			case c.fault != "" && (len(found) != 1 || found[0].Promise != "order" || !strings.Contains(found[0].What, "\nbut "+c.fault) || found[0].Picture == ""):
				t.Errorf("found %v, want that it has no place for %s", found, c.fault)
			}
		})
	}
}
