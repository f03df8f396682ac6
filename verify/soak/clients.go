package soak

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"fencepost/verify/system"
)

// patience bounds how long a client waits for an answer, beyond its wait_ms.
const patience = 5 * time.Second

func pick[T any](random *rand.Rand, all []T) T { return all[random.IntN(len(all))] }

// work takes leases, works under them, renews them and lets go, as long as ctx lives.
// What a client believes goes into the ledger: from its grant until it heard that it
// has lost the lease, let go, or its own deadline had come.
func (u *run) work(ctx context.Context, random *rand.Rand) {
	for ctx.Err() == nil {
		name := fmt.Sprintf("soak/%d", random.IntN(names))
		g := pick(random, u.s.Gateways)
		asking, cancel := context.WithTimeout(ctx, patience+time.Second)
		a, err := u.client.Acquire(asking, g, name, "", fmt.Sprintf(`{"ttl_ms":%d,"wait_ms":%d}`, ttl.Milliseconds(), pick(random, []int{0, 200, 1000})))
		cancel()
		u.ledger.answered(a, err)
		if err != nil || a.Status != http.StatusCreated {
			rest(ctx, time.Duration(5+random.IntN(20))*time.Millisecond)
			continue
		}
		b := belief{name: name, token: a.Lease.Token, sent: a.Sent, from: a.Received, until: a.Deadline()}
		long := random.IntN(10) == 0
		work := time.Duration(random.IntN(50)) * time.Millisecond
		if long {
			work = time.Duration(random.IntN(3000)) * time.Millisecond
		}
		u.hold(ctx, &b, random, a.Lease.ID, time.Now().Add(work))
		u.ledger.add(b)
	}
}

// hold works until end, renewing at a third of the TTL, and lets go.
func (u *run) hold(ctx context.Context, b *belief, random *rand.Rand, id string, end time.Time) {
	for {
		rest(ctx, min(time.Until(end), ttl/3))
		if now := time.Now(); now.After(b.until) || ctx.Err() != nil {
			return // by its own deadline it must take the lease for lost
		} else if !now.Before(end) {
			break
		}
		renewing, cancel := context.WithDeadline(ctx, b.until)
		a, err := u.client.Renew(renewing, pick(random, u.s.Gateways), b.name, id, "")
		cancel()
		u.ledger.answered(a, err)
		switch {
		case err != nil:
		case a.Status == http.StatusOK:
			b.until = a.Deadline()
		case a.Status == http.StatusPreconditionFailed:
			b.told, b.until = true, earlier(b.until, a.Received)
			return
		}
	}
	b.until = earlier(b.until, time.Now())
	for range 3 {
		letting, cancel := context.WithTimeout(ctx, patience)
		a, err := u.client.Release(letting, pick(random, u.s.Gateways), b.name, id)
		cancel()
		u.ledger.answered(a, err)
		if err == nil && a.Status != http.StatusServiceUnavailable {
			return
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// stream holds attached leases for some seconds each.
func (u *run) stream(ctx context.Context, i int, random *rand.Rand) {
	name := fmt.Sprintf("stream/%d", i)
	for ctx.Err() == nil {
		staying, cancel := context.WithTimeout(ctx, time.Duration(2+random.IntN(6))*time.Second)
		u.attach(staying, pick(random, u.s.Gateways), name)
		cancel()
		rest(ctx, 20*time.Millisecond)
	}
}

// attach holds one attached lease until ctx or the stream ends.
func (u *run) attach(ctx context.Context, g *system.Gateway, name string) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL()+"/locks/"+name, strings.NewReader(fmt.Sprintf(`{"ttl_ms":%d,"wait_ms":60000}`, ttl.Milliseconds())))
	if err != nil {
		return
	}
	r.Header.Set("Accept", "text/event-stream")
	sent := time.Now()
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return
	}
	defer response.Body.Close()
	var b belief
	kind := ""
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if event, ok := bytes.CutPrefix(lines.Bytes(), []byte("event: ")); ok {
			kind = string(event)
			continue
		}
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		var e struct {
			Token     int64 `json:"fencing_token"`
			Elapsed   int64 `json:"elapsed_ms"`
			ExpiresIn int64 `json:"expires_in_ms"`
		}
		if err := json.Unmarshal(data, &e); err != nil {
			u.r.Violation("event %s is not JSON: %v", kind, err)
		}
		until := sent.Add(time.Duration(e.Elapsed+e.ExpiresIn) * time.Millisecond)
		switch kind {
		case "granted":
			b = belief{name: name, token: e.Token, sent: sent, from: time.Now(), until: until}
		case "renewed":
			b.until = until
		case "lost":
			b.told, b.until = true, earlier(b.until, time.Now())
		}
	}
	if b.name != "" {
		if closed, ok := ctx.Deadline(); ok && ctx.Err() != nil { // it has let go itself
			b.until = earlier(b.until, closed)
		}
		u.ledger.add(b)
	}
}
