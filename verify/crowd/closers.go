package crowd

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	mathrand "math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/oklog/ulid/v2"

	"fencepost/verify/check"
	"fencepost/verify/system"
)

const (
	// closeGrace is how long after a client has closed its lock may still be held (P6).
	closeGrace = time.Second

	// Clients that close, or half-close, may leave one lock behind in fewer than so
	// many: what a gateway can't see is a close that reaches it after it has looked.
	// A reset that crosses the answer can't be told from one of a client that has read
	// it, which keeps its lease (docs/stores.md, "What a gateway can't see"): those are counted apart. Fewer
	// than luckBelow clients are allowed three standard deviations more.
	closedAllowed = 1000
	resetAllowed  = 100
	luckBelow     = 20_000

	// hungUp bounds how long a half-closed client waits to be hung up on.
	hungUp = 30 * time.Second
)

// Closers is clients that close their connection at a random moment of a request,
// before the first byte of its answer has reached them.
type Closers struct {
	Clients    int // that closed before an answer; those that were answered come on top
	Concurrent int
}

// ways are how a client goes; one lock left behind in allowed clients is too many.
var ways = [...]struct {
	title   string
	leave   func(*net.TCPConn) error
	allowed int
}{
	{"FIN", func(c *net.TCPConn) error { return c.Close() }, closedAllowed},
	{"RST", func(c *net.TCPConn) error { return errors.Join(c.SetLinger(0), c.Close()) }, resetAllowed},
	{"half-close", func(c *net.TCPConn) error { return c.CloseWrite() }, closedAllowed},
}

// errUnclear is of a client that may have been answered before it closed.
var errUnclear = errors.New("the client may have been answered")

// closing is what the clients share.
type closing struct {
	Closers
	r       *check.Result
	s       *system.System
	client  *system.Client
	next    atomic.Int64
	closed  atomic.Int64
	told    atomic.Int64 // had their answer before they closed
	unclear atomic.Int64 // may have had it
	kinds   [3]atomic.Int64
	gone    [len(ways)]atomic.Int64 // how many went each way

	mu     sync.Mutex
	within [3]time.Duration          // clients of each kind leave within this time
	left   [len(ways)]map[string]int // locks left behind, by kind
}

// The kinds of requests.
const (
	direct  = iota // for a free lock, which is granted at once
	waiting        // that wait, and are granted at about the moment they close
	sets           // for four names at once
)

var kindNames = [3]string{"not waiting", "waiting", "sets of four"}

// Run has clients close, and looks at their locks 1 s later: of those that went each way
// fewer than one in allowed may be held. Their TTL is far longer.
func (o Closers) Run(ctx context.Context, s *system.System, r *check.Result) error {
	c := &closing{Closers: o, r: r, s: s, client: system.NewClient(2 * o.Concurrent)}
	defer c.client.Close()
	for kind := range c.within {
		c.within[kind] = time.Millisecond
	}
	var clients, looks sync.WaitGroup
	looking := make(chan struct{}, 4*o.Concurrent)
	for i := range o.Concurrent {
		clients.Go(func() {
			random := r.Random(i)
			for ctx.Err() == nil && c.closed.Load() < int64(o.Clients) {
				look, err := c.once(ctx, random, s.Gateways[i%len(s.Gateways)])
				if err != nil && ctx.Err() == nil {
					r.Violation("%v", err)
				}
				if look == nil {
					continue
				}
				closed := time.Now()
				looks.Go(func() {
					select {
					case <-time.After(time.Until(closed.Add(closeGrace))):
					case <-ctx.Done():
						return
					}
					looking <- struct{}{}
					look()
					<-looking
				})
			}
		})
	}
	clients.Wait()
	looks.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	r.Reach("clients that closed before their answer", int(c.closed.Load()), o.Clients)
	for kind := range c.kinds {
		r.Count(kindNames[kind], c.kinds[kind].Load())
	}
	r.Count("answered before they closed", c.told.Load())
	r.Count("perhaps answered before", c.unclear.Load())
	for way := range ways {
		c.r.Harms.Add("clients leave, "+ways[way].title, check.Harm{To: "connections", What: "that had no answer", N: int(c.gone[way].Load())})
		c.judge(way)
	}
	return nil
}

// judge counts what those that went one way have left behind.
func (c *closing) judge(way int) {
	left := 0
	for kind, n := range c.left[way] {
		left += n
		c.r.Note("left behind by %s, %s: %d", kind, ways[way].title, n)
	}
	gone := int(c.gone[way].Load())
	c.r.Count(ways[way].title, fmt.Sprintf("%d, %d locks left behind", gone, left))
	allowed := float64(gone) / float64(ways[way].allowed)
	if gone < luckBelow {
		allowed += 3 * math.Sqrt(allowed)
	}
	if left > 0 && float64(left) >= allowed {
		c.r.Violation("P6: %d locks were left behind by %d clients by %s; fewer than 1 in %d may be", left, gone, ways[way].title, ways[way].allowed)
	}
}

// once is one client. look, unless it is nil, is to be called when the client has been
// away for closeGrace.
func (c *closing) once(ctx context.Context, random *mathrand.Rand, g *system.Gateway) (look func(), err error) {
	n := c.next.Add(1)
	kind := direct
	switch p := random.IntN(10); {
	case p < 2:
		kind = waiting
	case p < 4:
		kind = sets
	}
	name, body, path := fmt.Sprintf("close/%d", n), `{"ttl_ms":600000}`, "/locks"
	names := []string{name}
	leaseID := ""
	if random.IntN(2) == 0 {
		leaseID = newLeaseID()
	}
	let := func() {}
	switch kind {
	case sets:
		names = []string{name + "/a", name + "/b", name + "/c", name + "/d"}
		body = fmt.Sprintf(`{"names":["%s"],"ttl_ms":600000}`, strings.Join(names, `","`))
	case waiting:
		body = `{"ttl_ms":600000,"wait_ms":30000}`
		held, err := c.client.Acquire(ctx, g, name, "", "")
		if err != nil || held.Status != 201 {
			return nil, fmt.Errorf("a free lock was answered %s, %w", held, err)
		}
		done := make(chan struct{})
		after := time.Duration(random.Int64N(int64(2 * c.window(direct))))
		go func() {
			defer close(done)
			system.Pause(after)
			if a, err := c.client.Release(ctx, g, name, held.Lease.ID); (err != nil || a.Status != 204) && ctx.Err() == nil {
				c.r.Violation("a release was answered %s, %v", a, err)
			}
		}()
		let = func() { <-done }
	}
	defer let()
	if kind != sets {
		path += "/" + name
	}
	way := random.IntN(len(ways))
	answer, err := c.send(g, random, kind, path, leaseID, body, way)
	if errors.Is(err, errUnclear) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if answer != nil { // an ordinary client, then: it lets go, and is not looked at
		let()
		return nil, c.release(ctx, g, kind, name, names, leaseID, answer)
	}
	c.closed.Add(1)
	c.kinds[kind].Add(1)
	c.gone[way].Add(1)
	return func() { c.look(ctx, g, kind, way, names) }, nil
}

func (c *closing) window(kind int) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.within[kind]
}

// adapt keeps the time within which clients leave at what an answer takes at present:
// so that about half of them leave before it.
func (c *closing) adapt(kind int, answered bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if answered {
		c.within[kind] -= c.within[kind] / 64
	} else {
		c.within[kind] += c.within[kind] / 64
	}
	c.within[kind] = min(max(c.within[kind], 50*time.Microsecond), 200*time.Millisecond)
}

// send sends a request and leaves at a random moment. It returns the answer if that
// came before, else nil.
func (c *closing) send(g *system.Gateway, random *mathrand.Rand, kind int, path, leaseID, body string, way int) ([]byte, error) {
	conn, err := net.Dial("tcp", g.Addr())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	tcp := conn.(*net.TCPConn)
	header := ""
	if leaseID != "" {
		header = "Lease-Id: " + leaseID + "\r\n"
	}
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%sContent-Length: %d\r\n\r\n%s", path, header, len(body), body); err != nil {
		return nil, err
	}
	system.Pause(time.Duration(random.Int64N(int64(c.window(kind)))))
	late := system.Answered(tcp)
	c.adapt(kind, late)
	if late {
		c.told.Add(1)
		tcp.SetReadDeadline(time.Now().Add(hungUp))
		return io.ReadAll(tcp)
	}
	if ways[way].title != "half-close" {
		late, gap, err := system.CloseUnanswered(tcp, ways[way].title == "RST")
		if late || gap > system.Sharp {
			c.unclear.Add(1)
			return nil, errUnclear
		}
		return nil, err
	}
	if err := tcp.CloseWrite(); err != nil {
		return nil, err
	}
	tcp.SetReadDeadline(time.Now().Add(hungUp))
	answer, err := io.ReadAll(tcp)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		return nil, fmt.Errorf("a half-closed client is not hung up on: %w", err)
	}
	if !strings.HasPrefix(string(answer), "HTTP/1.1 201") {
		return nil, nil // it was noticed
	}
	c.told.Add(1) // its answer was under way
	return answer, nil
}

// release lets go of what an answer granted.
func (c *closing) release(ctx context.Context, g *system.Gateway, kind int, name string, names []string, leaseID string, answer []byte) error {
	_, body, _ := strings.Cut(string(answer), "\r\n\r\n")
	if !strings.HasPrefix(string(answer), "HTTP/1.1 201") {
		return fmt.Errorf("a client that stayed was answered %s", answer)
	}
	var lease system.Lease
	if err := json.Unmarshal([]byte(body), &lease); err != nil {
		return fmt.Errorf("%q: %w", answer, err)
	}
	url := g.URL() + "/locks/" + name
	if kind == sets {
		url = g.URL() + "/locks?name=" + strings.Join(names, "&name=")
	}
	a, err := c.client.Do(ctx, "DELETE", url, lease.ID, "")
	if err != nil || a.Status != 204 {
		return fmt.Errorf("a release was answered %s, %w", a, err)
	}
	return nil
}

// look counts what is held of a client that has gone.
func (c *closing) look(ctx context.Context, g *system.Gateway, kind, way int, names []string) {
	for _, name := range names {
		a, err := c.client.Inspect(ctx, g, name)
		if err != nil || a.Status != 200 {
			if ctx.Err() == nil {
				c.r.Violation("GET was answered %s, %v", a, err)
			}
			return
		}
		var lock struct{ Held bool }
		if err := json.Unmarshal(a.Body, &lock); err != nil {
			c.r.Violation("%v", err)
		}
		if lock.Held {
			c.mu.Lock()
			if c.left[way] == nil {
				c.left[way] = map[string]int{}
			}
			c.left[way][kindNames[kind]]++
			c.mu.Unlock()
			return // a client counts once
		}
	}
}

// newLeaseID returns a lease id of a client's own making.
func newLeaseID() string {
	secret := make([]byte, 16)
	rand.Read(secret)
	return ulid.MustNew(ulid.Now(), rand.Reader).String() + "." + base64.RawURLEncoding.EncodeToString(secret)
}
