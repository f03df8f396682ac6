package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// TestStep plays random operations on Redis and on fencing.Step and compares
// all of the outcomes, the texts included: what the conformance suite leaves to
// each store is settled here.
func TestStep(t *testing.T) {
	server := redistest.Start(t)
	seed := rand.Uint64()
	for round := range uint64(12) {
		b := openBackend(t, server)
		g := &game{Rand: rand.New(rand.NewPCG(seed+round, 0)), backend: b, state: fencing.NewState(), now: epoch}
		for i := range 6 {
			g.leases = append(g.leases, fencing.NewLeaseID(time.UnixMilli(int64(i))))
		}
		for step := range 700 {
			if step%100 == 0 {
				g.busy = g.IntN(4) == 0
			}
			if err := g.step(t.Context()); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed+round, step, err)
			}
		}
		for _, s := range b.stores {
			s.Close()
		}
	}
}

type game struct {
	*rand.Rand
	backend *backend
	state   *fencing.State
	leases  []fencing.LeaseID
	tokens  []fencing.Token
	now     fencing.Instant
	busy    bool
}

// gameName is one name: a state of Step is one partition.
const gameName fencing.Name = "orders/12345"

func (g *game) step(ctx context.Context) error {
	jumps := []time.Duration{0, 0, 0, 1, time.Microsecond, time.Millisecond, 700 * time.Millisecond, time.Second,
		3 * time.Second, 20 * time.Second, time.Minute, 5 * time.Minute}
	if g.busy {
		jumps = []time.Duration{0, time.Microsecond}
	}
	if g.IntN(60) == 0 {
		jumps = []time.Duration{23 * time.Hour, 24 * time.Hour, 25 * time.Hour}
	}
	g.now = g.now.Add(jumps[g.IntN(len(jumps))])
	g.backend.SetTime(g.now)
	handle, skew := g.IntN(2), time.Duration(0)
	if g.IntN(5) == 0 {
		skews := []time.Duration{maxSkew, maxSkew + time.Microsecond, -maxSkew, -maxSkew - time.Microsecond, time.Hour}
		skew = skews[g.IntN(len(skews))]
	}
	g.backend.SetSkew(handle, skew)
	store := g.backend.stores[handle]

	if err := g.harm(ctx); err != nil {
		return err
	}
	op := g.op()
	guard := fencing.Guard{Sent: g.now.Add(skew), MaxSkew: maxSkew, Floor: g.floor(store)}
	want, wantErr := fencing.Step(g.state, g.now, guard, op).Result()
	got, gotErr := g.run(ctx, store, op)
	if want.Holder.Token != 0 {
		g.tokens = append(g.tokens, want.Holder.Token)
	}
	if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(gotErr, wantErr) {
		return fmt.Errorf("%T %+v at %d, skew %s:\n got %+v %#v\nwant %+v %#v", op, op, g.now, skew, got, gotErr, want, wantErr)
	}
	return nil
}

// harm at times loses the counter of the partition, or sets it far ahead.
func (g *game) harm(ctx context.Context) error {
	client, key := g.backend.stores[0].client, newKeyspaces()[partitionOf(gameName)].token.(string)
	switch g.IntN(100) {
	case 0:
		g.state.Counter = 0
		return client.Del(ctx, key).Err()
	case 1:
		g.state.Counter = fencing.Token(g.now.Add(2 * time.Hour))
		return client.Set(ctx, key, int64(g.state.Counter), 0).Err()
	case 2:
		if g.IntN(4) == 0 {
			g.state.Counter = fencing.MaxToken - fencing.Token(g.IntN(2))
			return client.Set(ctx, key, int64(g.state.Counter), 0).Err()
		}
	}
	return nil
}

// floor is at times ahead of all that was issued, up to a little beyond what is
// still obeyed.
func (g *game) floor(store *Store) fencing.Token {
	floor := &store.sender.floors[partitionOf(gameName)]
	if g.IntN(40) == 0 {
		floor.Store(int64(g.now.Add(fencing.MaxFloorLead)) + g.Int64N(3) - 1)
	}
	if fencing.Token(floor.Load()) > g.state.Counter && g.IntN(4) == 0 {
		floor.Store(0) // or all that follows is refused until the clock is there
	}
	return fencing.Token(floor.Load())
}

func (g *game) op() fencing.Op {
	lease := g.leases[g.IntN(len(g.leases))]
	if g.busy {
		lease = fencing.NewLeaseID(time.UnixMilli(0))
	}
	if g.IntN(12) == 0 { // the public part with another secret
		text := lease.Reveal()
		lease, _ = fencing.ParseLeaseID(text[:27] + "AAAAAAAAAAAAAAAAAAAAAA")
	}
	stamp := []fencing.Stamp{"0000000000000001", "0000000000000002", ""}[g.IntN(3)]
	ttl := []time.Duration{100 * time.Millisecond, time.Second, 30 * time.Second, 10 * time.Minute, 24 * time.Hour}[g.IntN(5)]
	kind := g.IntN(8)
	if g.busy { // grants and breaks in close order
		kind = []int{0, 0, 6}[g.IntN(3)]
	}
	switch kind {
	case 0, 1, 2:
		r := fencing.AcquireRequest{Name: gameName, Lease: lease, Stamp: stamp, Owner: "wörker \"7\"", Mode: fencing.ModeExclusive, Hold: 1, TTL: ttl}
		switch g.IntN(3) {
		case 0:
			r.MaxHold, r.Owner = ttl+time.Duration(g.IntN(3))*time.Second, ""
		case 1:
			r.Metadata = map[string]string{"build": "42", "<ü>": "a\\b \u2028"}
		}
		return r
	case 3:
		return fencing.RenewRequest{Name: gameName, Lease: lease, TTL: []time.Duration{0, ttl}[g.IntN(2)]}
	case 4:
		return fencing.ReleaseRequest{Name: gameName, Lease: lease}
	case 5:
		return fencing.TakeBackRequest{Name: gameName, Lease: lease, Stamp: stamp}
	case 6:
		if len(g.tokens) > 0 && g.IntN(2) == 0 {
			last := g.tokens[max(0, len(g.tokens)-12):]
			return fencing.BreakRequest{Name: gameName, Token: last[g.IntN(len(last))]}
		}
		return fencing.BreakRequest{Name: gameName, Token: max(1, g.state.Counter)}
	}
	return []fencing.Op{fencing.InspectRequest{Name: gameName}, fencing.ExpireRequest{Name: gameName}}[g.IntN(2)]
}

func (g *game) run(ctx context.Context, s *Store, op fencing.Op) (fencing.Outcome, error) {
	switch op := op.(type) {
	case fencing.AcquireRequest:
		return s.Acquire(ctx, op)
	case fencing.RenewRequest:
		return s.Renew(ctx, op)
	case fencing.ReleaseRequest:
		return s.Release(ctx, op)
	case fencing.TakeBackRequest:
		return s.TakeBack(ctx, op)
	case fencing.BreakRequest:
		return s.Break(ctx, op)
	case fencing.InspectRequest:
		return s.Inspect(ctx, op)
	case fencing.ExpireRequest:
		return s.run(ctx, s.newCommand(expireScript, op.Name)).result()
	}
	return fencing.Outcome{}, errors.New("no such operation")
}
