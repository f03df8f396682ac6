package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// A node of a quorum comes back empty, and the only gateway that was asked for a long TTL is gone: the
// lease that a majority still knows is granted to nobody else before its holder gives it up, and then it is.
func TestSystemANodeForgetsBesideARestart(t *testing.T) {
	t.Parallel()
	const long = 20 * time.Second
	nodes := redistest.StartQuorum(t, 3)
	url := redistest.QuorumURL(nodes)
	first := startOn(t, url, "FENCEPOST_DEFAULT_TTL=2s")
	examineUntil(t, []string{"3 of 3 nodes vote"}, "FENCEPOST_STORE="+url)
	if err := nodes[0].Pause(); err != nil {
		t.Fatal(err)
	}
	stalled := time.After(2 * time.Second) // until what is under way there is too late
	sent := time.Now()
	held, err := acquireAt(t.Context(), first, "a", fmt.Sprintf(`{"ttl_ms":%d}`, long.Milliseconds()))
	if err != nil {
		t.Fatal(err)
	}
	believed := sent.Add(time.Duration(held.ExpiresIn) * time.Millisecond)
	<-stalled
	if err := nodes[0].Resume(); err != nil {
		t.Fatal(err)
	}
	if err := nodes[2].Kill(); err != nil {
		t.Fatal(err)
	}
	if err := first.end(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := nodes[2].Restart(); err != nil {
		t.Fatal(err)
	}
	second := startOn(t, url, "FENCEPOST_DEFAULT_TTL=2s")
	token, at := awaitGrant(t, second, "a", believed)
	if early := believed.Sub(at); early > 0 {
		t.Errorf("granted %s before the lease before it was over", early)
	}
	if token <= held.Token {
		t.Errorf("token %d after %d", token, held.Token)
	}
}

// awaitGrant asks for a lock, without waiting in line, until it is granted, and returns when.
func awaitGrant(t *testing.T, g *gatewayProcess, name string, believed time.Time) (token int64, at time.Time) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(time.Until(believed) + patience); ; {
		status, body, err := request(http.MethodPost, "http://"+g.addr+"/locks/"+name, "", nil)
		var h holding
		if err == nil && status == http.StatusCreated && json.Unmarshal(body, &h) == nil {
			return h.Token, time.Now()
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("it is never granted: %d, %s, %v", status, body, err)
		}
	}
}

// The nodes of a quorum are replaced by empty ones as docs/stores/quorum.md says, each when the one before
// votes again: a lease that is renewed lives through it.
func TestSystemNodesAreReplacedOneByOne(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	nodes := redistest.StartQuorum(t, 3)
	url := redistest.QuorumURL(nodes)
	g := startOn(t, url, fmt.Sprintf("FENCEPOST_DEFAULT_TTL=%s", ttl))
	own := fencing.NewLeaseID(time.Now()).Reveal()
	var held holding
	for deadline := time.Now().Add(patience); held.Token == 0; <-time.After(50 * time.Millisecond) {
		status, body, err := request(http.MethodPost, "http://"+g.addr+"/locks/a", "", map[string]string{"Lease-Id": own})
		if err == nil && status == http.StatusCreated {
			err = json.Unmarshal(body, &held)
		}
		if held.Token == 0 && time.Now().After(deadline) {
			t.Fatalf("acquire was answered %d: %s, %v", status, body, err)
		}
	}
	c := &contended{name: "a", held: holding{LeaseID: own, Token: held.Token}}
	c.rely(time.Now(), held.ExpiresIn)
	stop := c.renewAt(g, false)
	for _, node := range nodes { // one that was slow has it with a renewal
		if err := awaitKey(node, "fencepost:*:lock:a"); err != nil {
			stop()
			t.Fatal(err)
		}
	}
	for _, node := range nodes {
		if err := node.Restart(); err != nil {
			t.Error(err)
		}
		examineUntil(t, []string{"2 of 3 nodes vote"}, "FENCEPOST_STORE="+url)
		examineUntil(t, []string{"3 of 3 nodes vote"}, "FENCEPOST_STORE="+url)
	}
	if over, lost := stop(); over || lost != nil {
		t.Errorf("over: %t, lost: %v", over, lost)
	}
	if err := releaseAt(g, "a", c.held); err != nil {
		t.Error(err)
	}
}

// awaitKey waits until a Redis has a key of a pattern.
func awaitKey(node *redistest.Server, pattern string) error {
	for deadline := time.Now().Add(patience); ; <-time.After(20 * time.Millisecond) {
		keys, err := node.Keys(pattern)
		if len(keys) > 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s has no key %s: %v", node.Addr(), pattern, err)
		}
	}
}
