package sql

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/sql/sqltest"
)

// slowTurns answers the beginning of a turn when the test says so, as others who are at work would.
type slowTurns struct {
	database
	begun   chan struct{} // one for each turn that is had
	proceed chan struct{} // lets it begin; closed: all begin at once
	slow    atomic.Bool
}

func (d *slowTurns) connect(ctx context.Context) (connection, error) {
	conn, err := d.database.connect(ctx)
	return slowConn{conn, d}, err
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

// What is asked for while a turn is waited for is carried out in that turn: acquires, releases, whose rows are tried then, and looks.
// What comes later than that is not lost.
func TestJoinedTurn(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]*sqltest.Server{"PostgreSQL": sqltest.Postgres(t), "MariaDB": sqltest.MariaDB(t)} {
		t.Run(name, func(t *testing.T) {
			d := &slowTurns{begun: make(chan struct{}), proceed: make(chan struct{})}
			s := openGateway(t, Options{
				URL: initialised(t, server.Database(t)), Logger: testLog(t), aloneAfter: -1,
				wrap: func(db database) database { d.database = db; return d },
			})
			held := acquire(t, s, "held", time.Minute)
			before := s.memory.Applied()
			d.slow.Store(true)
			var all sync.WaitGroup
			do := func(op fencing.Op) {
				all.Go(func() {
					if out, err := s.Do(context.Background(), op); err != nil || out.Asked.IsZero() {
						t.Errorf("%T: %+v, %v", op, out, err)
					}
				})
			}
			do(request("first", time.Minute))
			<-d.begun
			do(request("a", time.Minute))
			do(request("b", time.Minute))
			do(fencing.ReleaseRequest{Name: "held", Lease: held.lease})
			do(fencing.InspectRequest{Name: "held"})
			await(t, "all wait", func() bool {
				s.queue.mu.Lock()
				defer s.queue.mu.Unlock()
				return len(s.queue.items) == 4
			})
			d.slow.Store(false)
			close(d.proceed)
			all.Wait()
			if entries := s.memory.Applied() - before; entries != 1 {
				t.Errorf("%d entries", entries)
			}
			acquire(t, s, "later", time.Minute)
		})
	}
}
