package members

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"fencepost/verify/system"
)

// counted is how many names have been held, and are free, while disks are replaced: nothing but their counters is left.
const counted = 16

// belongings is what a cluster must not lose with its disks: a lease that nobody renews, what was admitted at its fence,
// and the counters of names.
type belongings struct {
	name, lease  string
	older, token int64 // of the lease before, and of this one
	counters     [counted]int64
}

// counterName returns the name of a counter.
func (b belongings) counterName(i int) string { return fmt.Sprintf("%s/counted/%d", b.name, i) }

// replaceAll replaces the disks of all nodes, one by one, as a script does that knows nothing but whether gateway cluster
// status exits with 0. Nothing is lost, and somebody is granted a lock all the time. It returns the longest time
// until that, of the three.
func replaceAll(l *load, round int) (longest time.Duration, err error) {
	random := l.r.Random(1000 + round)
	had, err := l.own(round)
	if err != nil {
		return 0, err
	}
	var watching sync.WaitGroup
	served, errs := make([]time.Duration, len(l.s.Gateways)), make([]error, len(l.s.Gateways))
	var scripted []time.Duration
	for i, at := range random.Perm(len(l.s.Gateways)) {
		victim := l.s.Gateways[at]
		end, how, asked := l.kill, "node killed", victim
		if random.IntN(2) == 0 {
			end, how = l.stop, "gateway restarted"
		}
		if random.IntN(2) == 0 { // the script runs elsewhere
			asked = others(l.s, victim)[random.IntN(len(l.s.Gateways)-1)]
		}
		moment := time.Now()
		watching.Go(func() { served[i], errs[i] = l.next(moment, "a disk is replaced") })
		err = errors.Join(end(victim, how), l.wipe(victim), victim.Launch())
		for giveUp := time.Now().Add(patience); err == nil; {
			if _, err = asked.Command("status"); err == nil {
				break
			}
			if time.Now().Before(giveUp) {
				pause(l.ctx, 200*time.Millisecond)
				err = l.ctx.Err()
			}
		}
		if err != nil {
			err = fmt.Errorf("after the disk of %s: %w", victim.Node(), err)
			break
		}
		scripted = append(scripted, time.Since(moment).Round(time.Millisecond))
	}
	watching.Wait()
	if err = errors.Join(append(errs, err)...); err != nil {
		return 0, err
	}
	for _, took := range served {
		longest = max(longest, took)
	}
	l.r.Note("disks, round %d: the nodes took %v", round, scripted)
	return longest, l.kept(had)
}

// own makes what is not to be lost.
func (l *load) own(round int) (b belongings, err error) {
	b.name, b.lease = fmt.Sprintf("disks/%d-%d", round, time.Now().UnixNano()), newLeaseID()
	for i := range b.counters {
		if b.counters[i], err = l.turn(b.counterName(i), newLeaseID()); err != nil {
			return b, err
		}
	}
	if b.older, err = l.turn(b.name, newLeaseID()); err != nil {
		return b, err
	}
	a, err := l.insist(l.others(), func(ctx context.Context, g *system.Gateway) (system.Answer, error) {
		return l.client.Acquire(ctx, g, b.name, b.lease, `{"ttl_ms":3600000}`)
	})
	if b.token = a.Lease.Token; err == nil && b.token <= b.older {
		err = fmt.Errorf("%s can't be had: %s", b.name, a)
	}
	if err != nil {
		return b, err
	}
	a, err = l.admit(b.name, b.token)
	if err == nil && a.Status != http.StatusOK {
		err = fmt.Errorf("token %d of %s is not admitted: %s", b.token, b.name, a)
	}
	return b, err
}

// kept judges whether all of that is there, and gives it back.
func (l *load) kept(b belongings) error {
	a, err := l.insist(l.others(), func(ctx context.Context, g *system.Gateway) (system.Answer, error) {
		return l.client.Renew(ctx, g, b.name, b.lease, "")
	})
	if err != nil {
		return err
	}
	if a.Status != http.StatusOK || a.Lease.Token != b.token {
		l.r.Violation("the lease of %s had token %d, and is lost: %s", b.name, b.token, a)
	}
	if a, err = l.admit(b.name, b.older); err != nil {
		return err
	}
	if a.Code != "stale_token" {
		l.r.Violation("token %d of %s was admitted, and %d after that is answered %s", b.token, b.name, b.older, a)
	}
	if a, err = l.insist(l.others(), func(ctx context.Context, g *system.Gateway) (system.Answer, error) {
		return l.client.Do(ctx, http.MethodGet, fmt.Sprintf("%s/fences/%s?token=%d", g.URL(), b.name, b.token), "", "")
	}); err != nil {
		return err
	}
	var judged struct {
		Verdict  string
		Admitted int64 `json:"highest_admitted"`
	}
	if err := json.Unmarshal(a.Body, &judged); err != nil || judged.Verdict != "live" || judged.Admitted != b.token {
		l.r.Violation("token %d of %s is held and was admitted, and is judged %s, %v", b.token, b.name, a, err)
	}
	for i, before := range b.counters {
		after, err := l.turn(b.counterName(i), newLeaseID())
		if err != nil {
			return err
		}
		if after <= before {
			l.r.Violation("P2: token %d of %s came after %d", after, b.counterName(i), before)
		}
	}
	a, err = l.insist(l.others(), func(ctx context.Context, g *system.Gateway) (system.Answer, error) {
		return l.client.Release(ctx, g, b.name, b.lease)
	})
	if err == nil && a.Status != http.StatusNoContent {
		l.r.Violation("a release of %s was answered %s", b.name, a)
	}
	return err
}

// others returns who returns one gateway after the other.
func (l *load) others() func() *system.Gateway {
	at := 0
	return func() *system.Gateway { at++; return l.s.Gateways[at%len(l.s.Gateways)] }
}

// turn takes and releases a lock that nobody has, and returns its token.
func (l *load) turn(name, id string) (int64, error) {
	held, err := l.insist(l.others(), func(ctx context.Context, g *system.Gateway) (system.Answer, error) {
		return l.client.Acquire(ctx, g, name, id, `{"ttl_ms":60000}`)
	})
	if err == nil && held.Lease.Token == 0 {
		err = fmt.Errorf("nobody can have %s: %s", name, held)
	}
	if err != nil {
		return 0, err
	}
	a, err := l.insist(l.others(), func(ctx context.Context, g *system.Gateway) (system.Answer, error) {
		return l.client.Release(ctx, g, name, id)
	})
	if err == nil && a.Status != http.StatusNoContent {
		err = fmt.Errorf("%s can't be released: %s", name, a)
	}
	return held.Lease.Token, err
}

// admit has a token pass a fence.
func (l *load) admit(name string, token int64) (system.Answer, error) {
	return l.insist(l.others(), func(ctx context.Context, g *system.Gateway) (system.Answer, error) {
		return l.client.Do(ctx, http.MethodPost, g.URL()+"/fences/"+name, "", fmt.Sprintf(`{"fencing_token":%d}`, token))
	})
}
