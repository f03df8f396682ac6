package sql

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// observed notes what a connection reads while it has a turn.
type observed struct {
	connection
	of *observing
}

type observing struct {
	locked       atomic.Bool
	read, begins atomic.Int64 // bytes of entries read in a turn, but for the first entry of a message, and how many turns there were
}

func (o observed) begin(ctx context.Context, after uint64, tried []fencing.Token) (*begun, error) {
	b, err := o.connection.begin(ctx, after, tried)
	o.of.locked.Store(err == nil)
	o.of.begins.Add(1)
	return o.of.note(b, err)
}

func (o observed) read(ctx context.Context, after uint64) (*begun, error) {
	b, err := o.connection.read(ctx, after)
	return o.of.note(b, err)
}

func (o *observing) note(b *begun, err error) (*begun, error) {
	if err == nil && o.locked.Load() {
		for i := range b.entries {
			if i > 1 {
				o.read.Add(int64(len(b.entries[i].data)))
			}
		}
	}
	return b, err
}

func (o observed) commit(ctx context.Context, e *entry) error {
	o.of.locked.Store(false)
	return o.connection.commit(ctx, e)
}

func (o observed) abandon(ctx context.Context) error {
	o.of.locked.Store(false)
	return o.connection.abandon(ctx)
}

// A gateway that was away carries out what others have done before it has its turn, for which they wait, also where it does not know that
// it was away.
func TestCatchingUpBeforeTheTurn(t *testing.T) {
	t.Parallel()
	for name, server := range servers {
		for how, awayFor := range map[string]time.Duration{"was away": absent, "lags": 0} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				s := server(t)
				url := initialised(t, s.Database(t))
				o := Options{URL: url, Logger: testLog(t), aloneAfter: -1}
				a := openGateway(t, o)
				watched := &observing{}
				o.wrap = through(func(conn connection) connection { return observed{conn, watched} })
				b := openGateway(t, o)
				acquire(t, b, "before", time.Minute)
				b.mu.Lock() // its process stands still
				var all sync.WaitGroup
				for i := range 512 {
					all.Go(func() {
						r := request(fencing.Name(fmt.Sprintf("n/%d", i)), time.Minute)
						r.Metadata = map[string]string{"filler": strings.Repeat("x", 1000)}
						if _, err := a.Do(t.Context(), r); err != nil {
							t.Error(err)
						}
					})
				}
				all.Wait()
				over(t, time.Now().Add(awayFor))
				watched.read.Store(0)
				watched.begins.Store(0)
				done := make(chan error)
				go func() {
					_, err := b.Do(t.Context(), request("after", time.Minute))
					done <- err
				}()
				b.mu.Unlock()
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				if n := watched.read.Load(); n > turnBytes {
					t.Errorf("it has read %d bytes while all others waited", n)
				}
				if n := watched.begins.Load(); awayFor > 0 && n > 1 {
					t.Errorf("it has begun %d turns", n)
				}
				theSame(t, Options{URL: url, Logger: testLog(t)}, a, b)
			})
		}
	}
}
