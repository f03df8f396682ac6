package redis

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// recorder is a fencing.Listener that remembers what it was told.
type recorder struct {
	mu       sync.Mutex
	grants   []fencing.Grant
	replaced []fencing.Stamp
	gaps     int
	has      []fencing.Entry // of the last heartbeat
	pages    []fencing.Entry // of the present one
	expected map[fencing.LeasePublic]chan arrival
	block    chan struct{} // Granted waits for it, if there is one
}

// arrival is a call of Granted.
type arrival struct {
	grant     fencing.Grant
	asked, at time.Time
}

// expect returns where the first news of a lease will be.
func (e *recorder) expect(lease fencing.LeaseID) <-chan arrival {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.expected == nil {
		e.expected = map[fencing.LeasePublic]chan arrival{}
	}
	c := make(chan arrival, 1)
	e.expected[lease.Public()] = c
	return c
}

// receive waits for what a goroutine has to tell, which does not take long.
func receive[T any](t testing.TB, what string, from <-chan T) (told T) {
	t.Helper()
	select {
	case told = <-from:
	case <-time.After(60 * time.Second):
		t.Fatalf("never: %s", what)
	}
	return told
}

func (e *recorder) Granted(g fencing.Grant, _ fencing.Instant, asked time.Time) {
	e.mu.Lock()
	e.grants = append(e.grants, g)
	if c := e.expected[g.Holder.Lease]; c != nil {
		c <- arrival{g, asked, time.Now()}
		delete(e.expected, g.Holder.Lease)
	}
	block := e.block
	e.mu.Unlock()
	if block != nil {
		<-block
	}
}

func (e *recorder) Replaced(_ fencing.Name, stamp fencing.Stamp) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.replaced = append(e.replaced, stamp)
}

func (e *recorder) Ask(fencing.Name, fencing.Stamp) {}

func (e *recorder) Has(names []fencing.Name, _ time.Time, entries []fencing.Entry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pages = append(e.pages, entries...); names != nil {
		e.has, e.pages = e.pages, nil
	}
}

func (e *recorder) Gap() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gaps++
}

// entries returns what the last heartbeat has told of.
func (e *recorder) entries() []fencing.Entry {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.has
}

// granted returns the grants of a lease that it was told of.
func (e *recorder) granted(lease fencing.LeaseID) []fencing.Grant {
	e.mu.Lock()
	defer e.mu.Unlock()
	var grants []fencing.Grant
	for _, g := range e.grants {
		if g.Holder.Lease == lease.Public() {
			grants = append(grants, g)
		}
	}
	return grants
}

// gapped returns how often messages may have been lost.
func (e *recorder) gapped() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.gaps
}

// eye is a fencing.EventSink that remembers what it was told.
type eye struct {
	mu     sync.Mutex
	events []fencing.Event
	gaps   int
}

func (e *eye) Event(event fencing.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.events = append(e.events, event)
}

func (e *eye) Gap() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gaps++
}

func (e *eye) seen() ([]fencing.Event, int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.events[:len(e.events):len(e.events)], e.gaps
}

// listen has a store listen, and returns when it does.
func listen(t testing.TB, s *Store) *recorder {
	t.Helper()
	e := &recorder{}
	s.Listen(e)
	until(t, func() bool { return s.awaitSubscription(t.Context()) == nil })
	return e
}

// wireItem writes a lease as the library does, behind its tag.
func wireItem(tag string, r fencing.AcquireRequest, token fencing.Token) string {
	h := placeOf(&r)
	h.Token, h.ExpiresAt, h.AcquiredAt, h.JoinedAt, h.Gateway = token, epoch.Add(r.TTL), epoch, epoch, "0123456789abcdef"
	w := codec{mode: writing, b: []byte(tag)}
	w.lease(&h)
	return string(w.b)
}

// wireName tells which name the next items are about.
func wireName(name fencing.Name) string { return "N" + string(name) + "\x00" }

// wireNow is the clock of a message.
func wireNow() string {
	now := epoch
	w := codec{mode: writing}
	number(&w, "", &now)
	return string(w.b)
}

// wireGateway is a message to a gateway.
func wireGateway(name fencing.Name, items ...string) string {
	return wireNow() + wireName(name) + strings.Join(items, "")
}

// wireEventsPrefix is how a message of all events begins: the partition, and no count of
// calls.
var wireEventsPrefix = "fencepost:{7}:\x00" + strings.Repeat("\x00", 7)

// wireEvents is a message about a name that two requests joined the queue of.
func wireEvents(name fencing.Name) string {
	return wireEventsPrefix + wireNow() + wireName(name) +
		wireItem("Q", acquireRequest(name), 0) + wireItem("Q", acquireRequest(name), 0)
}

// say publishes to a channel that somebody hears.
func say(t testing.TB, server *redistest.Server, channel, payload string) {
	t.Helper()
	client := server.Client()
	defer client.Close()
	if n, err := client.Publish(context.Background(), channel, payload).Result(); err != nil || n == 0 {
		t.Fatalf("nobody hears %s (%v)", channel, err)
	}
}

// calls returns how often a command was called, by INFO commandstats.
func calls(stats, command string) int {
	_, rest, _ := strings.Cut(stats, "cmdstat_"+command+":calls=")
	var n int
	_, _ = fmt.Sscan(strings.ReplaceAll(rest, ",", " "), &n)
	return n
}

// movedClock is a gateway's clock that a test moves on.
type movedClock struct{ ahead atomic.Int64 }

func (c *movedClock) time() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

func (c *movedClock) move(d time.Duration) { c.ahead.Add(int64(d)) }

// logged is what a store has logged.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *logged) count(words string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), words)
}
