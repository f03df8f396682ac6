package redis

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// queueCases are the verbs where they meet a queue: what comes before, and the
// call whose answer is lost.
var queueCases = []struct {
	name  string
	setup func(*scene)
	run   func(context.Context, *scene) (fencing.Outcome, error)

	// The waiter of near that the call grants the lock to: near hears of it, or is
	// asked to look.
	grants func(*scene) fencing.AcquireRequest

	// The place is gone the second time, and can't be shown.
	gone bool
}{
	{
		name:  "acquire joins",
		setup: func(sc *scene) { mustAcquire(sc.t, sc.far, sc.holder) },
		run:   func(ctx context.Context, sc *scene) (fencing.Outcome, error) { return sc.near.Do(ctx, sc.waiter) },
	},
	{
		name: "acquire joins behind another",
		setup: func(sc *scene) {
			mustAcquire(sc.t, sc.far, sc.holder)
			mustWait(sc.t, sc.far, sc.other)
		},
		run: func(ctx context.Context, sc *scene) (fencing.Outcome, error) { return sc.near.Do(ctx, sc.waiter) },
	},
	{
		name: "acquire resumes and waits",
		setup: func(sc *scene) {
			mustAcquire(sc.t, sc.far, sc.holder)
			sc.rest(sc.far)
		},
		run: func(ctx context.Context, sc *scene) (fencing.Outcome, error) { return sc.near.Do(ctx, sc.again()) },
	},
	{
		name: "acquire resumes and is granted",
		setup: func(sc *scene) {
			mustAcquire(sc.t, sc.far, sc.holder)
			sc.rest(sc.near)
			mustRelease(sc.t, sc.far, sc.holder)
		},
		run: func(ctx context.Context, sc *scene) (fencing.Outcome, error) { return sc.near.Do(ctx, sc.again()) },
	},
	{
		name: "acquire takes a place over from another gateway",
		setup: func(sc *scene) {
			mustAcquire(sc.t, sc.far, sc.holder)
			mustWait(sc.t, sc.far, sc.waiter)
		},
		run: func(ctx context.Context, sc *scene) (fencing.Outcome, error) { return sc.near.Do(ctx, sc.again()) },
	},
	{
		name: "acquire of a provisional lease",
		setup: func(sc *scene) {
			mustAcquire(sc.t, sc.far, sc.holder)
			mustWait(sc.t, sc.near, sc.waiter)
			mustRelease(sc.t, sc.far, sc.holder)
		},
		run: func(ctx context.Context, sc *scene) (fencing.Outcome, error) { return sc.near.Do(ctx, sc.waiter) },
	},
	{
		name:  "acquire in a set",
		setup: func(sc *scene) { sc.waiter.Set = "a\tb" },
		run:   func(ctx context.Context, sc *scene) (fencing.Outcome, error) { return sc.near.Do(ctx, sc.waiter) },
	},
	{
		name: "acquire of a permit",
		setup: func(sc *scene) {
			sc.other.Mode, sc.other.Limit, sc.other.Wait = fencing.ModeShared, 3, 0
			mustAcquire(sc.t, sc.far, sc.other)
			sc.waiter.Mode, sc.waiter.Limit = fencing.ModeShared, 3
		},
		run: func(ctx context.Context, sc *scene) (fencing.Outcome, error) { return sc.near.Do(ctx, sc.waiter) },
	},
	{
		name:  "re-entry",
		setup: func(sc *scene) { mustAcquire(sc.t, sc.near, sc.holder) },
		run: func(ctx context.Context, sc *scene) (fencing.Outcome, error) {
			deeper := sc.holder
			deeper.Hold, deeper.TTL, deeper.Stamp = 2, time.Minute, sc.other.Stamp
			return sc.near.Do(ctx, deeper)
		},
	},
	{
		name: "renew with a downgrade",
		setup: func(sc *scene) {
			mustAcquire(sc.t, sc.near, sc.holder)
			sc.waiter.Mode = fencing.ModeShared
			mustWait(sc.t, sc.near, sc.waiter)
		},
		run: func(ctx context.Context, sc *scene) (fencing.Outcome, error) {
			return sc.near.Do(ctx, fencing.RenewRequest{Name: sc.holder.Name, Lease: sc.holder.Lease, Mode: fencing.ModeShared, Limit: 2})
		},
		grants: func(sc *scene) fencing.AcquireRequest { return sc.waiter },
	},
	{
		name: "release of a hold",
		setup: func(sc *scene) {
			mustAcquire(sc.t, sc.near, sc.holder)
			deeper := sc.holder
			deeper.Hold = 2
			mustAcquire(sc.t, sc.near, deeper)
			mustWait(sc.t, sc.near, sc.waiter)
		},
		run: func(ctx context.Context, sc *scene) (fencing.Outcome, error) {
			return sc.near.Do(ctx, fencing.ReleaseRequest{Name: sc.holder.Name, Lease: sc.holder.Lease, Hold: 2})
		},
	},
	{
		name:  "release to a waiter of the same gateway",
		setup: func(sc *scene) { sc.held(sc.near) },
		run: func(ctx context.Context, sc *scene) (fencing.Outcome, error) {
			return sc.near.Do(ctx, fencing.ReleaseRequest{Name: sc.holder.Name, Lease: sc.holder.Lease})
		},
		grants: func(sc *scene) fencing.AcquireRequest { return sc.waiter },
	},
	{
		name:  "release to a waiter of another gateway",
		setup: func(sc *scene) { sc.held(sc.far) },
		run: func(ctx context.Context, sc *scene) (fencing.Outcome, error) {
			return sc.near.Do(ctx, fencing.ReleaseRequest{Name: sc.holder.Name, Lease: sc.holder.Lease})
		},
	},
	{
		name: "confirm",
		setup: func(sc *scene) {
			mustAcquire(sc.t, sc.far, sc.holder)
			mustWait(sc.t, sc.near, sc.waiter)
			mustRelease(sc.t, sc.far, sc.holder)
		},
		run: func(ctx context.Context, sc *scene) (fencing.Outcome, error) {
			return sc.near.Do(ctx, fencing.ConfirmRequest{Name: sc.waiter.Name, Lease: sc.waiter.Lease, Stamp: sc.waiter.Stamp})
		},
	},
	{
		name:  "leave",
		gone:  true,
		setup: func(sc *scene) { sc.held(sc.near) },
		run: func(ctx context.Context, sc *scene) (fencing.Outcome, error) {
			return sc.near.Do(ctx, fencing.LeaveRequest{Name: sc.waiter.Name, Lease: sc.waiter.Lease, Stamp: sc.waiter.Stamp})
		},
	},
	{
		name: "leave and rest",
		gone: true,
		setup: func(sc *scene) {
			sc.waiter.Keep = true
			sc.held(sc.near)
		},
		run: func(ctx context.Context, sc *scene) (fencing.Outcome, error) {
			return sc.near.Do(ctx, fencing.LeaveRequest{Name: sc.waiter.Name, Lease: sc.waiter.Lease, Stamp: sc.waiter.Stamp})
		},
	},
	{
		name: "leave lets others by",
		gone: true,
		setup: func(sc *scene) { // a reader holds, a writer waits, a reader waits behind it
			sc.holder.Mode, sc.other.Mode = fencing.ModeShared, fencing.ModeShared
			sc.held(sc.near)
			mustWait(sc.t, sc.near, sc.other)
		},
		run: func(ctx context.Context, sc *scene) (fencing.Outcome, error) {
			return sc.near.Do(ctx, fencing.LeaveRequest{Name: sc.waiter.Name, Lease: sc.waiter.Lease, Stamp: sc.waiter.Stamp})
		},
		grants: func(sc *scene) fencing.AcquireRequest { return sc.other },
	},
	{
		name: "leave after the grant",
		setup: func(sc *scene) {
			sc.held(sc.near)
			mustRelease(sc.t, sc.near, sc.holder)
		},
		run: func(ctx context.Context, sc *scene) (fencing.Outcome, error) {
			return sc.near.Do(ctx, fencing.LeaveRequest{Name: sc.waiter.Name, Lease: sc.waiter.Lease, Stamp: sc.waiter.Stamp})
		},
	},
	{
		name:  "take back of a grant",
		setup: func(sc *scene) { sc.held(sc.near) },
		run: func(ctx context.Context, sc *scene) (fencing.Outcome, error) {
			return sc.near.Do(ctx, fencing.TakeBackRequest{Name: sc.holder.Name, Lease: sc.holder.Lease, Stamp: sc.holder.Stamp})
		},
		grants: func(sc *scene) fencing.AcquireRequest { return sc.waiter },
	},
	{
		name: "take back of a grant whose place may rest",
		setup: func(sc *scene) {
			sc.holder.Wait, sc.holder.Keep = time.Minute, true
			sc.held(sc.near)
		},
		run: func(ctx context.Context, sc *scene) (fencing.Outcome, error) {
			return sc.near.Do(ctx, fencing.TakeBackRequest{Name: sc.holder.Name, Lease: sc.holder.Lease, Stamp: sc.holder.Stamp})
		},
		grants: func(sc *scene) fencing.AcquireRequest { return sc.waiter },
	},
	{
		name:  "take back of a place",
		setup: func(sc *scene) { sc.held(sc.near) },
		run: func(ctx context.Context, sc *scene) (fencing.Outcome, error) {
			return sc.near.Do(ctx, fencing.TakeBackRequest{Name: sc.waiter.Name, Lease: sc.waiter.Lease, Stamp: sc.waiter.Stamp})
		},
	},
	{
		name:  "break",
		setup: func(sc *scene) { sc.held(sc.near) },
		run: func(ctx context.Context, sc *scene) (fencing.Outcome, error) {
			view, err := sc.far.Do(ctx, fencing.InspectRequest{Name: sc.holder.Name})
			if err != nil {
				return view, err
			}
			return sc.near.Do(ctx, fencing.BreakRequest{Name: sc.holder.Name, Token: view.Lock.LastToken})
		},
		grants: func(sc *scene) fencing.AcquireRequest { return sc.waiter },
	},
	{
		name: "break past a dead gateway",
		setup: func(sc *scene) {
			sc.held(sc.far)
			mustWait(sc.t, sc.near, sc.other)
			sc.pass(fencing.GatewayTTL / 2)
			sc.beat()
			sc.pass(fencing.GatewayTTL / 2)
		},
		run: func(ctx context.Context, sc *scene) (fencing.Outcome, error) {
			view, err := sc.far.Do(ctx, fencing.InspectRequest{Name: sc.holder.Name})
			if err != nil {
				return view, err
			}
			return sc.near.Do(ctx, fencing.BreakRequest{Name: sc.holder.Name, Token: view.Lock.LastToken})
		},
		grants: func(sc *scene) fencing.AcquireRequest { return sc.other },
	},
	{
		name: "expiry",
		setup: func(sc *scene) {
			sc.holder.TTL = time.Second
			sc.held(sc.near)
			sc.pass(time.Second)
		},
		run: func(ctx context.Context, sc *scene) (fencing.Outcome, error) {
			return fencing.Outcome{}, sc.near.expireNames(ctx, []fencing.Name{sc.holder.Name}, nil)
		},
		grants: func(sc *scene) fencing.AcquireRequest { return sc.waiter },
	},
	{
		name: "end of a provisional lease",
		setup: func(sc *scene) {
			sc.held(sc.far)
			mustWait(sc.t, sc.near, sc.other)
			mustRelease(sc.t, sc.near, sc.holder)
			sc.pass(fencing.GatewayTTL / 2)
			sc.beat()
			sc.pass(fencing.GatewayTTL / 2)
		},
		run: func(ctx context.Context, sc *scene) (fencing.Outcome, error) {
			return fencing.Outcome{}, sc.near.expireNames(ctx, []fencing.Name{sc.holder.Name}, nil)
		},
		grants: func(sc *scene) fencing.AcquireRequest { return sc.other },
	},
	{
		name: "heartbeat",
		setup: func(sc *scene) {
			mustAcquire(sc.t, sc.far, sc.holder)
			mustWait(sc.t, sc.near, sc.waiter)
			mustRelease(sc.t, sc.far, sc.holder)
		},
		run: func(ctx context.Context, sc *scene) (fencing.Outcome, error) {
			return fencing.Outcome{}, sc.near.Heartbeat(ctx, []fencing.Name{sc.waiter.Name})
		},
	},
}

// Whatever meets a queue may lose its answer, and comes to the same outcome and
// leaves the same behind as if it had not, down to every key.
func TestLostRepliesInQueue(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	defer client.Close()
	for _, c := range queueCases {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			original := scene{holder: acquireRequest("orders/42"), waiter: waitRequest("orders/42"), other: waitRequest("orders/42")}
			var want, wantState string
			for _, loss := range []string{"none", "cut", "silent"} {
				t.Run(loss, func(t *testing.T) {
					client.FlushAll(t.Context())
					proxy := redistest.StartProxy(t, server.Addr())
					now := &atomic.Int64{}
					now.Store(int64(epoch))
					options := Options{
						Quarantine:  QuarantinePolicy{Off: true},
						ReadTimeout: 200 * time.Millisecond, OperationTimeout: 10 * time.Second,
						Now:   func() fencing.Instant { return fencing.Instant(now.Load()) },
						Clock: func() time.Time { return fencing.Instant(now.Load()).Time() },
					}
					sc := original
					sc.t, sc.now = t, now
					options.URL = proxy.URL()
					sc.near = open(t, options)
					options.URL = server.URL()
					sc.far = open(t, options)
					sc.recorder = listen(t, sc.near)
					listen(t, sc.far)
					until(t, func() bool { return sc.recorder.gapped() == 1 })
					c.setup(&sc)
					wantCode(t, "check", sc.near.Check(t.Context()), fencing.CodeOK)
					if loss != "none" {
						proxy.SwallowReply(loss == "silent")
					}
					out, err := c.run(t.Context(), &sc)
					if loss != "none" && proxy.Lost() != 1 {
						t.Fatalf("%s: %d answers were lost, want 1", loss, proxy.Lost())
					}
					if c.gone {
						out.Place, out.Lock = nil, nil
					}
					got, state := describeOutcome(out, err), sc.state(client)
					if loss == "none" {
						want, wantState = got, state
						wantCode(t, "without loss", err, fencing.CodeOK)
					}
					if got != want {
						t.Errorf("%s: the outcome is\n%s\nwant\n%s", loss, got, want)
					}
					if state != wantState {
						t.Errorf("%s: the state is\n%s\nwant\n%s", loss, state, wantState)
					}
					if c.grants != nil {
						sc.wantGrant(c.grants(&sc), loss == "none")
					}
				})
			}
		})
	}
}
