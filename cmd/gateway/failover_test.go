package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// answers are what clients were told, by status and code.
type answers struct {
	t       *testing.T
	longest int // Retry-After that is right, s

	mu     sync.Mutex
	counts map[string]int
	grants map[string][]grant // by URL
	told   time.Time          // when one was not 503
	gap    time.Duration      // the longest between two of those
}

// ask sends a request, and finds fault with an answer that may never come.
func (a *answers) ask(method, url, body, lease string) (status int, answer []byte) {
	r, err := http.NewRequestWithContext(a.t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		a.t.Error(err)
		return 0, nil
	}
	if lease != "" {
		r.Header.Set("Lease-Id", lease)
	}
	response, err := bounded.Do(r)
	if err != nil {
		if a.t.Context().Err() == nil {
			a.t.Errorf("%s: %v", method, err)
		}
		return 0, nil
	}
	defer response.Body.Close()
	scanner := bufio.NewReader(response.Body)
	var problem struct{ Code string }
	var text strings.Builder
	_, _ = scanner.WriteTo(&text)
	_ = json.Unmarshal([]byte(text.String()), &problem)
	status = response.StatusCode
	switch status {
	case http.StatusOK, http.StatusCreated, http.StatusNoContent, http.StatusPreconditionFailed, http.StatusLocked:
	case http.StatusServiceUnavailable:
		if after, err := strconv.Atoi(response.Header.Get("Retry-After")); err != nil || after < 1 || after > a.longest {
			a.t.Errorf("%s was told to come back in %d s: %s", method, after, text.String())
		}
		if problem.Code != "quarantined" && problem.Code != "unavailable" || problem.Code == "quarantined" && method != http.MethodPost {
			a.t.Errorf("%s was answered %s", method, text.String())
		}
	default:
		a.t.Errorf("%s was answered %d: %s", method, status, text.String())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counts[strings.TrimSpace(fmt.Sprint(method, " ", status, " ", problem.Code))]++
	if status != http.StatusServiceUnavailable {
		if now := time.Now(); !a.told.IsZero() {
			a.gap = max(a.gap, now.Sub(a.told))
		}
		a.told = time.Now()
	}
	return status, []byte(text.String())
}

func (a *answers) count(key string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.counts[key]
}

// client takes, renews and releases leases until ctx ends; half the time it waits.
func (a *answers) client(ctx context.Context, url string, random *rand.Rand) {
	for ctx.Err() == nil {
		url := fmt.Sprintf("%s/locks/orders/%d", url, random.IntN(4))
		g := grant{asked: time.Now()}
		body := fmt.Sprintf(`{"ttl_ms":1000,"wait_ms":%d}`, random.IntN(2)*(20+random.IntN(300)))
		status, answer := a.ask(http.MethodPost, url, body, "")
		g.told = time.Now()
		<-time.After(10 * time.Millisecond)
		if status != http.StatusCreated {
			continue
		}
		if err := json.Unmarshal(answer, &g); err != nil {
			a.t.Error(err)
		}
		g.sureUntil = g.asked.Add(time.Duration(g.ExpiresIn) * time.Millisecond)
		sent := time.Now()
		if status, _ = a.ask(http.MethodPut, url, "", g.LeaseID); status == http.StatusOK {
			g.sureUntil = sent.Add(time.Duration(g.TTL) * time.Millisecond)
		}
		if now := time.Now(); now.Before(g.sureUntil) {
			g.sureUntil = now // the release may be carried out from here on
		}
		a.mu.Lock()
		a.grants[url] = append(a.grants[url], g)
		a.mu.Unlock()
		for range 10 {
			if status, _ = a.ask(http.MethodDelete, url, "", g.LeaseID); status != http.StatusServiceUnavailable {
				break
			}
		}
	}
}

// stream is an attached lease.
type stream struct {
	t      *testing.T
	mu     sync.Mutex
	events []string // their kinds
}

// attach takes a lease that lives as long as the connection, until ctx ends.
func attach(ctx context.Context, t *testing.T, running *sync.WaitGroup, url, body string) *stream {
	t.Helper()
	s := &stream{t: t}
	ctx, leave := context.WithCancel(ctx)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	late := time.AfterFunc(patience, leave)
	response, err := http.DefaultClient.Do(r)
	late.Stop()
	if err != nil {
		t.Fatalf("the answer of %s: %v", url, err)
	}
	running.Go(func() {
		defer leave()
		defer response.Body.Close()
		for lines := bufio.NewScanner(response.Body); lines.Scan(); {
			if kind, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				s.mu.Lock()
				s.events = append(s.events, kind)
				s.mu.Unlock()
			}
		}
	})
	s.await("granted", 1)
	return s
}

func (s *stream) count(kind string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		if e == kind {
			n++
		}
	}
	return n
}

// await waits until there were so many events of a kind.
func (s *stream) await(kind string, n int) {
	s.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); s.count(kind) < n; {
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Fatalf("%d events %q, want %d: %v", s.count(kind), kind, n, s.events)
		}
	}
}

// replicated waits until the replicas have all that a master has now.
func replicated(t *testing.T, master *redistest.Server, replicas int) {
	t.Helper()
	client := master.Client()
	defer client.Close()
	client.Options().ReadTimeout = patience
	conn := client.Conn()
	defer conn.Close()
	if err := conn.Set(t.Context(), "marker", 1, 0).Err(); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Wait(t.Context(), replicas, 5*time.Second).Result(); err != nil || int(n) < replicas {
		t.Fatalf("%d replicas: %v", n, err)
	}
}

// What clients of a gateway see when the master dies that has granted what no
// replica has heard of: nothing but what a client can deal with. Who waits is served
// when the quarantine is over, and a lease that was not lost goes on.
func TestSystemFailoverUnderGateway(t *testing.T) {
	t.Parallel()
	const quarantine = 2 * time.Second
	cluster := redistest.StartSentinel(t, 2, 3)
	url := "http://" + start(t, "FENCEPOST_STORE="+cluster.URL(), "FENCEPOST_QUARANTINE="+quarantine.String()).addr
	eventually(t, http.MethodPost, url+"/locks/first", http.StatusCreated)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	defer stop()
	a := &answers{t: t, longest: int(quarantine.Seconds()), counts: map[string]int{}, grants: map[string][]grant{}}
	for i := range 8 {
		running.Go(func() { a.client(ctx, url, rand.New(rand.NewPCG(uint64(i), 1))) })
	}
	kept := attach(ctx, t, &running, url+"/locks/kept", `{"ttl_ms":9000}`)
	_, body := a.ask(http.MethodPost, url+"/locks/wanted", `{"ttl_ms":20000}`, "")
	var holder holding
	if err := json.Unmarshal(body, &holder); err != nil {
		t.Fatal(err)
	}
	served := make(chan holding, 2)
	wait := func(name string) {
		status, body := a.ask(http.MethodPost, url+"/locks/"+name, `{"ttl_ms":5000,"wait_ms":30000}`, "")
		var h holding
		if err := json.Unmarshal(body, &h); status != http.StatusCreated || err != nil {
			t.Errorf("a request that waited for %s was answered %d: %s", name, status, body)
		}
		served <- h
	}
	running.Go(func() { wait("wanted") })
	if err := awaitWaiting(&gatewayProcess{addr: strings.TrimPrefix(url, "http://")}, "wanted", 1); err != nil {
		t.Fatal(err)
	}
	replicated(t, cluster.Master(), 2)
	cluster.CutReplication()
	doomed := attach(ctx, t, &running, url+"/locks/doomed", `{"ttl_ms":9000}`)
	renewed := kept.count("renewed")
	old := cluster.KillMaster()
	killed := time.Now()
	cluster.NextMaster(old)
	t.Logf("another master after %s", time.Since(killed))

	remaining := awaitQuarantine(t, url)
	if remaining <= 0 || remaining > quarantine {
		t.Errorf("/readyz tells of a quarantine of %s", remaining)
	}
	running.Go(func() { wait("new") })
	doomed.await("lost", 1)
	kept.await("renewed", renewed+1)
	status, body := a.ask(http.MethodDelete, url+"/locks/wanted", "", holder.LeaseID)
	if status != http.StatusNoContent {
		t.Errorf("release of a lease that was not lost: %d %s", status, body)
	}
	for range 2 {
		select {
		case h := <-served:
			if h.LeaseID == "" {
				t.Error("nothing was granted to who waited")
			}
		case <-time.After(patience):
			t.Fatal("who waits is not served")
		}
	}
	t.Logf("who waited was served %s after the death of the master", time.Since(killed))
	created := a.count("POST 201")
	for deadline := time.Now().Add(patience); a.count("POST 201") < created+20; <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing more is granted")
		}
	}
	if kept.count("lost") != 0 || kept.count("granted") != 1 {
		t.Errorf("a lease that was not lost: %v", kept.events)
	}
	stop()
	running.Wait()
	if a.count("POST 503 quarantined") == 0 {
		t.Errorf("nobody was told of a quarantine: %v", a.counts)
	}
	for url, all := range a.grants {
		if err := checkGrants(all); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
	t.Logf("at most %s with nothing but 503", a.gap)
	for _, key := range slices.Sorted(maps.Keys(a.counts)) {
		t.Log(key, a.counts[key])
	}
}

// awaitQuarantine waits until /readyz tells of a quarantine, and returns how long
// it takes.
func awaitQuarantine(t *testing.T, url string) time.Duration {
	t.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(10 * time.Millisecond) {
		status, body, err := request(http.MethodGet, url+"/readyz?verbose", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		var ready struct {
			Checks []struct {
				Name      string
				OK        bool
				Remaining int64 `json:"remaining_ms"`
			}
		}
		if err := json.Unmarshal(body, &ready); err != nil {
			t.Fatalf("%d %s: %v", status, body, err)
		}
		for _, check := range ready.Checks {
			if check.Name == "quarantine" && !check.OK {
				if status != http.StatusOK {
					t.Errorf("/readyz fails in quarantine: %d %s", status, body)
				}
				return time.Duration(check.Remaining) * time.Millisecond
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("/readyz tells of no quarantine: %d %s", status, body)
		}
	}
}

// With acknowledgements demanded and no replica there, nothing is granted and
// nothing is left behind.
func TestNoReplicaAcknowledges(t *testing.T) {
	t.Parallel()
	noReplicaAcknowledges(t, false)
}

func TestSystemNoReplicaAcknowledges(t *testing.T) {
	t.Parallel()
	noReplicaAcknowledges(t, true)
}

func noReplicaAcknowledges(t *testing.T, system bool) {
	cluster := redistest.StartSentinel(t, 1, 1)
	url := "http://" + start(t, "FENCEPOST_STORE="+cluster.URL(), "FENCEPOST_REDIS_REPLICA_ACKS=1").addr + "/locks"
	eventually(t, http.MethodPost, url+"/first", http.StatusCreated)
	replica := cluster.Replicas()[0]
	if err := replica.Kill(); err != nil {
		t.Fatal(err)
	}
	own := map[string]string{"Lease-Id": fencing.NewLeaseID(time.Now()).Reveal()}
	for _, c := range []struct {
		path, body string
		header     map[string]string
		system     bool
	}{
		{"/a", `{"ttl_ms":20000}`, nil, true},
		{"/a", `{"ttl_ms":20000,"wait_ms":2000}`, nil, true},
		{"/a", `{"ttl_ms":20000}`, own, false},
		{"/a", `{"ttl_ms":20000}`, own, false}, // its retry
		{"/a", `{"ttl_ms":20000,"wait_ms":5000}`, map[string]string{"Accept": "text/event-stream"}, true},
		{"", `{"names":["a","b"],"ttl_ms":20000}`, nil, true},
	} {
		if c.system != system {
			continue
		}
		status, answer, err := request(http.MethodPost, url+c.path, c.body, c.header)
		var problem struct{ Code string }
		if err == nil {
			err = json.Unmarshal(answer, &problem)
		}
		if err != nil || status != http.StatusServiceUnavailable || problem.Code != "not_replicated" {
			t.Errorf("acquire of %s without replicas: %d %s, %v", c.body, status, answer, err)
		}
		answered := time.Now()
		for free := false; !free; <-time.After(5 * time.Millisecond) {
			var lock struct{ Held bool }
			if _, view, err := request(http.MethodGet, url+"/a", "", nil); err != nil || json.Unmarshal(view, &lock) != nil {
				t.Fatalf("%s, %v", view, err)
			}
			free = !lock.Held
			if since := time.Since(answered); !free && since > 10*time.Second { // half of its TTL
				t.Errorf("the lease of %s %v is still there after %s", c.body, c.header, since)
				break
			}
		}
	}
	if err := replica.Restart(); err != nil {
		t.Fatal(err)
	}
	eventually(t, http.MethodPost, url+"/a", http.StatusCreated)
}
