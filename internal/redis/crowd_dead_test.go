package redis

import (
	"testing"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"

	goredis "github.com/redis/go-redis/v9"
)

// An operation that leaves the waiters of a dead gateway to another step does not look
// through the live ones before them.
func TestDeadWaitersBehindManyLiveOnes(t *testing.T) {
	few := readsBehind(t, 10)
	many := readsBehind(t, 1300) // more than a script reads at once
	if many != few {
		t.Errorf("it reads %d times, behind a few live ones %d times", many, few)
	}
}

// readsBehind has a step meet a queue whose first waiters live, and whose last are more
// of a dead gateway than it takes out. It returns how often the operation after it reads.
func readsBehind(t *testing.T, live int) int {
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
		out, err := near.Renew(t.Context(), fencing.RenewRequest{Name: name, Lease: holder.Lease})
		if err != nil || len(out.Left) != left || !out.More {
			t.Fatalf("%d left the queue, more: %v, %v; want %d", len(out.Left), out.More, err, left)
		}
		return reads(t, client) - before
	}
	renew(fencing.StepLimit)
	return renew(0)
}

// reads returns how often Redis has read several members of a set or hash.
func reads(t *testing.T, client *goredis.Client) int {
	t.Helper()
	stats := client.Info(t.Context(), "commandstats").Val()
	return calls(stats, "hmget") + calls(stats, "zrange") + calls(stats, "zrangebylex")
}
