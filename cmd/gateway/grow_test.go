package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/redis/redistest"
)

// One gateway on the embedded store becomes a cluster of three, and one of these a gateway on the embedded store again, as
// docs/operations.md says. No lease is lost, nor anything else that a client was told.
func TestOneBecomesThree(t *testing.T) {
	t.Parallel()
	oneBecomesThree(t, syscall.SIGTERM, true)
}

// It may be killed before, and be a cluster of one for a while that knows of no others.
func TestSystemOneThatWasKilledBecomesThree(t *testing.T) {
	t.Parallel()
	oneBecomesThree(t, syscall.SIGKILL, false)
}

func oneBecomesThree(t *testing.T, end os.Signal, othersWait bool) {
	a, b, c := loner(t), loner(t), loner(t)
	list := "FENCEPOST_STORE=raft://" + strings.Join([]string{a.addr, b.addr, c.addr}, ",")
	startOthers := func() {
		for _, m := range []*member{b, c} {
			must(t, m.start(list, "FENCEPOST_CLUSTER_ADDR="+m.addr))
		}
	}
	must(t, a.start())
	told := tellClients(t, a.gateway)
	r := renewing(t, a.gateway, 30*time.Second)
	told.keptAt(a.gateway, "the embedded store")

	if err := a.gateway.end(end); err != nil && end == syscall.SIGTERM {
		t.Error(err)
	}
	first := list
	if othersWait {
		startOthers()
	} else {
		first = "FENCEPOST_STORE=raft://" + a.addr
	}
	a.doctor("the data of a single gateway: a cluster is formed from it", first, "FENCEPOST_CLUSTER_ADDR="+a.addr)
	must(t, a.start(first, "FENCEPOST_CLUSTER_ADDR="+a.addr))
	a.says(ready)
	r.goesOnAt(a)
	told.keptAt(a.gateway, "a cluster of one")
	a.members(0, list, a)

	if !othersWait {
		startOthers()
	}
	for _, m := range []*member{b, c} {
		m.says("gateway cluster add " + m.addr)
		a.cluster(list, "add", m.addr)
	}
	a.members(1, list, a, b, c)
	c.says(ready)
	told.keptAt(c.gateway, "a cluster of three")

	r.mayAskAt(a, b, c)
	a.stop()
	r.goesOnAt(b, c)
	told.keptAt(b.gateway, "a cluster that has lost the first")
	refused(t, a.dir, "a node of a cluster of 3")

	b.cluster(list, "remove", a.addr)
	b.cluster(list, "remove", c.addr)
	b.members(0, list, b)
	r.goesOnAt(b)
	c.stop()
	refused(t, c.dir, "a node")
	must(t, b.gateway.end(syscall.SIGTERM))
	b.doctor("it can be read")
	must(t, b.start())
	r.goesOnAt(b)
	told.keptAt(b.gateway, "the embedded store of the second")
	r.stop()
}

// Two directories of the embedded store don't become one cluster: who has founded one goes on, the other gateway does not
// start, and its leases stay where they are. An empty one waits to be added.
func TestTwoStoresDoNotBecomeOneCluster(t *testing.T) {
	t.Parallel()
	first, second, empty := loner(t), loner(t), loner(t)
	for _, m := range []*member{first, second} {
		must(t, m.start())
		_, err := acquireAt(t.Context(), m.gateway, "a", `{"ttl_ms":3600000}`)
		must(t, err, m.gateway.end(syscall.SIGTERM))
	}
	list := "FENCEPOST_STORE=raft://" + strings.Join([]string{empty.addr, first.addr, second.addr}, ",")
	must(t, empty.start(list, "FENCEPOST_CLUSTER_ADDR="+empty.addr))
	empty.says("a new cluster is formed when all nodes of FENCEPOST_STORE have been reached")
	must(t, first.start(list, "FENCEPOST_CLUSTER_ADDR="+first.addr))
	first.says(ready)
	first.members(0, list, first)
	refused(t, second.dir, "is that of a single gateway, from which a cluster is formed; but "+first.addr, list, "FENCEPOST_CLUSTER_ADDR="+second.addr)
	empty.says("gateway cluster add " + empty.addr)
	must(t, second.start())
	if status, body, err := request(http.MethodPost, "http://"+second.gateway.addr+"/locks/a", "", nil); err != nil || status != http.StatusLocked {
		t.Errorf("the lease of the second is gone: %d, %s, %v", status, body, err)
	}
}

// loner is a gateway that has the embedded store, unless it is started with other settings.
func loner(t *testing.T) *member {
	m := &member{t: t, addr: redistest.FreeAddr(t), dir: t.TempDir(), env: []string{"PATH=" + os.Getenv("PATH"), "FENCEPOST_LISTEN_ADDR=127.0.0.1:0"}}
	t.Cleanup(m.stop)
	return m
}

// run runs the program to its end with this gateway's directory, beside it.
func (m *member) run(args []string, env ...string) (out string, err error) {
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "gateway", args...)
	cmd.Dir, cmd.Env = m.dir, append(slices.Clone(m.env), append(env, exitAtOnce)...)
	said, err := cmd.CombinedOutput()
	return string(said), err
}

// cluster changes the cluster, again while it is refused: who was made leader a moment ago may not know yet how the others are.
func (m *member) cluster(list string, args ...string) {
	m.t.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(look) {
		out, err := m.run(append([]string{"cluster"}, args...), list, "FENCEPOST_CLUSTER_ADDR="+m.addr)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("gateway cluster %s: %v: %s", args, err, out)
		}
	}
}

// members waits until gateway cluster status has those members, of which so many may fail. A slow disk is none of its concern.
func (m *member) members(mayFail int, list string, want ...*member) {
	m.t.Helper()
	var addrs []string
	for _, of := range want {
		addrs = append(addrs, of.addr)
	}
	slices.Sort(addrs)
	for deadline := time.Now().Add(patience); ; <-time.After(look) {
		out, err := m.run([]string{"cluster", "status", "-json"}, list, "FENCEPOST_CLUSTER_ADDR="+m.addr)
		var status struct {
			MayFail int `json:"may_fail"`
			Members []struct {
				Address string
				Voter   bool
			}
		}
		if decoded := json.NewDecoder(strings.NewReader(out)).Decode(&status); decoded == nil {
			var got []string
			for _, of := range status.Members {
				if of.Voter {
					got = append(got, of.Address)
				}
			}
			if slices.Equal(got, addrs) && status.MayFail == mayFail {
				return
			}
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("the members never are %s, of which %d may fail: %v: %s", addrs, mayFail, err, out)
		}
	}
}

// doctor has gateway doctor say a text.
func (m *member) doctor(says string, env ...string) {
	m.t.Helper()
	if out, err := m.run([]string{"doctor"}, env...); !strings.Contains(out, says) {
		m.t.Errorf("doctor does not say %q, but %v:\n%s", says, err, out)
	}
}

// refused has a gateway not start in a directory, and say why.
func refused(t *testing.T, dir, says string, env ...string) {
	t.Helper()
	m := &member{t: t, dir: dir, env: []string{"PATH=" + os.Getenv("PATH"), "FENCEPOST_LISTEN_ADDR=127.0.0.1:0"}}
	if out, err := m.run(nil, env...); err == nil || !strings.Contains(out, says) || strings.Contains(out, "leads the cluster") {
		t.Errorf("a gateway in a directory that is not its own ends with %v:\n%s", err, out)
	}
}

// told is what clients were told, but for one that renews.
type told struct {
	t       *testing.T
	deep    holding // two holds
	permits [2]holding
	fence   [2]int64 // tokens, of which the second was admitted
	history string   // of the name of those
	highest int64    // token of all
	asked   int      // how often keptAt was
}

// tellClients has clients ask for all kinds of things.
func tellClients(t *testing.T, g *gatewayProcess) *told {
	t.Helper()
	c := &told{t: t}
	acquire := func(name, body string) holding {
		t.Helper()
		h, err := acquireAt(t.Context(), g, name, body)
		must(t, err)
		c.highest = max(c.highest, h.Token)
		return h
	}
	for i := range c.fence {
		h := acquire("past", `{"owner":"nightly"}`)
		c.fence[i] = h.Token
		must(t, releaseAt(g, "past", h))
	}
	c.want(g, "the first", http.StatusOK, http.MethodPost, "/fences/past", fmt.Sprintf(`{"fencing_token":%d}`, c.fence[1]), nil)
	const long = `"ttl_ms":3600000`
	for i := range c.permits {
		c.permits[i] = acquire("permits", `{"mode":"shared","limit":2,`+long+`}`)
	}
	c.deep = acquire("deep", "{"+long+"}")
	c.want(g, "the first", http.StatusOK, http.MethodPost, "/locks/deep", `{"hold":2,`+long+`}`, map[string]string{"Lease-Id": c.deep.LeaseID})
	c.history = c.want(g, "the first", http.StatusOK, http.MethodGet, "/history/past", "", nil)
	return c
}

// want returns an answer, which has a status. It asks again while nothing is known.
func (c *told) want(g *gatewayProcess, what string, want int, method, path, body string, header map[string]string) string {
	c.t.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(look) {
		status, answer, err := request(method, "http://"+g.addr+path, body, header)
		if err == nil && unavailable(status, answer) && time.Now().Before(deadline) {
			continue
		}
		if err != nil || status != want {
			c.t.Fatalf("%s: %s %s is answered %d, want %d: %s, %v", what, method, path, status, want, answer, err)
		}
		return string(answer)
	}
}

// keptAt fails the test unless a gateway has kept all of it, and grants what is newer.
func (c *told) keptAt(g *gatewayProcess, what string) {
	c.t.Helper()
	has := func(path string, all ...string) {
		c.t.Helper()
		answer := c.want(g, what, http.StatusOK, http.MethodGet, path, "", nil)
		for _, part := range all {
			if !strings.Contains(answer, part) {
				c.t.Errorf("%s: GET %s has no %s: %s", what, path, part, answer)
			}
		}
	}
	has("/locks/deep", fmt.Sprintf(`"fencing_token":%d,"hold":2`, c.deep.Token))
	has("/locks/permits", fmt.Sprintf(`"fencing_token":%d`, c.permits[0].Token), fmt.Sprintf(`"fencing_token":%d`, c.permits[1].Token), `"holder_count":2`)
	c.want(g, what, http.StatusLocked, http.MethodPost, "/locks/permits", `{"mode":"shared","limit":2}`, nil)
	c.want(g, what, http.StatusOK, http.MethodPut, "/locks/deep", "", map[string]string{"Lease-Id": c.deep.LeaseID})
	c.want(g, what, http.StatusPreconditionFailed, http.MethodPost, "/fences/past", fmt.Sprintf(`{"fencing_token":%d}`, c.fence[0]), nil)
	c.want(g, what, http.StatusOK, http.MethodPost, "/fences/past", fmt.Sprintf(`{"fencing_token":%d}`, c.fence[1]), nil)
	if now := c.want(g, what, http.StatusOK, http.MethodGet, "/history/past", "", nil); now != c.history {
		c.t.Errorf("%s: the history is\n%s, and was\n%s", what, now, c.history)
	}
	c.asked++
	newer, err := acquireAt(c.t.Context(), g, fmt.Sprintf("newer/%d", c.asked), "")
	must(c.t, err)
	if newer.Token <= c.highest {
		c.t.Errorf("%s: token %d after %d", what, newer.Token, c.highest)
	}
	c.highest = newer.Token
}

// renewal is a client that renews its lease throughout.
type renewal struct {
	t     *testing.T
	held  holding
	end   context.CancelFunc
	ended chan struct{}

	mu       sync.Mutex
	gateways []string      // that it may ask
	answered chan struct{} // closed with the next renewal
	lost     error
}

// renewing has a client acquire a lease and renew it every 200 ms, at any gateway that serves.
func renewing(t *testing.T, g *gatewayProcess, ttl time.Duration) *renewal {
	t.Helper()
	h, err := acquireAt(t.Context(), g, "renewed", fmt.Sprintf(`{"ttl_ms":%d}`, ttl.Milliseconds()))
	must(t, err)
	r := &renewal{t: t, held: h, ended: make(chan struct{}), gateways: []string{g.addr}, answered: make(chan struct{})}
	ctx, end := context.WithCancel(t.Context())
	r.end = end
	go func() {
		defer close(r.ended)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for r.renew() {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(r.stop)
	return r
}

// renew asks one gateway after the other until one has renewed the lease. It returns false once that is lost.
func (r *renewal) renew() bool {
	r.mu.Lock()
	gateways := r.gateways
	r.mu.Unlock()
	for _, addr := range gateways {
		status, body, err := request(http.MethodPut, "http://"+addr+"/locks/renewed", "", map[string]string{"Lease-Id": r.held.LeaseID})
		var h holding
		switch {
		case err != nil || status == http.StatusServiceUnavailable:
			continue
		case status != http.StatusOK || json.Unmarshal(body, &h) != nil || h.Token != r.held.Token:
			r.mu.Lock()
			defer r.mu.Unlock()
			r.lost = fmt.Errorf("the renewal of a lease with token %d is answered %d: %s", r.held.Token, status, body)
			return false
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		close(r.answered)
		r.answered = make(chan struct{})
		return true
	}
	return true
}

func (r *renewal) mayAskAt(all ...*member) {
	var gateways []string
	for _, m := range all {
		gateways = append(gateways, m.gateway.addr)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gateways = gateways
}

// goesOnAt waits until the lease was renewed by some gateways: the first renewal may have been asked for before.
func (r *renewal) goesOnAt(all ...*member) {
	r.t.Helper()
	r.mayAskAt(all...)
	for late, n := time.After(patience), 0; n < 2; n++ {
		r.mu.Lock()
		answered := r.answered
		r.mu.Unlock()
		select {
		case <-answered:
		case <-r.ended:
			r.t.Fatal(r.lost)
		case <-late:
			r.t.Fatal("the lease is renewed no more")
		}
	}
}

// stop ends the client, and fails the test if the lease was lost.
func (r *renewal) stop() {
	r.end()
	<-r.ended
	if r.lost != nil {
		r.t.Error(r.lost)
	}
}
