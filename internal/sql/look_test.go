package sql

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// holdsBack is for the connections of a gateway, and holds the next turn back that has read the database's clock and is not committed yet.
type holdsBack struct {
	armed atomic.Bool
	has   chan struct{} // one when a turn is held back
	goOn  chan struct{} // lets it go on
}

type heldBack struct {
	connection
	of *holdsBack
}

func (h heldBack) commit(ctx context.Context, e *entry) error {
	if h.of.armed.CompareAndSwap(true, false) {
		h.of.has <- struct{}{}
		<-h.of.goOn
	}
	return h.connection.commit(ctx, e)
}

// Nobody is told that a lease has ended which is renewed then: a turn that has read the clock before the end may be committed behind it, and
// who looks meanwhile, at another gateway, finds the log without it.
func TestWhoLooksWhileALeaseIsRenewed(t *testing.T) {
	t.Parallel()
	looks := map[string]func(*Store, fencing.Name) (bool, error){
		"inspect": func(s *Store, name fencing.Name) (bool, error) {
			out, err := s.Do(context.Background(), fencing.InspectRequest{Name: name})
			return err == nil && out.Lock.Held(), err
		},
		"list": func(s *Store, name fencing.Name) (bool, error) {
			page, err := s.List(context.Background(), fencing.ListRequest{Prefix: string(name), Limit: 10})
			return err == nil && len(page.Locks) == 1 && page.Locks[0].Held(), err
		},
	}
	onBothPlaces(t, func(t *testing.T, place *place) {
		h := &holdsBack{has: make(chan struct{}), goOn: make(chan struct{})}
		a := openGateway(t, Options{URL: place.url, Logger: testLog(t)})
		b := openGateway(t, Options{URL: place.url, Logger: testLog(t), aloneAfter: -1, wrap: through(func(c connection) connection { return heldBack{c, h} })})
		for what, look := range looks {
			tries := 0
			// renews reports whether a lease was renewed after its end had passed: not where the machine was so busy that it had passed before.
			renews := func() bool {
				tries++
				name := fencing.Name(what + itoa(tries))
				held := acquire(t, b, name, 300*time.Millisecond)
				ended := time.Now().Add(300 * time.Millisecond)
				h.armed.Store(true)
				renewed := make(chan error, 1)
				go func() {
					_, err := b.Do(context.Background(), fencing.RenewRequest{Name: name, Lease: held.lease, TTL: time.Minute})
					renewed <- err
				}()
				<-h.has
				over(t, ended)
				type seen struct {
					held bool
					err  error
				}
				looked := make(chan seen, 1)
				go func() {
					held, err := look(a, name)
					looked <- seen{held, err}
				}()
				await(t, "who looks has an answer, or waits for the turn", func() bool { return len(looked) > 0 || place.isWaitedFor() })
				h.goOn <- struct{}{}
				err := <-renewed
				saw := <-looked
				if saw.err != nil {
					t.Fatalf("%s: %v", what, saw.err)
				}
				if err == nil {
					if !saw.held {
						t.Errorf("%s: a lease was told to have ended, and was renewed then", what)
					}
					mustDo(t, b, fencing.ReleaseRequest{Name: name, Lease: held.lease})
				}
				return err == nil
			}
			await(t, what, renews)
		}
	})
}

// refusingConn is a connection to a database that accepts no writes.
type refusingConn struct {
	connection
	with *atomic.Pointer[error]
}

func (c refusingConn) commit(ctx context.Context, e *entry) error {
	if err := c.with.Load(); err != nil {
		return *err
	}
	return c.connection.commit(ctx, e)
}

func (c refusingConn) tries(ctx context.Context, size int, like row) error {
	if err := c.with.Load(); err != nil {
		return *err
	}
	return c.connection.tries(ctx, size, like)
}

// Where nothing can be written, what has ended by the time is shown all the same, but one name where a turn is only waited for in vain: then
// nobody knows whether its lease is renewed.
func TestLooksWhileNothingIsWritten(t *testing.T) {
	t.Parallel()
	causes := []error{refused{full.fault(errors.New("no space left")), ofAll}, unclear{noRights.fault(errors.New("permission denied"))}, lockedBy("somebody")}
	onBothPlaces(t, func(t *testing.T, place *place) {
		var with atomic.Pointer[error]
		a := openGateway(t, Options{URL: place.url, Logger: testLog(t), aloneAfter: -1, wrap: through(func(c connection) connection { return refusingConn{c, &with} })})
		for i, cause := range causes {
			name := fencing.Name("ends" + itoa(i))
			acquire(t, a, name, 50*time.Millisecond)
			ended := time.Now().Add(50 * time.Millisecond)
			with.Store(&cause)
			over(t, ended)
			for range 2 { // the first one finds out
				if page, err := a.List(t.Context(), fencing.ListRequest{Limit: 10}); err != nil || len(page.Locks) > 0 {
					t.Errorf("%v: %d locks, %v", cause, len(page.Locks), err)
				}
			}
			out, err := a.Do(t.Context(), fencing.InspectRequest{Name: name})
			if errors.Is(cause, errLocked) {
				if code(err) != fencing.CodeUnavailable {
					t.Errorf("%v: %v", cause, err)
				}
			} else if err != nil || out.Lock.Held() {
				t.Errorf("%v: held: %t, %v", cause, err == nil && out.Lock.Held(), err)
			}
			with.Store(nil)
			await(t, "all goes on", func() bool {
				_, err := a.Do(t.Context(), fencing.ReleaseRequest{Name: name, Lease: fencing.NewLeaseID(time.Now())})
				return code(err) != fencing.CodeUnavailable
			})
		}
	})
}

// The time is written down once: not by each look at what has ended and is still there, as what a transaction guards is.
func TestLooksWriteOnce(t *testing.T) {
	t.Parallel()
	onBothPlaces(t, func(t *testing.T, place *place) {
		a := openGateway(t, Options{URL: place.url, Logger: testLog(t)})
		for i := range 100 {
			acquire(t, a, fencing.Name("a"+itoa(i)), 50*time.Millisecond)
		}
		over(t, time.Now().Add(50*time.Millisecond+mostLate)) // a turn of one message may be so late
		look := func() {
			if page, err := a.List(t.Context(), fencing.ListRequest{Limit: 10}); err != nil || len(page.Locks) > 0 {
				t.Errorf("%d locks, %v", len(page.Locks), err)
			}
			for i := range 100 {
				if out := mustDo(t, a, fencing.InspectRequest{Name: fencing.Name("a" + itoa(i))}); out.Lock.Held() {
					t.Errorf("%s is held", out.Lock.Name)
				}
			}
		}
		before := a.memory.Applied()
		look()
		if n := a.memory.Applied() - before; n != 1 {
			t.Errorf("%d entries", n)
		}
		look()
		if n := a.memory.Applied() - before; n != 1 {
			t.Errorf("%d entries, once all was looked at", n)
		}
	})
}
