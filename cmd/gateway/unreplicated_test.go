package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// What too few replicas have is taken back before its client is told so, also if it has
// renewed the lease before: whoever renews afterwards finds none, and nothing is left.
func TestUnreplicatedIsNotRenewed(t *testing.T) {
	t.Parallel()
	unreplicatedIsNotRenewed(t, "plain", "handed")
}

func TestSystemUnreplicatedIsNotRenewed(t *testing.T) {
	t.Parallel()
	unreplicatedIsNotRenewed(t, "waits", "shared", "stream", "set")
}

func unreplicatedIsNotRenewed(t *testing.T, kinds ...string) {
	const clients = 6 // of each kind
	cluster := redistest.StartSentinel(t, 1, 1)
	url := "http://" + start(t, "FENCEPOST_STORE="+cluster.URL(), "FENCEPOST_REDIS_REPLICA_ACKS=1").addr + "/locks"
	eventually(t, http.MethodPost, url+"/first", http.StatusCreated)
	u := &unreplicated{t: t, url: url}
	held := map[string]string{} // of what others wait for: whose it is
	for i := range clients {
		path := fmt.Sprintf("/handed%d", i)
		held[path] = fencing.NewLeaseID(time.Now()).Reveal()
		if status, answer, err := request(http.MethodPost, url+path, "", map[string]string{"Lease-Id": held[path]}); status != http.StatusCreated {
			t.Fatalf("%d %s, %v", status, answer, err)
		}
	}
	replicated(t, cluster.Master(), 1)
	cluster.CutReplication()
	for _, c := range []struct{ name, body, accept string }{
		{"plain", `{"ttl_ms":20000}`, ""},
		{"waits", `{"ttl_ms":20000,"wait_ms":1000}`, ""},
		{"shared", `{"ttl_ms":20000,"mode":"shared","limit":2}`, ""},
		{"stream", `{"ttl_ms":20000}`, "text/event-stream"},
		{"handed", `{"ttl_ms":20000,"wait_ms":2000}`, ""},
		{"set", "", ""},
	} {
		if !slices.Contains(kinds, c.name) {
			continue
		}
		u.told.Store(0)
		u.renewed.Store(0)
		var group sync.WaitGroup
		for i := range clients {
			path := fmt.Sprintf("/%s%d", c.name, i)
			switch c.name {
			case "set":
				names := fmt.Sprintf(`{"names":["s%d","t%d"]}`, i, i)
				group.Go(func() { u.try("", names, "", names, fmt.Sprintf("/s%d", i)) })
			case "handed":
				group.Go(func() { u.releaseWhenWaited(path, held[path]) })
				fallthrough
			default:
				group.Go(func() { u.try(path, c.body, c.accept, "", path) })
			}
		}
		group.Wait()
		if u.told.Load() == 0 {
			t.Errorf("%s: nobody was told that the lease is not replicated", c.name)
		}
		if u.renewed.Load() == 0 {
			t.Errorf("%s: nobody renewed a lease before", c.name)
		}
		t.Logf("%s: %d of %d not replicated, %d renewals before", c.name, u.told.Load(), clients, u.renewed.Load())
	}
}

// unreplicated is a gateway whose Redis has lost its replicas.
type unreplicated struct {
	t       *testing.T
	url     string
	told    atomic.Int64 // not_replicated
	renewed atomic.Int64 // renewals before that which found a lease
}

// try acquires, renews what it looks at all the while, and again when it is answered.
func (u *unreplicated) try(path, acquire, accept, renewal, look string) {
	id := fencing.NewLeaseID(time.Now()).Reveal()
	own := map[string]string{"Lease-Id": id, "Accept": accept}
	stop := u.renewMeanwhile(look, id)
	status, answer, err := request(http.MethodPost, u.url+path, acquire, own)
	stop()
	var problem struct{ Code string }
	if err != nil || status != http.StatusServiceUnavailable || json.Unmarshal(answer, &problem) != nil {
		u.t.Errorf("acquire of %s: %d %s, %v", look, status, answer, err)
		return
	}
	if problem.Code != "not_replicated" { // on a loaded machine it may be unavailable
		return
	}
	u.told.Add(1)
	delete(own, "Accept")
	if status, answer, err := request(http.MethodPut, u.url+path, renewal, own); status != http.StatusPreconditionFailed {
		u.t.Errorf("renewal of %s: %d %s, %v", look, status, answer, err)
	}
	if lock := u.look(look); lock.Held {
		u.t.Errorf("%s is left behind", look)
	}
}

// renewMeanwhile renews a lease again and again until stop, which returns when the last
// renewal is answered.
func (u *unreplicated) renewMeanwhile(path, lease string) (stop func()) {
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for pause := time.NewTicker(25 * time.Millisecond); ; <-pause.C {
			select {
			case <-over:
				return
			default:
			}
			status, answer, err := request(http.MethodPut, u.url+path, "", map[string]string{"Lease-Id": lease})
			switch {
			case err != nil:
				u.t.Error(err)
				return
			case status == http.StatusOK:
				u.renewed.Add(1)
			case status != http.StatusPreconditionFailed && status != http.StatusServiceUnavailable:
				u.t.Errorf("renewal of %s: %d %s", path, status, answer)
			}
		}
	}()
	return func() { close(over); <-done }
}

type lookedAt struct {
	Held    bool
	Waiting int
}

func (u *unreplicated) look(path string) (lock lookedAt) {
	if _, answer, err := request(http.MethodGet, u.url+path, "", nil); err != nil || json.Unmarshal(answer, &lock) != nil {
		u.t.Errorf("%s: %s, %v", path, answer, err)
	}
	return lock
}

// releaseWhenWaited hands a lock over.
func (u *unreplicated) releaseWhenWaited(path, lease string) {
	for u.look(path).Waiting == 0 && !u.t.Failed() {
		<-time.After(5 * time.Millisecond)
	}
	if _, _, err := request(http.MethodDelete, u.url+path, "", map[string]string{"Lease-Id": lease}); err != nil {
		u.t.Error(err)
	}
}
