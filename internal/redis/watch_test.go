package redis

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// Events are not asked for longer than a minute after the last one has stopped
// to watch.
func TestWatch(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	defer client.Close()
	clock := &movedClock{}
	s := open(t, Options{URL: server.URL(), Clock: clock.time})
	hear := func() int64 { return client.PubSubNumSub(t.Context(), eventsChannel).Val()[eventsChannel] }

	a, b := &eye{}, &eye{}
	stopA := s.Watch(a)
	until(t, func() bool { _, gaps := a.seen(); return gaps == 1 })
	stopB := s.Watch(b)
	say(t, server, eventsChannel, wireEvents("orders/42"))
	until(t, func() bool {
		seenA, _ := a.seen()
		seenB, gaps := b.seen()
		return len(seenA) == 2 && len(seenB) == 2 && gaps == 0
	})
	seen, _ := a.seen()
	if seen[0].ID >= seen[1].ID {
		t.Errorf("the ids are %q and %q", seen[0].ID, seen[1].ID)
	}
	say(t, server, eventsChannel, "rubbish")
	until(t, func() bool { _, gaps := b.seen(); return gaps == 1 })

	stopA()
	stopA()
	say(t, server, eventsChannel, wireEvents("orders/42"))
	until(t, func() bool { seen, _ := b.seen(); return len(seen) == 4 })
	if seen, gaps := a.seen(); len(seen) != 2 || gaps != 2 {
		t.Errorf("%d events and %d gaps, want those before it stopped, 2 and 2", len(seen), gaps)
	}

	// Back within a minute, nothing was missed.
	stopB()
	clock.move(watchGrace - time.Second)
	c := &eye{}
	stopC := s.Watch(c)
	say(t, server, eventsChannel, wireEvents("orders/42"))
	until(t, func() bool { seen, gaps := c.seen(); return len(seen) == 2 && gaps == 0 })
	stopC()
	clock.move(watchGrace - time.Second)
	e := listen(t, s) // looks at what is wanted now
	if n := hear(); n != 1 {
		t.Errorf("%d hear events within the minute, want 1", n)
	}
	clock.move(time.Second)
	until(t, func() bool { return hear() == 0 })

	// Back later, something may have been.
	s.Watch(c)
	until(t, func() bool { _, gaps := c.seen(); return gaps == 1 })
	if n := e.gapped(); n != 1 {
		t.Errorf("%d gaps: the connection did not stay", n)
	}
	say(t, server, eventsChannel, wireEvents("orders/42"))
	until(t, func() bool { seen, _ := c.seen(); return len(seen) == 4 })
}

// While nobody listens or watches there is no connection.
func TestWatchAlone(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	defer client.Close()
	clock := &movedClock{}
	s := open(t, Options{URL: server.URL(), Clock: clock.time})
	subscribers := func() int {
		return strings.Count(client.Do(t.Context(), "client", "list", "type", "pubsub").String(), "id=")
	}
	y := &eye{}
	for want := 1; want <= 2; want++ {
		stop := s.Watch(y)
		until(t, func() bool { _, gaps := y.seen(); return gaps == want && subscribers() == 1 })
		stop()
		clock.move(watchGrace)
		until(t, func() bool { return subscribers() == 0 })
	}
}

// Everybody who watches sees the same events in the same order, whatever gateway
// brought them about, or hears that some are missing.
func TestEventsEverywhere(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	stores := [2]*Store{open(t, Options{URL: server.URL()}), open(t, Options{URL: proxy.URL()})}
	eyes := [2]*eye{{}, {}}
	for i, s := range stores {
		listen(t, s)
		s.Watch(eyes[i])
		until(t, func() bool { _, gaps := eyes[i].seen(); return gaps == 1 })
	}
	run := func(name fencing.Name) {
		holder := acquireRequest(name)
		mustAcquire(t, stores[0], holder)
		for i := range 20 {
			waiter := waitRequest(name)
			mustWait(t, stores[(i+1)%2], waiter)
			mustRelease(t, stores[i%2], holder)
			confirm(t, stores[(i+1)%2], waiter)
			holder = waiter
		}
		mustRelease(t, stores[0], holder)
	}
	done := make(chan struct{}, 2)
	for i := range 2 {
		go func() {
			defer func() { done <- struct{}{} }()
			run(fencing.Name(fmt.Sprintf("orders/%d", i)))
		}()
	}
	receive(t, "the turns of a name", done)
	receive(t, "the turns of the other", done)
	const want = 2 * (1 + 20*3 + 1) // granted, then queued, released, granted each turn, released
	until(t, func() bool {
		a, _ := eyes[0].seen()
		b, _ := eyes[1].seen()
		return len(a) >= want && len(b) >= want
	})
	a, gapsA := eyes[0].seen()
	b, gapsB := eyes[1].seen()
	if len(a) != want || !slices.Equal(a, b) || gapsA != 1 || gapsB != 1 {
		t.Errorf("%d and %d events, gaps %d and %d, the same: %t; want %d and one gap at the start each",
			len(a), len(b), gapsA, gapsB, slices.Equal(a, b), want)
	}
	ids := map[string]bool{}
	tokens := map[fencing.Name]fencing.Token{}
	for _, e := range a {
		if ids[e.ID] || e.ID == "" {
			t.Errorf("the id %q twice, or none", e.ID)
		}
		ids[e.ID] = true
		if e.Kind == fencing.EventGranted {
			if e.Token <= tokens[e.Name] {
				t.Errorf("%s: token %d after %d", e.Name, e.Token, tokens[e.Name])
			}
			tokens[e.Name] = e.Token
		}
	}

	proxy.CutSubscribers()
	until(t, func() bool { _, gaps := eyes[1].seen(); return gaps == 2 })
	r := acquireRequest("orders/2")
	mustAcquire(t, stores[0], r)
	until(t, func() bool {
		a, _ := eyes[0].seen()
		b, _ := eyes[1].seen()
		return len(a) == want+1 && len(b) == want+1 && a[want] == b[want]
	})
}

// What two masters of a Cluster publish comes to each gateway in an order of its own, so that an id
// of one says nothing at another: who changes the gateway is told of a gap there.
func TestEventsOfAClusterHaveIDsOfTheirGateway(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	stores := [2]*Store{open(t, unguarded(cluster.URL())), open(t, unguarded(cluster.URL()))}
	var eyes [2]eye
	for i, s := range stores {
		s.Watch(&eyes[i])
		until(t, func() bool { _, gaps := eyes[i].seen(); return gaps > 0 })
	}
	const names = 20
	for i := range names {
		mustAcquire(t, stores[0], acquireRequest(fencing.Name(fmt.Sprintf("orders/%d", i))))
	}
	ids := map[string]bool{}
	for i := range eyes {
		until(t, func() bool { seen, _ := eyes[i].seen(); return len(seen) == names })
		seen, _ := eyes[i].seen()
		for _, e := range seen {
			ids[e.ID] = true
		}
	}
	if len(ids) != 2*names {
		t.Errorf("%d ids of %d events at two gateways: %v", len(ids), names, slices.Sorted(maps.Keys(ids)))
	}
}
