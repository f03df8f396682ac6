package redis

import (
	"strings"
	"testing"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// replicated returns a master and its replica, which follows it.
func replicated(t *testing.T) (master, replica *redistest.Server) {
	t.Helper()
	master = redistest.Start(t, "--repl-diskless-sync-delay", "0")
	replica = redistest.Start(t, "--replicaof", strings.Replace(master.Addr(), ":", " ", 1))
	follows(t, master)
	return master, replica
}

// follows waits until a master has a replica that keeps up.
func follows(t *testing.T, master *redistest.Server) {
	t.Helper()
	client := master.Client()
	defer client.Close()
	until(t, func() bool { // one that has just been set up may pause again
		for range 3 {
			pipe := client.Pipeline()
			pipe.Set(t.Context(), "follows", "", 0) // who has written nothing is told of replicas that are still being set up
			acked := pipe.Do(t.Context(), "wait", 1, 100)
			if _, err := pipe.Exec(t.Context()); err != nil || acked.Val() != int64(1) {
				return false
			}
		}
		return true
	})
}

// A grant is answered when enough replicas have it. With too few it fails, and
// when it is taken back nothing of it is left.
func TestReplicaAcks(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	master, replica := replicated(t)
	s := open(t, Options{URL: master.URL(), ReplicaAcks: 1})
	held := acquireRequest("held")
	mustAcquire(t, s, held)
	client := replica.Client()
	defer client.Close()
	if n := client.Exists(ctx, s.keys[0].lock("held")).Val(); n != 1 {
		t.Error("the replica does not have a lease that was answered")
	}

	if err := replica.Kill(); err != nil {
		t.Fatal(err)
	}
	r := acquireRequest("a")
	_, err := s.Do(ctx, r)
	wantCode(t, "acquire without replicas", err, fencing.CodeNotReplicated)
	_, err = s.Do(ctx, r)
	wantCode(t, "the same again", err, fencing.CodeNotReplicated)
	_, err = s.Do(ctx, fencing.TakeBackRequest{Name: "a", Lease: r.Lease, Stamp: r.Stamp})
	wantCode(t, "take back", err, fencing.CodeOK)
	out, err := s.Do(ctx, fencing.InspectRequest{Name: "a"})
	if err != nil || out.Lock.Held() {
		t.Errorf("left behind: %+v, %v", out.Lock, err)
	}
	_, err = s.Do(ctx, fencing.RenewRequest{Name: "held", Lease: held.Lease})
	wantCode(t, "renewal without replicas", err, fencing.CodeOK)
	_, err = s.Do(ctx, acquireRequest("held"))
	wantCode(t, "acquire of a held name", err, fencing.CodeLocked)
	mustRelease(t, s, held)

	if err := replica.Restart(); err != nil {
		t.Fatal(err)
	}
	follows(t, master)
	mustAcquire(t, s, r)
}

// A lease that is handed on is not told before enough replicas have it, whatever
// step it was that handed it on.
func TestReplicaAcksOfHandOffs(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	master, replica := replicated(t)
	s := open(t, Options{URL: master.URL(), ReplicaAcks: 1})
	e := listen(t, s)
	held, waiter := acquireRequest("a"), waitRequest("a")
	mustAcquire(t, s, held)
	mustWait(t, s, waiter)
	if err := replica.Kill(); err != nil {
		t.Fatal(err)
	}
	before := e.gapped()
	mustRelease(t, s, held)
	until(t, func() bool { return e.gapped() > before })
	if got := e.granted(waiter.Lease); len(got) != 0 {
		t.Errorf("told although no replica has it: %+v", got)
	}
	_, err := s.Do(ctx, waiter) // as asking again does
	wantCode(t, "asked again", err, fencing.CodeNotReplicated)
	_, err = s.Do(ctx, fencing.LeaveRequest{Name: "a", Lease: waiter.Lease, Stamp: waiter.Stamp})
	wantCode(t, "leaving with a lease no replica has", err, fencing.CodeNotReplicated)
	if err := replica.Restart(); err != nil {
		t.Fatal(err)
	}
	follows(t, master)
	mustAcquire(t, s, waiter)
}
