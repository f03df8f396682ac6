package sql

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// slowTurns answers the beginning of a turn when the test says so, as others who are at work would.
type slowTurns struct {
	begun   chan struct{} // one for each turn that is had
	proceed chan struct{} // lets it begin; closed: all begin at once
	slow    atomic.Bool
}

func newSlowTurns() *slowTurns {
	return &slowTurns{begun: make(chan struct{}), proceed: make(chan struct{})}
}

// wrap is for Options.
func (d *slowTurns) wrap(db database) database {
	return through(func(conn connection) connection { return slowConn{conn, d} })(db)
}

type slowConn struct {
	connection
	of *slowTurns
}

func (c slowConn) begin(ctx context.Context, after uint64, tried []fencing.Token) (*begun, error) {
	b, err := c.connection.begin(ctx, after, tried)
	if c.of.slow.Load() {
		c.of.begun <- struct{}{}
		<-c.of.proceed
	}
	return b, err
}

// countsFrom tells that what is left of a lease would be told wrongly. It counts from an instant of the gateway's, asked, and the database's clock
// was now when it was read, which both have from this machine: read before that, the lease would be told to last longer than it does, and since
// before began it would be told to be shorter than it need be.
func countsFrom(t *testing.T, what string, now fencing.Instant, asked, began time.Time) {
	t.Helper()
	if late := fencing.InstantOf(asked).Sub(now); late > 0 {
		t.Errorf("%s: what is left of a lease counts from %s after the database's clock was read", what, late)
	}
	if early := began.Sub(asked); early > 0 {
		t.Errorf("%s: what is left of a lease counts from %s before the turn", what, early)
	}
}

// grantsAt is a gateway's listener that keeps by when it is told what is granted.
type grantsAt struct {
	hearer
	now   chan fencing.Instant
	asked chan time.Time
}

func (g *grantsAt) Granted(_ fencing.Grant, now fencing.Instant, asked time.Time) {
	g.now <- now
	g.asked <- asked
}

// What is asked for while a turn is waited for is carried out in that turn: acquires, releases, whose rows are tried then, and looks.
// What comes later than that is not lost. All is told by the instant of the turn, also to who waited.
func TestJoinedTurn(t *testing.T) {
	t.Parallel()
	for name, server := range servers {
		t.Run(name, func(t *testing.T) {
			d := newSlowTurns()
			s := openGateway(t, Options{
				URL: initialised(t, server(t).Database(t)), Logger: testLog(t), aloneAfter: -1,
				wrap: d.wrap,
			})
			heard := &grantsAt{now: make(chan fencing.Instant, 1), asked: make(chan time.Time, 1)}
			s.Listen(heard)
			held := acquire(t, s, "held", time.Minute)
			mustDo(t, s, waiting("held"))
			before := s.memory.Applied()
			d.slow.Store(true)
			began := time.Now()
			var all sync.WaitGroup
			do := func(op fencing.Op) {
				all.Go(func() {
					out, err := s.Do(context.Background(), op)
					if err != nil {
						t.Errorf("%T: %v", op, err)
					}
					countsFrom(t, fmt.Sprintf("%T", op), out.Now, out.Asked, began)
				})
			}
			do(request("first", time.Minute))
			<-d.begun
			do(request("a", time.Minute))
			do(request("b", time.Minute))
			do(fencing.ReleaseRequest{Name: "held", Lease: held.lease})
			do(fencing.InspectRequest{Name: "held"})
			awaitQueued(t, s, 4)
			d.slow.Store(false)
			close(d.proceed)
			all.Wait()
			countsFrom(t, "who waited", <-heard.now, <-heard.asked, began)
			if entries := s.memory.Applied() - before; entries != 1 {
				t.Errorf("%d entries", entries)
			}
			acquire(t, s, "later", time.Minute)
		})
	}
}

// takesNoRow is a connection by which rows of leases are refused, and all else is taken.
type takesNoRow struct{ connection }

func (takesNoRow) tries(context.Context, int, row) error {
	return refused{errors.New("no row is taken"), ofAll}
}

// A check joins no turn that is under way, as a gateway's first one is: that need not write what it is to find out about. What comes behind the check
// joins it.
func TestACheckJoinsNoTurn(t *testing.T) {
	t.Parallel()
	onBothPlaces(t, func(t *testing.T, p *place) {
		d := newSlowTurns()
		d.slow.Store(true)
		s := openGateway(t, Options{URL: p.url, Logger: testLog(t), aloneAfter: -1, wrap: through(func(conn connection) connection {
			return takesNoRow{slowConn{conn, d}}
		})})
		<-d.begun
		checked, done := make(chan error, 1), make(chan error, 1)
		go func() { checked <- s.Check(context.Background()) }()
		awaitQueued(t, s, 1)
		go func() {
			_, err := s.Do(context.Background(), request("joins", time.Minute))
			done <- err
		}()
		awaitQueued(t, s, 2)
		d.slow.Store(false)
		close(d.proceed)
		if err := <-checked; code(err) != fencing.CodeUnavailable {
			t.Errorf("a check is answered by a turn that was not tried for it: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("what came behind it: %v", err)
		}
		if _, applied := stateOf(t, s); applied != 1 {
			t.Errorf("%d entries: what came behind the check did not join the turn", applied)
		}
	})
}
