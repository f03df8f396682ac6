package redis

import (
	"errors"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

func (v verdict) String() string {
	return [...]string{"unchanged", "withheld", "unused", "moved", "longer", "changed", "lost"}[v]
}

// What a gateway makes of what a server says, however it came to ask.
func TestReconcile(t *testing.T) {
	const born, later = fencing.Instant(1), fencing.Instant(2)
	kept := func(born fencing.Instant, server string) *guard {
		return &guard{born: born, Quarantine: fencing.Quarantine{Server: server}}
	}
	one := identity{run: "one", master: true}
	promoted := identity{run: "two", promoted: "h1", master: true}
	start := time.Now()
	known := remembered{born: born, server: "one", seen: start, evicted: -1}
	before, after := start.Add(-time.Second), start.Add(time.Second) // "one" was last seen to serve
	there, restarted, unknown := one, one, promoted
	there.run, there.since, restarted.run, restarted.since, unknown.since = "two", before, "two", after, after
	another, replica := identity{run: "one more", master: true, since: after}, identity{run: "one", promoted: "h2", since: after}
	promotedBefore, back := promoted, one
	promoted.since, promotedBefore.since, back.since = after, before, before
	ends := fencing.InstantOf(start).Add(time.Minute)
	quarantined := kept(born, "one")
	quarantined.Until, quarantined.TTL, quarantined.Period = ends, 30*time.Second, fencing.InstantOf(start)
	asked := one
	asked.asked = start
	stranger := remembered{evicted: -1} // of a gateway that has just started
	for _, c := range []struct {
		why  string
		was  remembered
		is   reported
		want verdict
	}{
		{"a store that nobody has used", stranger, reported{identity: one}, unused},
		{"other gateways are there, or other guards, so it is in use", stranger, reported{identity: one, used: true}, lost},
		{"it seems new, but a quarantine of a set length waits for that too", remembered{waits: true, evicted: -1}, reported{identity: one}, lost},
		{"it was flushed", known, reported{identity: one}, lost},
		{"it was flushed or restarted, and no other gateway is there", known, reported{identity: identity{run: "one more"}}, lost},
		{"a node of a quorum that has forgotten votes only when it is admitted", remembered{member: true, born: born, evicted: -1}, reported{identity: one}, withheld},
		{"a node of a quorum that is new as well", remembered{member: true, evicted: -1}, reported{identity: one}, withheld},
		{"a node of a quorum that remembers is like any other", remembered{member: true, born: born, server: "one", evicted: -1}, reported{identity: one, guard: kept(born, "one")}, unchanged},
		{"a node of a quorum that was restarted with its data votes only when it is admitted", remembered{member: true, born: born, server: "one", evicted: -1}, reported{identity: another, guard: kept(born, "one")}, withheld},
		{"a node of a quorum that another gateway has admitted", remembered{member: true, born: born, server: "one", evicted: -1}, reported{identity: another, guard: kept(born, "one more")}, changed},
		{"who only looks makes no guard", remembered{passive: true, evicted: -1}, reported{identity: one}, withheld},
		{"who only looks notes no server", remembered{passive: true, evicted: -1}, reported{identity: one, guard: kept(born, "two")}, unchanged},

		{"nothing has happened", known, reported{identity: one, guard: kept(born, "one")}, unchanged},
		{"a gateway has just started", stranger, reported{identity: one, guard: kept(born, "one")}, unchanged},
		{"it was flushed, and a gateway that has just started took it for new", known, reported{identity: one, guard: kept(later, "one")}, lost},
		{"an operation found the counter behind", remembered{born: born, server: "one", behind: true, evicted: -1}, reported{identity: one, guard: kept(born, "one")}, lost},
		{"the counter is behind, although the partition was moved", remembered{born: born, server: "two", behind: true, evicted: -1}, reported{identity: one, guard: kept(born, "two"), given: true}, lost},
		{"keys were evicted since", remembered{born: born, server: "one", evicted: 3}, reported{identity: identity{run: "one", evicted: 4}, guard: kept(born, "one")}, lost},
		{"keys were evicted before", remembered{born: born, server: "one", evicted: 4}, reported{identity: identity{run: "one", evicted: 4}, guard: kept(born, "one")}, unchanged},
		{"keys were evicted before this gateway knew the server", stranger, reported{identity: identity{run: "one", evicted: 4}, guard: kept(born, "one")}, unchanged},

		{"another run", known, reported{identity: another, guard: kept(born, "one")}, changed},
		{"another run, to a gateway that has just started", stranger, reported{identity: another, guard: kept(born, "one")}, changed},
		{"a replica was promoted", known, reported{identity: promoted, guard: kept(born, "one")}, changed},
		{"a replica was promoted, and another gateway was there first: this one was served elsewhere until now", known, reported{identity: promoted, guard: kept(born, "two:h1")}, changed},
		{"the same, to a gateway that has just started", stranger, reported{identity: promoted, guard: kept(born, "two:h1")}, unchanged},
		{"a master was a replica for a while", known, reported{identity: replica, guard: kept(born, "one")}, changed},
		{"a master has forgotten that it was promoted", known, reported{identity: one, guard: kept(born, "one:h0")}, moved},
		{"the same, noted by another gateway", remembered{born: born, server: "one:h0", evicted: -1}, reported{identity: one, guard: kept(born, "one")}, moved},
		{"it was promoted in place of another than the one before", known, reported{identity: promoted, guard: kept(born, "two:h0")}, changed},
		{"the slot was moved", known, reported{identity: there, guard: kept(born, "one"), given: true}, moved},
		{"the slot was moved, noted by another gateway", known, reported{identity: there, guard: kept(born, "two"), given: true}, moved},
		{"the slot was moved to a replica that was promoted before", known, reported{identity: promotedBefore, guard: kept(born, "one"), given: true}, moved},
		{"the slot was moved, and then the server was restarted with less", known, reported{identity: restarted, guard: kept(born, "one"), given: true}, changed},
		{"the slot was moved, and then a replica was promoted that had less", known, reported{identity: unknown, guard: kept(born, "one"), given: true}, changed},
		{"the slot was moved before this gateway has started", stranger, reported{identity: there, guard: kept(born, "one"), given: true}, changed},
		{"the slot was moved, and then a replica took over that had not heard of it", remembered{born: born, server: "three", evicted: -1}, reported{identity: promoted, guard: kept(born, "one")}, changed},
		{"a quarantine is news, and this gateway knows of a longer TTL", remembered{born: born, server: "one", longest: time.Minute, evicted: -1}, reported{identity: asked, guard: quarantined}, longer},
		{"the same, and this gateway knew of the quarantine", remembered{born: born, server: "one", until: ends, longest: time.Minute, evicted: -1}, reported{identity: asked, guard: quarantined}, unchanged},
		{"a quarantine is news, and this gateway knows of no longer TTL", remembered{born: born, server: "one", longest: 30 * time.Second, evicted: -1}, reported{identity: asked, guard: quarantined}, unchanged},
		{"the guard has forgotten until when a quarantine lasts", remembered{born: born, server: "one", until: ends, evicted: -1}, reported{identity: asked, guard: kept(born, "one")}, longer},
		{"it is over", remembered{born: born, server: "one", until: fencing.InstantOf(start), evicted: -1}, reported{identity: asked, guard: kept(born, "one")}, unchanged},
		{"nobody has noted who served", known, reported{identity: another, guard: kept(born, "")}, changed},
		{"it serves again, as it was before another did, and has missed what that one granted", remembered{born: born, server: "two", seen: start, evicted: -1}, reported{identity: back, guard: kept(born, "one")}, lost},
		{"another serves, that was there all the time, and nobody says that the slot was moved", known, reported{identity: there, guard: kept(born, "two")}, lost},
	} {
		if got := reconcile(&c.was, &c.is); got != c.want {
			t.Errorf("%s: %s, want %s", c.why, got, c.want)
		}
	}
}

// A verdict is about the guard that was read. Where it is another by now, nothing is noted,
// and no guard is made where there was one.
func TestOvertaken(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	s.guards.close()
	client := server.Client()
	defer client.Close()
	key := s.keys[0].guard
	arrive := func(f partitionCheck) error {
		c := s.newArriveCommand(&f)
		s.sender.send(s.topology.node(0), []*command{c})
		return s.arrived(c, &f)
	}
	before := client.Get(t.Context(), key).Val()
	mine, err := decodeGuard(before, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []verdict{unused, lost} {
		if err := arrive(partitionCheck{reported: reported{identity: identity{run: "other"}}, verdict: v}); !errors.Is(err, errOvertaken) {
			t.Errorf("%s, where somebody has made a guard meanwhile: %v", v, err)
		}
	}
	if after := client.Get(t.Context(), key).Val(); after != before {
		t.Errorf("the guard was %q and is %q", before, after)
	}
	client.Del(t.Context(), key)
	for _, v := range []verdict{moved, changed, lost} {
		if err := arrive(partitionCheck{reported: reported{identity: identity{run: "other"}, guard: &mine}, verdict: v}); !errors.Is(err, errOvertaken) {
			t.Errorf("%s, where the guard is gone meanwhile: %v", v, err)
		}
	}
	if client.Exists(t.Context(), key).Val() != 0 {
		t.Error("an arrival made a guard where one was seen before")
	}
}
