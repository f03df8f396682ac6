package redis

import (
	"testing"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"

	goredis "github.com/redis/go-redis/v9"
)

// A step that takes the waiters of a dead gateway out does not look through the live
// ones before them, nor does an operation that leaves this to another step.
func TestDeadWaitersBehindManyLiveOnes(t *testing.T) {
	few, fewLater := commandsBehind(t, 10)
	many, manyLater := commandsBehind(t, 1300) // more than a call reads at once
	if few == 0 || many != few {
		t.Errorf("the first step reads %d times, behind a few live ones %d times", many, few)
	}
	if manyLater != fewLater {
		t.Errorf("an operation without a step of its own reads %d times, behind a few live ones %d times", manyLater, fewLater)
	}
}

// commandsBehind returns how often a step reads of a queue whose first waiters live,
// and whose last are more of a dead gateway than a step takes out, and how often the
// operation after it.
func commandsBehind(t *testing.T, live int) (first, later int) {
	t.Helper()
	const dead = 2 * fencing.StepLimit
	server := redistest.Start(t)
	b := openOn(t, Options{URL: server.SocketURL(), stepLimit: fencing.StepLimit}, server) // with a limit of their own they do not go on
	client := server.Client()
	defer client.Close()
	near, silent := b.stores[0], b.stores[1]
	name := fencing.Name("orders/42")
	holder := acquireRequest(name)
	mustAcquire(t, near, holder)
	for range live {
		mustWait(t, near, waitRequest(name))
	}
	for range dead {
		mustWait(t, silent, waitRequest(name))
	}
	now := epoch
	for ; now < epoch.Add(fencing.GatewayTTL); now = now.Add(fencing.HeartbeatInterval) {
		b.SetTime(now)
		wantCode(t, "heartbeat", near.Heartbeat(t.Context(), []fencing.Name{sibling(name)}), fencing.CodeOK)
	}
	b.SetTime(now)
	renew := func(left int) int {
		before := reads(t, client)
		out, err := near.Do(t.Context(), fencing.RenewRequest{Name: name, Lease: holder.Lease})
		if err != nil || len(out.Left) != left || !out.More {
			t.Fatalf("%d left the queue, more: %v, %v; want %d", len(out.Left), out.More, err, left)
		}
		return reads(t, client) - before
	}
	return renew(fencing.StepLimit), renew(0)
}

// reads returns how often Redis has read several members of a set or hash.
func reads(t *testing.T, client *goredis.Client) int {
	t.Helper()
	stats := client.Info(t.Context(), "commandstats").Val()
	return calls(stats, "hmget") + calls(stats, "zrange") + calls(stats, "zrangebylex")
}
