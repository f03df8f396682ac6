package crowd

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"fencepost/verify/check"
	"fencepost/verify/system"
)

const (
	// batch waiters join at once: among them the order is open, between batches it is
	// that of arrival.
	batch = 50

	// served bounds how long all waiters of a round may take.
	served = 50 * time.Second
)

// Waiters is a queue of which half disconnects while it is served.
type Waiters struct {
	Rounds  int
	Waiters int // of a round, half of which leave
}

// Run has waiters join in batches and, when all are there, one half leaves at random
// moments while the other is served. Those that stay must be served in the order of
// their batches, and nothing may stay behind of the others.
func (o Waiters) Run(ctx context.Context, s *system.System, r *check.Result) error {
	client := system.NewClient(o.Waiters)
	defer client.Close()
	var longest time.Duration
	stayed := 0
	for round := range o.Rounds {
		name := fmt.Sprintf("queue/%d", round)
		gap, n, err := o.round(ctx, s, client, r, r.Random(round), name)
		if err != nil {
			return err
		}
		longest, stayed = max(longest, gap), stayed+n
		for _, g := range s.Gateways {
			if err := nothingLeft(ctx, client, g, name); err != nil {
				r.Violation("round %d: %v", round, err)
			}
		}
	}
	r.Reach("waiters", o.Rounds*o.Waiters, o.Rounds*o.Waiters)
	r.Count("stayed and were served", stayed)
	r.Count("longest gap between two grants", longest)
	return nil
}

// turn is a waiter that stayed: its batch and what it got.
type turn struct {
	batch int
	token int64
	at    time.Time
}

func (o Waiters) round(ctx context.Context, s *system.System, client *system.Client, r *check.Result, random *rand.Rand, name string) (gap time.Duration, n int, err error) {
	first, err := client.Acquire(ctx, s.Gateways[0], name, "", `{"ttl_ms":600000}`)
	if err != nil || first.Status != 201 {
		return 0, 0, fmt.Errorf("a free lock was answered %s, %w", first, err)
	}
	var mu sync.Mutex
	var turns []turn
	var staying, going sync.WaitGroup
	leave := make(chan struct{})
	defer func() {
		select {
		case <-leave:
		default:
			close(leave)
		}
	}()
	for i := 0; i < o.Waiters; i += batch {
		for j := i; j < min(i+batch, o.Waiters); j++ {
			g := s.Gateways[j%len(s.Gateways)]
			if random.IntN(2) == 0 || j < 2 {
				staying.Go(func() {
					ctx, cancel := context.WithTimeout(ctx, served)
					defer cancel()
					a, err := client.Acquire(ctx, g, name, "", `{"ttl_ms":600000,"wait_ms":60000}`)
					if err != nil || a.Status != 201 {
						r.Violation("a waiter was answered %s, %v", a, err)
						return
					}
					mu.Lock()
					turns = append(turns, turn{i / batch, a.Lease.Token, a.Received})
					mu.Unlock()
					if a, err := client.Release(ctx, g, name, a.Lease.ID); err != nil || a.Status != 204 {
						r.Violation("a release was answered %s, %v", a, err)
					}
				})
				continue
			}
			way, after := ways[j%len(ways)].leave, time.Duration(random.IntN(2*o.Waiters))*time.Millisecond
			going.Go(func() {
				if err := waitAndLeave(g, name, leave, after, way); err != nil {
					r.Violation("%v", err)
				}
			})
		}
		if err := awaitWaiting(ctx, client, s.Gateways[0], name, min(i+batch, o.Waiters)); err != nil {
			return 0, 0, err
		}
	}
	close(leave)
	released := time.Now()
	if a, err := client.Release(ctx, s.Gateways[0], name, first.Lease.ID); err != nil || a.Status != 204 {
		return 0, 0, fmt.Errorf("a release was answered %s, %w", a, err)
	}
	staying.Wait()
	going.Wait()
	slices.SortFunc(turns, func(a, b turn) int { return int(a.token - b.token) })
	last := turn{at: released, token: first.Lease.Token}
	for _, t := range turns {
		if t.batch < last.batch || t.token <= last.token {
			r.Violation("P5: a waiter of batch %d was served with token %d after one of batch %d with %d", t.batch, t.token, last.batch, last.token)
		}
		gap, last = max(gap, t.at.Sub(last.at)), t
	}
	if gap > 2*time.Second {
		r.Violation("P5: for %s the lock belonged to nobody who was there", gap)
	}
	return gap, len(turns), nil
}

// waitAndLeave waits, and leaves some time after leave is closed. If it is granted the
// lock by then it leaves like any holder that dies: its connection is the only sign.
func waitAndLeave(g *system.Gateway, name string, leave <-chan struct{}, after time.Duration, way func(*net.TCPConn) error) error {
	conn, err := net.Dial("tcp", g.Addr())
	if err != nil {
		return err
	}
	defer conn.Close()
	const body = `{"ttl_ms":100,"wait_ms":60000}`
	if _, err := fmt.Fprintf(conn, "POST /locks/%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", name, len(body), body); err != nil {
		return err
	}
	<-leave
	<-time.After(after)
	return way(conn.(*net.TCPConn))
}

type lock struct {
	Held    bool
	Waiting int
}

func inspect(ctx context.Context, client *system.Client, g *system.Gateway, name string) (l lock, err error) {
	a, err := client.Inspect(ctx, g, name)
	if err != nil {
		return l, err
	}
	if a.Status != 200 {
		return l, fmt.Errorf("GET was answered %s", a)
	}
	return l, json.Unmarshal(a.Body, &l)
}

// awaitWaiting waits until so many wait.
func awaitWaiting(ctx context.Context, client *system.Client, g *system.Gateway, name string, n int) error {
	for deadline := time.Now().Add(served); ; system.Pause(time.Millisecond) {
		l, err := inspect(ctx, client, g, name)
		if err != nil || l.Waiting == n {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d wait, want %d", l.Waiting, n)
		}
	}
}

// nothingLeft checks that a lock is free and nobody waits, within the time that P6 gives.
func nothingLeft(ctx context.Context, client *system.Client, g *system.Gateway, name string) error {
	for deadline := time.Now().Add(closeGrace); ; system.Pause(10 * time.Millisecond) {
		l, err := inspect(ctx, client, g, name)
		if err != nil || l == (lock{}) {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("P6: %s after all have gone: held %t, %d waiting", closeGrace, l.Held, l.Waiting)
		}
	}
}
