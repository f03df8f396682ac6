package sql

import (
	"context"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/sql/sqltest"
)

// counting counts the messages of looks.
type counting struct {
	database
	hinter
	asked chan time.Time
}

func (c counting) connect(ctx context.Context) (connection, error) {
	conn, err := c.database.connect(ctx)
	return countingConn{conn, c.asked}, err
}

type countingConn struct {
	connection
	asked chan time.Time
}

func (c countingConn) read(ctx context.Context, after uint64) (*begun, error) {
	select {
	case c.asked <- time.Now():
	default:
	}
	return c.connection.read(ctx, after)
}

// waiting is a request that waits.
func waiting(name fencing.Name) fencing.AcquireRequest {
	r := request(name, time.Minute)
	r.Wait = time.Minute
	return r
}

// A gateway at which somebody waits, or hears events, asks for the log seldom where it hears hints.
func TestFewReadsWhereHintsAreHeard(t *testing.T) {
	t.Parallel()
	for _, of := range []string{"a waiter", "a watcher", "a waiter, MariaDB"} {
		t.Run(of, func(t *testing.T) {
			asked := make(chan time.Time, 1000)
			server := sqltest.Postgres(t)
			if of == "a waiter, MariaDB" {
				server = sqltest.MariaDB(t)
			}
			s := openGateway(t, Options{
				URL: initialised(t, server.Database(t)), Logger: testLog(t),
				wrap: func(d database) database { return counting{d, d.(hinter), asked} },
			})
			await(t, "hints are heard", s.hinted.Load)
			if of == "a watcher" {
				defer s.Watch(&eventSink{})()
			} else {
				acquire(t, s, "a", time.Minute)
			}
			if out := mustDo(t, s, waiting("a")); of != "a watcher" && !out.Waits() {
				t.Fatalf("%+v", out)
			}
			for len(asked) > 0 {
				<-asked
			}
			first := <-asked
			for range 5 {
				last := <-asked
				if since := last.Sub(first); since < hintedEvery*9/10 {
					t.Errorf("the log is read again after %s", since)
				}
				first = last
			}
		})
	}
}

// eventSink keeps what it is told of.
type eventSink struct{ events chan fencing.Event }

func (e *eventSink) Event(event fencing.Event) {
	if e.events != nil {
		e.events <- event
	}
}
func (*eventSink) Gap() {}

// The stream of an attached lease that is broken, or given notice, at another gateway hears of it by a hint.
func TestHintOfBreak(t *testing.T) {
	t.Parallel()
	for name, server := range servers {
		t.Run(name, func(t *testing.T) {
			testHintOfBreak(t, Options{URL: initialised(t, server(t).Database(t)), Logger: testLog(t), hinted: time.Hour})
		})
	}
}

func testHintOfBreak(t *testing.T, o Options) {
	a, b := openGateway(t, o), openGateway(t, o)
	sink := &eventSink{make(chan fencing.Event, 100)}
	defer b.Watch(sink)()
	for _, notice := range []time.Duration{0, time.Minute} {
		r := request("a", time.Minute)
		r.Attach = true
		out := mustDo(t, b, r)
		if out.Holder.Attached == "" {
			t.Fatalf("%+v", out)
		}
		await(t, "hints are heard", b.hinted.Load)
		mustDo(t, a, fencing.BreakRequest{Name: "a", Token: out.Holder.Token, Notice: notice})
		want := fencing.EventBroken
		if notice > 0 {
			want = fencing.EventNotice
		}
		for e := range sink.events {
			if e.Kind == want {
				break
			}
		}
	}
}

// A server that hangs ends no connection: who sends or hears hints there notices it, and connects anew.
func TestHintsOfAServerThatHangs(t *testing.T) {
	t.Parallel()
	cable, through := lay(t, initialised(t, sqltest.Postgres(t).Database(t)))
	db, err := newPostgres(through)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{}, 2)
	listening, heard := make(chan struct{}), make(chan struct{}, 100)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // both end with it as well
	defer cancel()
	h := newHints()
	go func() {
		_ = db.listen(ctx, "a", func() { close(listening) }, func() { heard <- struct{}{} })
		ended <- struct{}{}
	}()
	<-listening
	go func() {
		_ = db.speak(ctx, h)
		ended <- struct{}{}
	}()
	h.add("a")
	<-heard
	cable.deaf.Store(true)
	h.add("a")
	for range 2 {
		<-ended
	}
	if ctx.Err() != nil {
		t.Error("it was not noticed")
	}
}
