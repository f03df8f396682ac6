// Package members has the gateways of a cluster die, stand still, lose their disks, be cut
// off from each other, be replaced, added and removed, while clients use them: no lock has two
// holders, tokens grow, no lease is lost, whoever waits is served in order, and service goes on.
package members

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"

	"fencepost/verify/check"
	"fencepost/verify/system"
)

const (
	threads = 24
	names   = 8
	keepers = 4

	// keptTTL is that of leases that are renewed all the time: longer than any fault.
	keptTTL = 30 * time.Second

	// served bounds how long nothing at all may be granted: this is about liveness, and a busy
	// machine; how long it takes is measured.
	served = 40 * time.Second

	// asking bounds one request: who is not answered asks another gateway.
	asking = 4 * time.Second
)

// load is clients that use all gateways. A request without an answer, or with 503, is repeated at another
// gateway with the same lease id.
type load struct {
	s      *system.System
	r      *check.Result
	asked  []*system.Gateway // that are used: those that there were at first
	client *system.Client
	ctx    context.Context
	cancel context.CancelFunc
	all    sync.WaitGroup

	holders [names]atomic.Int32
	tokens  [names]atomic.Int64
	grants  atomic.Int64

	mu      sync.Mutex
	waiting []since // who waits for a grant that was asked for after a moment
}

type since struct {
	moment time.Time
	told   chan time.Time
}

// begin starts clients, which end with finish.
func begin(ctx context.Context, s *system.System, r *check.Result) *load {
	l := &load{s: s, r: r, asked: slices.Clone(s.Gateways), client: system.NewClient(threads + keepers)}
	l.ctx, l.cancel = context.WithCancel(ctx)
	for i := range threads {
		l.all.Go(func() { l.turns(r.Random(i)) })
	}
	for i := range keepers {
		l.all.Go(func() { l.keep(fmt.Sprintf("kept/%d", i), r.Random(threads+i)) })
	}
	return l
}

// finish ends the clients.
func (l *load) finish() {
	l.cancel()
	l.all.Wait()
	l.client.Close()
	l.r.Count("grants", l.grants.Load())
}

// newLeaseID returns a lease id of a client's own making.
func newLeaseID() string {
	secret := make([]byte, 16)
	rand.Read(secret)
	return ulid.MustNew(ulid.Now(), rand.Reader).String() + "." + base64.RawURLEncoding.EncodeToString(secret)
}

// any returns a gateway, perhaps one that is down.
func (l *load) any(random *mrand.Rand) *system.Gateway {
	return l.asked[random.IntN(len(l.asked))]
}

// ask repeats a request at one gateway after the other until one knows the answer. ok is false at the end of
// all clients.
func (l *load) ask(random *mrand.Rand, do func(ctx context.Context, g *system.Gateway) (system.Answer, error)) (a system.Answer, ok bool) {
	first := time.Time{}
	for l.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(l.ctx, asking)
		got, err := do(ctx, l.any(random))
		cancel()
		if first.IsZero() {
			first = got.Sent
		}
		switch {
		case err != nil: // not answered
		case got.Status == http.StatusServiceUnavailable || got.Status == http.StatusConflict || got.Code == "wait_timeout":
			// 409: an older request of ours is there still, or a newer one has taken its place.
		default:
			return got, true
		}
		pause(l.ctx, time.Duration(5+random.IntN(20))*time.Millisecond)
	}
	return a, false
}

// insist is ask at gateways that are chosen, with an error once it takes too long.
func (l *load) insist(next func() *system.Gateway, do func(ctx context.Context, g *system.Gateway) (system.Answer, error)) (a system.Answer, err error) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline) && l.ctx.Err() == nil; pause(l.ctx, 10*time.Millisecond) {
		ctx, cancel := context.WithTimeout(l.ctx, asking)
		a, err = do(ctx, next())
		cancel()
		if err == nil && a.Status != http.StatusServiceUnavailable {
			return a, nil
		}
	}
	return a, fmt.Errorf("nobody answers: %s, %w", a, errors.Join(err, l.ctx.Err()))
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// turns takes and releases locks.
func (l *load) turns(random *mrand.Rand) {
	for l.ctx.Err() == nil {
		i, id := random.IntN(names), newLeaseID()
		name := fmt.Sprintf("turns/%d", i)
		a, ok := l.ask(random, func(ctx context.Context, g *system.Gateway) (system.Answer, error) {
			return l.client.Acquire(ctx, g, name, id, `{"ttl_ms":20000,"wait_ms":2000}`)
		})
		if !ok {
			return
		}
		if a.Status != http.StatusOK && a.Status != http.StatusCreated {
			l.r.Violation("an acquire of %s was answered %s", name, a)
			continue
		}
		if n := l.holders[i].Add(1); n > 1 {
			l.r.Violation("P1: %d have %s", n, name)
		}
		if last := l.tokens[i].Swap(a.Lease.Token); last >= a.Lease.Token {
			l.r.Violation("P2: token %d of %s came after %d", a.Lease.Token, name, last)
		}
		l.granted(a)
		pause(l.ctx, time.Duration(random.IntN(3000))*time.Microsecond)
		l.holders[i].Add(-1)
		a, ok = l.ask(random, func(ctx context.Context, g *system.Gateway) (system.Answer, error) {
			return l.client.Release(ctx, g, name, id)
		})
		if ok && a.Status != http.StatusNoContent {
			l.r.Violation("a release of %s was answered %s", name, a)
		}
	}
}

// keep holds a lease and renews it: it is never lost.
func (l *load) keep(name string, random *mrand.Rand) {
	id := newLeaseID()
	body := fmt.Sprintf(`{"ttl_ms":%d}`, keptTTL.Milliseconds())
	held, ok := l.ask(random, func(ctx context.Context, g *system.Gateway) (system.Answer, error) {
		return l.client.Acquire(ctx, g, name, id, body)
	})
	for ok && l.ctx.Err() == nil {
		if held.Status != http.StatusOK && held.Status != http.StatusCreated {
			l.r.Violation("a lease of %s was lost: %s", name, held)
			return
		}
		token := held.Lease.Token
		pause(l.ctx, 200*time.Millisecond)
		if held, ok = l.ask(random, func(ctx context.Context, g *system.Gateway) (system.Answer, error) {
			return l.client.Renew(ctx, g, name, id, "")
		}); ok && held.Status == http.StatusOK && held.Lease.Token != token {
			l.r.Violation("the token of %s was %d and is %d", name, token, held.Lease.Token)
		}
	}
}

// kill ends a gateway as kill -9 does, and stop as SIGTERM does. What that did is noted as a fault.
func (l *load) kill(g *system.Gateway, fault string) error { return l.end(g, fault, g.Kill) }
func (l *load) stop(g *system.Gateway, fault string) error { return l.end(g, fault, g.Stop) }

func (l *load) end(g *system.Gateway, fault string, how func() error) error {
	pid := g.PID()
	if err := how(); err != nil {
		return err
	}
	l.r.Harms.Add(fault, g.Ended(pid))
	return nil
}

// over ends a fault, and notes what it did.
func (l *load) over(fault string, harm *system.Harm) error {
	did, err := harm.End(l.ctx)
	if did.N > 0 || l.ctx.Err() == nil {
		l.r.Harms.Add(fault, did)
	}
	return err
}

// wipe has a gateway that does not run lose its disk, and notes how many files that had.
func (l *load) wipe(g *system.Gateway) error {
	files, err := g.Wipe()
	if err == nil {
		l.r.Harms.Add("disk lost", check.Harm{To: g.Name, What: "files lost", N: files})
	}
	return err
}

// granted tells who waits for a grant.
func (l *load) granted(a system.Answer) {
	l.grants.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := 0; i < len(l.waiting); i++ {
		if w := l.waiting[i]; a.Sent.After(w.moment) {
			w.told <- a.Received // has room for it
			l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
			i--
		}
	}
}

// next returns how long after a moment somebody was granted a lock who asked for it after that.
func (l *load) next(moment time.Time, what string) (time.Duration, error) {
	told := make(chan time.Time, 1)
	l.mu.Lock()
	l.waiting = append(l.waiting, since{moment, told})
	l.mu.Unlock()
	select {
	case at := <-told:
		return at.Sub(moment), nil
	case <-time.After(served):
		l.r.Violation("%s: nothing was granted for %s", what, served)
		return served, nil
	case <-l.ctx.Done():
		return 0, l.ctx.Err()
	}
}
