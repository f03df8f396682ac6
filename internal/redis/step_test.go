package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
	"fencepost/internal/seed"
)

// TestStep plays random operations of three gateways on Redis and on
// fencing.Step and compares all of the outcomes, the texts included: what the
// conformance suite leaves to each store is settled here. All names share one
// partition, as they share one State. FENCEPOST_LONG plays 16 rounds.
func TestStep(t *testing.T) { testStep(t, rounds(2, 16)) }

func TestSystemStep(t *testing.T) { testStep(t, 4) }

func testStep(t *testing.T, rounds int) {
	t.Parallel()
	server := redistest.Start(t)
	first := seed.Of(t)
	for seed := first; seed < first+uint64(rounds); seed++ {
		playStep(t, server, seed)
	}
}

func playStep(t *testing.T, server *redistest.Server, seed uint64) {
	g := &game{Rand: rand.New(rand.NewPCG(seed, 0)), state: fencing.NewState(), now: epoch, names: []fencing.Name{"orders/12345", "a"}, most: int(seed % 2 * 3)}
	g.storeClock.Store(int64(epoch))
	g.clock.Store(int64(epoch))
	b := openBackend(t, server)
	for i := range 3 {
		s := open(t, Options{
			URL: server.SocketURL(), MaxSkew: maxSkew, MaxHolders: g.most, Quarantine: QuarantinePolicy{Off: true},
			Now:   func() fencing.Instant { return fencing.Instant(g.storeClock.Load()) },
			Clock: func() time.Time { return fencing.Instant(g.clock.Load()).Time() },
		})
		defer s.Close()
		g.stores = append(g.stores, s)
		for _, old := range b.stores {
			if i == 0 {
				old.Close()
			}
		}
	}
	for i := range 4 + g.IntN(8) {
		g.leases = append(g.leases, fencing.NewLeaseID(time.UnixMilli(int64(i))))
	}
	g.modes = g.IntN(3)
	for step := range 700 {
		if step%100 == 0 {
			g.busy = g.IntN(2) == 0
		}
		if err := g.step(t.Context()); err != nil {
			t.Fatalf("seed %d, step %d: %v", seed, step, err)
		}
	}
}

type game struct {
	*rand.Rand
	stores []*Store
	state  *fencing.State
	names  []fencing.Name
	leases []fencing.LeaseID
	tokens []fencing.Token
	now    fencing.Instant
	off    time.Duration // how far the store's clock is ahead of the right time
	skew   time.Duration
	busy   bool // time hardly passes
	modes  int  // 0 exclusive, 1 shared, 2 both
	most   int  // fencing.Guard.MaxHolders

	storeClock, clock atomic.Int64 // now, and with the skew: what looks after Redis reads them too
}

func (g *game) step(ctx context.Context) error {
	jumps := []time.Duration{0, 0, 0, 1, time.Microsecond, time.Millisecond, 400 * time.Millisecond, 700 * time.Millisecond, time.Second,
		3 * time.Second, 4 * time.Second, 10 * time.Second, 20 * time.Second, time.Minute, fencing.TombstoneTTL}
	if g.busy {
		jumps = []time.Duration{0, 0, 0, time.Microsecond, 100 * time.Millisecond, time.Second}
	}
	if g.IntN(100) == 0 {
		jumps = []time.Duration{fencing.ForgetAfter - time.Hour, fencing.ForgetAfter, fencing.ForgetAfter + time.Hour}
	}
	g.now, g.skew = g.now.Add(jumps[g.IntN(len(jumps))]), -g.off
	if g.IntN(16) == 0 {
		before := g.off
		g.off = []time.Duration{0, 0, 30 * time.Minute, -30 * time.Minute, 12 * time.Second, -12 * time.Second}[g.IntN(6)]
		g.now, g.skew = g.now.Add(g.off-before), -g.off
	}
	if g.off == 0 && g.IntN(8) == 0 {
		skews := []time.Duration{maxSkew, maxSkew + time.Microsecond, -maxSkew, -maxSkew - time.Microsecond, time.Hour}
		g.skew = skews[g.IntN(len(skews))]
	}
	g.storeClock.Store(int64(g.now))
	g.clock.Store(int64(g.now.Add(g.skew)))
	if err := g.harm(ctx); err != nil {
		return err
	}
	store := g.stores[g.IntN(len(g.stores))]
	guard := fencing.Guard{
		Sent: g.now.Add(g.skew), MaxSkew: maxSkew, Floor: g.floor(store), Gateway: fencing.Gateway(store.handle),
		MaxHolders: g.most,
	}
	if g.IntN(8) == 0 {
		return g.beat(ctx, store, guard)
	}
	name := g.names[g.IntN(len(g.names))]
	first := g.op(name)
	if err := g.compare(ctx, store, guard, first); err != nil {
		return err
	}
	if r, renews := first.(fencing.RenewRequest); renews && r.Stamp != "" { // what it brought goes with the next one
		if err := g.beat(ctx, store, guard); err != nil {
			return fmt.Errorf("%+v: %w", r, err)
		}
	}
	reader := g.stores[g.IntN(len(g.stores))]
	guard.Gateway, guard.Floor = fencing.Gateway(reader.handle), 0
	var op fencing.Op = fencing.InspectRequest{Name: name}
	if g.IntN(4) == 0 {
		op = fencing.HistoryRequest{Name: name}
	}
	if err := g.compare(ctx, reader, guard, op); err != nil {
		return err
	}
	if err := g.compareGateways(ctx, store); err != nil {
		return fmt.Errorf("%T %+v of %s at %d: %w", first, first, store.handle, g.now, err)
	}
	return nil
}

// compareGateways compares what is known of signs of life.
func (g *game) compareGateways(ctx context.Context, store *Store) error {
	got, err := store.redis().HGetAll(ctx, "fencepost:{0}:gateways").Result()
	if err != nil {
		return err
	}
	known := &g.state.Gateways
	want := map[string]string{}
	if known.Heard != 0 {
		want["heard"] = known.Heard.Time().Format(time.RFC3339Nano)
		want["stopped"] = known.Stopped.Time().Format(time.RFC3339Nano)
		want["serving"] = known.Serving.Time().Format(time.RFC3339Nano)
	}
	for gateway, seen := range known.Seen {
		want[string(gateway)] = seen.Time().Format(time.RFC3339Nano)
	}
	for field, text := range got {
		us, _ := strconv.ParseInt(text, 10, 64)
		got[field] = fencing.Instant(us).Time().Format(time.RFC3339Nano)
	}
	if !reflect.DeepEqual(got, want) {
		return fmt.Errorf("signs of life: got %v, want %v", got, want)
	}
	return nil
}

// compare has both sides do the same.
func (g *game) compare(ctx context.Context, store *Store, guard fencing.Guard, op fencing.Op) error {
	var want fencing.Outcome
	var wantErr error
	if _, expire := op.(fencing.ExpireRequest); expire && !g.due(op.LockName()) && g.skew.Abs() <= maxSkew {
		want.Now = g.now // looked after too early
	} else {
		want, wantErr = fencing.Step(g.state, g.now, guard, op).Result()
	}
	got, gotErr := g.run(ctx, store, op)
	for _, grant := range want.Granted {
		g.tokens = append(g.tokens, grant.Holder.Token)
	}
	if got.Now != 0 && !got.Asked.Equal(g.now.Time().Add(g.skew)) {
		return fmt.Errorf("%T: asked at %s", op, got.Asked)
	}
	got.Asked = time.Time{}
	if len(want.Left) == 0 {
		want.Left = nil
	}
	if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(gotErr, wantErr) {
		return fmt.Errorf("%T %+v of %s at %d, skew %s:\n got %s\nwant %s", op, op, store.handle, g.now, g.skew, show(got, gotErr), show(want, wantErr))
	}
	return nil
}

func show(o fencing.Outcome, err error) string {
	text := fmt.Sprintf("%+v", o)
	if o.Lock != nil {
		text += fmt.Sprintf("\n  lock %+v", *o.Lock)
	}
	if o.Place != nil {
		text += fmt.Sprintf("\n  place %+v", *o.Place)
	}
	var e *fencing.Error
	if errors.As(err, &e) {
		text += fmt.Sprintf("\n  error %+v", *e)
		if e.Lock != nil {
			text += fmt.Sprintf("\n  lock %+v", *e.Lock)
		}
	}
	return text
}

// due reports whether Step has something to do for a name.
func (g *game) due(name fencing.Name) bool {
	r := g.state.Records[name]
	return r != nil && g.state.Due(name) <= g.now
}

// beat compares a heartbeat, and looks whether the index knows what is due.
func (g *game) beat(ctx context.Context, store *Store, guard fencing.Guard) error {
	want, refusal := fencing.Beat(g.state, g.now, guard)
	c := store.newHeartbeatCommand(0, "", dueAtOnce)
	r, err := store.do(ctx, c)
	if err != nil {
		return err
	}
	if refusal != nil {
		if r.code != refusal.Code {
			return fmt.Errorf("heartbeat: got %s, want %v", r.code, refusal)
		}
		return nil
	}
	for _, all := range [][]fencing.Entry{r.entries, want} {
		slices.SortFunc(all, func(a, b fencing.Entry) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Lease, b.Lease))
		})
	}
	if !slices.Equal(r.entries, want) {
		return fmt.Errorf("heartbeat of %s at %d:\n got %+v\nwant %+v", store.handle, g.now, r.entries, want)
	}
	for name, record := range g.state.Records {
		busy := record.Holders.Len() > 0 || !record.Queue.Empty()
		if busy && g.due(name) && !slices.Contains(r.due, name) {
			return fmt.Errorf("%s is due since %d, and at %d the index does not know", name, g.state.Due(name), g.now)
		}
	}
	return nil
}

// harm at times loses the counter of the partition, or sets it far ahead.
func (g *game) harm(ctx context.Context) error {
	client, key := g.stores[0].redis(), newKeyspaces(alonePartitions)[0].token
	switch g.IntN(200) {
	case 0:
		g.state.Counter = 0
		return client.Del(ctx, key).Err()
	case 1:
		g.state.Counter = fencing.Token(g.now.Add(2 * time.Hour))
		return client.Set(ctx, key, int64(g.state.Counter), 0).Err()
	case 2:
		if g.IntN(8) == 0 {
			g.state.Counter = fencing.MaxToken - fencing.Token(g.IntN(3))
			return client.Set(ctx, key, int64(g.state.Counter), 0).Err()
		}
	}
	return nil
}

// floor is at times ahead of all that was issued, up to a little beyond what is
// still obeyed.
func (g *game) floor(store *Store) fencing.Token {
	floor := &store.sender.floors[0]
	if g.IntN(60) == 0 {
		floor.Store(int64(g.now.Add(fencing.MaxFloorLead)) + g.Int64N(3) - 1)
	}
	if fencing.Token(floor.Load()) > g.state.Counter && g.IntN(4) == 0 {
		floor.Store(0) // or all that follows is refused until the clock is there
	}
	return fencing.Token(floor.Load())
}

func pick[T any](g *game, of ...T) T { return of[g.IntN(len(of))] }

func (g *game) op(name fencing.Name) fencing.Op {
	lease := pick(g, g.leases...)
	if g.IntN(20) == 0 { // the public part with another secret
		text := lease.Reveal()
		lease, _ = fencing.ParseLeaseID(text[:27] + "AAAAAAAAAAAAAAAAAAAAAA")
	}
	stamp := pick[fencing.Stamp](g, "0000000000000001", "0000000000000001", "0000000000000002", "")
	if h := g.parked(name); h != "" && g.IntN(2) == 0 {
		stamp = h
	}
	switch g.IntN(18) {
	case 0, 1, 2, 3, 4, 5:
		return g.acquire(name, lease, stamp)
	case 6:
		r := fencing.RenewRequest{Name: name, Lease: lease, TTL: pick(g, 0, g.ttl())}
		switch g.IntN(5) {
		case 0:
			r.Mode = fencing.ModeExclusive
		case 1:
			r.Mode, r.Limit = fencing.ModeShared, g.IntN(4)
		case 2, 3:
			r.Permits, r.Limit = 1+g.IntN(4), pick(g, 0, g.IntN(6))
		case 4:
			r.Owner, r.Metadata = pick(g, "", "renamed"), pick[map[string]string](g, nil, map[string]string{}, map[string]string{"k": "w"})
		}
		if g.IntN(2) == 0 {
			r.Stamp, r.Epoch = stamp, pick[int64](g, 0, 0, 1, 2)
		}
		return r
	case 7, 8, 9:
		return fencing.ReleaseRequest{Name: name, Lease: lease, Hold: pick(g, 0, 0, 1, 2, 3), Stamp: pick(g, "", "", stamp), Linger: pick[time.Duration](g, 0, 0, 0, time.Second), Epoch: pick[int64](g, 0, 0, 1, 2)}
	case 10:
		return fencing.TakeBackRequest{Name: name, Lease: lease, Stamp: stamp, Unknown: g.IntN(3) == 0, Left: g.IntN(2) == 0, Linger: pick[time.Duration](g, 0, time.Second), Epoch: pick[int64](g, 0, 0, 1, 2)}
	case 11:
		if len(g.tokens) > 0 {
			last := g.tokens[max(0, len(g.tokens)-12):]
			return fencing.BreakRequest{Name: name, Token: pick(g, last...)}
		}
		return fencing.BreakRequest{Name: name, Token: max(1, g.state.Counter)}
	case 12, 13:
		return fencing.ConfirmRequest{Name: name, Lease: lease, Stamp: stamp}
	case 14:
		return fencing.LeaveRequest{Name: name, Lease: lease, Stamp: stamp}
	case 15, 16: // of a stream
		return fencing.RenewRequest{Name: name, Lease: g.held(name, lease), Stamp: stamp, Epoch: g.Int64N(6)}
	}
	return fencing.ExpireRequest{Name: name}
}

// parked returns the stamp of some holder, if there is one.
func (g *game) parked(name fencing.Name) fencing.Stamp {
	if r := g.state.Records[name]; r != nil && r.Holders.Len() > 0 {
		return pick(g, slices.Collect(r.Holders.All())...).Stamp
	}
	return ""
}

// held returns a lease that holds the name, if one does, or else the given one.
func (g *game) held(name fencing.Name, lease fencing.LeaseID) fencing.LeaseID {
	if r := g.state.Records[name]; r != nil {
		for _, other := range g.leases {
			if _, holds := r.Holders.Find(other.Public()); holds {
				return other
			}
		}
	}
	return lease
}

func (g *game) ttl() time.Duration {
	return pick(g, 100*time.Millisecond, time.Second, 30*time.Second, 10*time.Minute, 24*time.Hour)
}

func (g *game) acquire(name fencing.Name, lease fencing.LeaseID, stamp fencing.Stamp) fencing.AcquireRequest {
	r := fencing.AcquireRequest{
		Name: name, Lease: lease, Stamp: stamp, Owner: "wörker \"7\"", Mode: fencing.ModeExclusive, Hold: 1, TTL: g.ttl(),
	}
	if g.modes == 1 || g.modes == 2 && g.IntN(2) == 0 {
		r.Mode, r.Limit = fencing.ModeShared, pick(g, 0, 1, 2, 3, 5, 10)
		if r.Limit > 0 {
			r.Permits = pick(g, 0, 0, 1, 1+g.IntN(r.Limit), r.Limit)
		}
	}
	switch g.IntN(3) {
	case 0:
		r.MaxHold, r.Owner = r.TTL+time.Duration(g.IntN(3))*time.Second, ""
	case 1:
		r.Metadata = map[string]string{"build": "42", "<ü>": "a\\b \u2028"}
	}
	if g.IntN(3) > 0 {
		r.Wait, r.Keep = time.Minute, g.IntN(2) == 0
		r.MaxWaiters = pick(g, 0, 0, 2, 5)
	}
	if g.IntN(6) == 0 {
		r.Hold = 1 + g.IntN(3)
	}
	r.Again = g.IntN(5) == 0
	if g.IntN(6) == 0 {
		r.Set = pick(g, "a b", "a c")
	}
	r.Attach, r.Epoch = stamp != "" && g.IntN(4) == 0, pick[int64](g, 0, 1, 2, 5)
	return r
}

func (g *game) run(ctx context.Context, s *Store, op fencing.Op) (fencing.Outcome, error) {
	switch op := op.(type) {
	case fencing.AcquireRequest:
		return s.Do(ctx, op)
	case fencing.RenewRequest:
		return s.Do(ctx, op)
	case fencing.ReleaseRequest:
		return s.Do(ctx, op)
	case fencing.TakeBackRequest:
		return s.Do(ctx, op)
	case fencing.ConfirmRequest:
		return s.Do(ctx, op)
	case fencing.LeaveRequest:
		return s.Do(ctx, op)
	case fencing.BreakRequest:
		return s.Do(ctx, op)
	case fencing.InspectRequest:
		return s.Do(ctx, op)
	case fencing.HistoryRequest:
		return s.Do(ctx, op)
	case fencing.ExpireRequest:
		return s.run(ctx, s.newCommand(operation{verb: expireVerb, name: op.Name}, nil)).result()
	}
	return fencing.Outcome{}, errors.New("no such operation")
}
