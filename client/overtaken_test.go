package client

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// racing is a gateway with one lease. Requests that a test has named it carries out, and answers, when it is told to; others
// at once.
type racing struct {
	mu      sync.Mutex
	expires time.Time
	steps   map[string][2]chan struct{} // by the owner that a request asks for: until it is carried out, and answered
}

func (r *racing) RoundTrip(request *http.Request) (*http.Response, error) {
	var body renewRequest
	if request.Method == http.MethodDelete {
		return says(204, "")
	}
	_ = json.NewDecoder(request.Body).Decode(&body)
	body.TTL = cmp.Or(body.TTL, 10000) // of the grant
	r.mu.Lock()
	steps, held := r.steps[body.Owner]
	delete(r.steps, body.Owner)
	r.mu.Unlock()
	if held {
		<-steps[0]
	}
	ttl := millis(body.TTL)
	r.mu.Lock()
	r.expires = time.Now().Add(ttl)
	r.mu.Unlock()
	if held {
		<-steps[1]
	}
	return says(200, fmt.Sprintf(`{"name":"a","lease_id":%q,"fencing_token":7,"ttl_ms":%d,"expires_in_ms":%[2]d,"renew_in_ms":%d}`, request.Header.Get("Lease-Id"), body.TTL, body.TTL/3))
}

// orders returns all orders in which requests can be carried out and answered: each number comes twice.
func orders(requests int) (all [][]int) {
	var order []int
	left := make([]int, requests)
	var draw func()
	draw = func() {
		if len(order) == 2*requests {
			all = append(all, append([]int(nil), order...))
		}
		for n := range left {
			if left[n] < 2 {
				left[n]++
				order = append(order, n)
				draw()
				order = order[:len(order)-1]
				left[n]--
			}
		}
	}
	draw()
	return all
}

// Whichever of renewals that were under way at once the store has carried out last, and whichever is answered first, a lease is counted
// on for no longer than it lives: the lease's own, and two of the same client by its id, of which any may name no TTL.
func TestRenewalsUnderWayAtOnce(t *testing.T) {
	const granted = 10 * time.Second
	all := orders(3)
	if len(all) != 90 {
		t.Fatalf("%d orders", len(all))
	}
	ttls := []time.Duration{0, 2 * time.Second, granted, 40 * time.Second}
	for _, first := range ttls {
		for _, second := range ttls {
			for i, order := range slices.Concat(all, all, all) {
				later := i >= len(all)    // the second is sent when it is carried out, perhaps after others were answered
				unkept := i >= 2*len(all) // a third by its id is in the place of the lease's own
				synctest.Test(t, func(t *testing.T) {
					r := &racing{steps: map[string][2]chan struct{}{}}
					c := scripted(t, 3, r.RoundTrip)
					defer c.Close()
					options := []Option{TTL(granted)}
					if unkept {
						options = append(options, NotRenewed())
					}
					l := must[*Lease](t)(c.Acquire(t.Context(), "a", options...))
					counts := func(when string) {
						t.Helper()
						r.mu.Lock()
						defer r.mu.Unlock()
						if left, lives := l.Remaining(), time.Until(r.expires); l.Err() == nil && left > lives {
							t.Errorf("renewed with %s and %s, in the order %v, %s: it is counted on for %s, and lives for %s", first, second, order, when, left, lives)
						}
					}
					var steps [3][2]chan struct{}
					for n, owner := range []string{"", "b", "c"} {
						steps[n] = [2]chan struct{}{make(chan struct{}), make(chan struct{})}
						r.mu.Lock()
						r.steps[owner] = steps[n]
						r.mu.Unlock()
					}
					advance(granted / 3) // its own is under way
					var calls sync.WaitGroup
					ask := func(owner string, ttl time.Duration) {
						calls.Go(func() {
							if _, err := c.Change(t.Context(), l.ID(), Change{TTL: ttl, Labels: Labels{Owner: owner}}, "a"); err != nil {
								t.Error(err)
							}
						})
						advance(10 * time.Millisecond)
					}
					if unkept {
						ask("", granted)
					}
					ask("b", first)
					if !later {
						ask("c", second)
					}
					var done [3]int
					for _, n := range order {
						if n == 2 && done[n] == 0 && later {
							ask("c", second)
						}
						close(steps[n][done[n]])
						done[n]++
						synctest.Wait()
						counts(fmt.Sprint("after ", done))
						advance(10 * time.Millisecond)
					}
					calls.Wait()
					for range 300 {
						advance(200 * time.Millisecond)
						counts("later")
					}
					if err := l.Err(); err != nil && !unkept {
						t.Errorf("renewed with %s and %s, in the order %v: %v", first, second, order, err)
					}
				})
				if t.Failed() {
					return
				}
			}
		}
	}
}
