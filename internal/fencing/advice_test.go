package fencing_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// ended is n leases that were granted with ttl, held for so long, and ended so. One that
// was held for longer than its TTL was renewed whenever a third of that was over.
func ended(n int, ttl, held time.Duration, reason fencing.Reason) []fencing.Ended {
	renewals := (held - 1) / (ttl / 3)
	if reason == fencing.ReasonExpired {
		renewals = (held - ttl) / (ttl / 3)
	}
	e := fencing.Ended{Reason: reason, At: fencingtest.Epoch.Add(held), Holder: fencing.Holder{
		Hold: 1, TTL: ttl, GrantTTL: ttl, AcquiredAt: fencingtest.Epoch, ExpiresAt: fencingtest.Epoch.Add(max(0, renewals)*(ttl/3) + ttl),
	}}
	return slices.Repeat([]fencing.Ended{e}, n)
}

// held is a lock whose one holder has had it for so long, and has so much of its TTL left.
func held(ttl, held, left time.Duration) fencing.Lock {
	now := fencingtest.Epoch.Add(48 * time.Hour)
	return fencing.Lock{Now: now, HolderCount: 1, Holders: []fencing.Holder{{
		Lease: "01JZ0000000000000000000000", Hold: 1, TTL: ttl, GrantTTL: ttl, AcquiredAt: now.Add(-held), ExpiresAt: now.Add(left),
	}}}
}

func TestAdvise(t *testing.T) {
	const ms, s, m, h = time.Millisecond, time.Second, time.Minute, time.Hour
	released, expired, broken := fencing.ReasonReleased, fencing.ReasonExpired, fencing.ReasonBroken
	free := fencing.Lock{Now: fencingtest.Epoch.Add(48 * h)}
	join := slices.Concat[[]fencing.Ended]
	bounded := ended(16, 30*s, 30*s, expired)
	for i := range bounded {
		bounded[i].Holder.MaxHold = 30 * s
	}
	provisional := held(30*s, 2*h, 4*s)
	provisional.Holders[0].Provisional = true
	many := held(30*s, 10*m, 4*s)
	many.HolderCount = 3
	many.Holders = append(many.Holders, held(30*s, 5*m, 2*s).Holders[0], held(30*s, 5*m, 29*s).Holders[0])
	many.Holders[1].Lease = "01JZ0000000000000000000001"
	for _, test := range []struct {
		name string
		lock fencing.Lock
		past []fencing.Ended
		want string // code count/of TTL held, of each
	}{
		{"nothing is known", free, nil, ""},
		{"all is well", free, ended(16, 30*s, 800*ms, released), ""},
		{"three are chance", free, ended(3, 30*s, 30*s, expired), ""},
		{"four are not", free, ended(4, 30*s, 30*s, expired), "ttl_short 4/4 30s 30s"},

		{"p99 of holds is 41 s, the TTL is 30 s", free, join(ended(15, 30*s, 41*s, released), ended(1, 30*s, 20*s, released)), "held_beyond_ttl 15/16 30s 41s"},
		{"fewer than half", free, join(ended(7, 30*s, 41*s, released), ended(9, 30*s, 29*s, released)), ""},
		{"a quorum's view is a little off", free, ended(16, 30*s, 30*s+400*ms, released), ""},

		{"one of many ran out", free, join(ended(1, 30*s, 30*s, expired), ended(3, 30*s, 20*s, released)), ""},
		{"a quarter ran out", free, join(ended(4, 30*s, 30*s, expired), ended(12, 30*s, 20*s, released)), "ttl_short 4/16 30s 30s"},
		{"less than a quarter", free, join(ended(3, 30*s, 30*s, expired), ended(13, 30*s, 20*s, released)), ""},
		{"a TTL that is long enough", free, join(ended(5, 30*s, 30*s, expired), ended(11, 30*s, 15*s, released)), "not_released 5/16 30s 15s"},
		{"a TTL that may not be", free, join(ended(5, 30*s, 30*s, expired), ended(11, 30*s, 15*s+ms, released)), "ttl_short 5/16 30s 30s"},
		{"a long TTL, and none was released", free, ended(16, 1*h, 1*h, expired), "ttl_short 16/16 1h 1h"},
		{"renewed, and then no more", free, join(ended(3, 30*s, 50*s, expired), ended(5, 30*s, 20*s, released)), "renewals_stopped 3/8 30s 50s"},
		{"renewed, and mostly no more", free, ended(8, 30*s, 50*s, expired), "renewals_stopped 8/8 30s 50s, held_beyond_ttl 8/8 30s 50s"},
		{"max_hold was reached", free, bounded, ""},
		{"broken", free, ended(8, 30*s, 20*s, broken), ""},

		{"a TTL that is much too long", free, ended(4, 1*h, 6*m, released), "ttl_long 4/4 1h 6m"},
		{"a TTL that is not", free, ended(4, 1*h, 6*m+ms, released), ""},
		{"a minute is never too long", free, ended(4, 1*m, ms, released), ""},
		{"somebody could not wait for it", free, join(ended(8, 1*h, 1*m, released), ended(1, 1*h, 30*m, broken)), ""},
		{"somebody had to wait for it", free, join(ended(9, 1*h, 1*m, released), ended(3, 1*h, 1*h, expired)), "not_released 3/12 1h 1m"},

		{"another TTL is asked for now", held(60*s, 1*s, 59*s), ended(16, 30*s, 30*s, expired), ""},
		{"it was, before", free, join(ended(4, 60*s, 30*s, released), ended(12, 30*s, 30*s, expired)), ""},
		{"it is the same", held(30*s, 1*s, 29*s), join(ended(4, 60*s, 30*s, released), ended(12, 30*s, 30*s, expired)), "ttl_short 12/12 30s 30s"},

		{"about to run out", held(30*s, 50*s, 10*s-ms), nil, "renewal_late 1/1 30s 50s"},
		{"about to be renewed", held(30*s, 50*s, 10*s), nil, ""},
		{"not to be renewed", held(30*s, 29*s, 1*s), nil, ""},
		{"nobody was told", provisional, ended(16, 30*s, 20*s, released), ""},
		{"the one that has least left", many, nil, "renewal_late 2/3 30s 5m"},

		{"it renews, and holds", held(30*s, 2*h, 29*s), ended(16, 30*s, 20*s, released), "held_long 1/1 30s 2h"},
		{"for ten times as long", held(30*s, 200*s, 29*s), ended(16, 30*s, 20*s, released), ""},
		{"for a minute", held(3*s, 60*s, 2*s), ended(16, 3*s, ms, released), ""},
		{"within its TTL", held(3*h, 2*h, 1*h), ended(16, 3*h, 20*m, released), ""},
		{"whatever the others asked for", held(30*s, 2*h, 29*s), ended(16, 10*s, 8*s, released), "held_long 1/1 30s 2h"},
		{"three are too few to say so", held(30*s, 2*h, 29*s), ended(3, 30*s, 20*s, released), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, a := range fencing.Advise(&test.lock, test.past) {
				got = append(got, fmt.Sprintf("%s %d/%d %s %s", a.Code, a.Count, a.Of, a.TTL, a.Held))
				if !slices.Contains(fencing.AdviceCodes(), a.Code) {
					t.Errorf("%q is no code", a.Code)
				}
				if about := a.Code == fencing.AdviceRenewalLate || a.Code == fencing.AdviceHeldLong; about != (a.Lease != "") {
					t.Errorf("%s is about the lease %q", a.Code, a.Lease)
				}
				t.Log(a.Text)
			}
			if text := strings.NewReplacer("h0m0s", "h", "m0s", "m").Replace(strings.Join(got, ", ")); text != test.want {
				t.Errorf("got  %s\nwant %s", text, test.want)
			}
		})
	}
}

// TestAdviceInWords: what is said is what was seen.
func TestAdviceInWords(t *testing.T) {
	lock := held(30*time.Second, 130*time.Minute+100*time.Millisecond, 4*time.Second+time.Microsecond)
	all := fencing.Advise(&lock, slices.Concat(ended(4, 30*time.Second, 3*time.Hour, fencing.ReasonReleased), ended(12, 30*time.Second, 812*time.Millisecond+time.Microsecond, fencing.ReasonReleased)))
	lock.Now = lock.Now.Add(time.Minute)
	lock.Holders[0].ExpiresAt = lock.Now.Add(29 * time.Second)
	all = append(all, fencing.Advise(&lock, ended(16, 30*time.Second, 812*time.Millisecond+time.Microsecond, fencing.ReasonReleased))...)
	all = append(all, fencing.Advise(&fencing.Lock{}, ended(16, time.Hour, 812*time.Millisecond+time.Microsecond, fencing.ReasonReleased))...)
	var got []string
	for _, a := range all {
		got = append(got, a.Text)
	}
	want := []string{
		"a holder that renewed before has 4.1s of its TTL of 30s left: it should have renewed with two thirds left",
		"a holder has had the lock for 2h11m1s, while the last 16 leases were held for at most 813ms: it renews, but may be stuck",
		"the last 16 leases with a TTL of 1h were released after at most 813ms: if a holder dies, others wait for up to the whole TTL",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}
