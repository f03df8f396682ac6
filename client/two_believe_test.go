package client

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"fencepost/internal/seed"
	"fencepost/verify/system"
)

// TestSystemNeverTwoBelieve looks at 12 clients of real gateways, each behind a proxy of its own that cuts one stream of three at
// the gateway's end, the client's, or both, and then, as one that is started again, may take no connections for a while. At no look have two exclusive leases of one name an Err of nil. Looks at which one of the
// two may be believed in, as Attached documents it, are counted and told.
//
// FENCEPOST_SECONDS is for how long, 60 by default; FENCEPOST_SEED the seed of what is cut and asked for.
func TestSystemNeverTwoBelieve(t *testing.T) {
	first, lasts := seed.Of(t), time.Duration(seed.Number(t, "FENCEPOST_SECONDS", 60))*time.Second
	for i, kind := range []system.Kind{system.Embedded, system.Raft} {
		t.Run(string(kind), func(t *testing.T) { // one after the other: clusters elect nobody beside so many clients
			s := system.StartTest(t, system.Options{Store: kind})
			r := &registry{t: t, cuts: map[string][]streamCut{}, told: map[string]int{}}
			ctx, cancel := context.WithTimeout(t.Context(), lasts)
			defer cancel()
			var clients sync.WaitGroup
			for n := range 12 {
				p := &cutter{registry: r, dice: rand.New(rand.NewPCG(first, uint64(1000*i+n))), conns: map[net.Conn]bool{}}
				t.Cleanup(p.close)
				var addresses []string
				for _, g := range s.Gateways {
					addresses = append(addresses, p.start(t, g.Addr()))
				}
				c := connect(t, addresses...)
				clients.Go(func() { r.play(ctx, c, n, rand.New(rand.NewPCG(first, uint64(1000*i+100+n)))) })
			}
			r.looks(ctx)
			clients.Wait()
			r.tell()
		})
	}
}

// registry knows which leases the clients count on, and which streams were cut.
type registry struct {
	t *testing.T

	mu   sync.Mutex
	held []*heldLease
	cuts map[string][]streamCut // by the public part of the lease id
	told map[string]int
}

// heldLease is a lease from its grant until its client lets go of it.
type heldLease struct {
	*Lease
	attached bool
	linger   time.Duration
	ttl      time.Duration
	guilty   bool // it was believed in beside another one
}

// streamCut is when a stream was cut, and at which ends.
type streamCut struct {
	at              time.Time
	gateway, client bool
}

// unseen is for how long a lease may be believed in after only its gateway has seen the end of its stream: until an event is
// overdue, and the answer to a question is there. See Attached.
func (h *heldLease) unseen() time.Duration {
	return max(h.ttl*3/8, h.ttl/3+minSlack) + answerTimeout
}

// play acquires and releases leases.
func (r *registry) play(ctx context.Context, c *Client, n int, dice *rand.Rand) {
	names := []string{"a", "b", "c", "d", "e", "f"}
	for ctx.Err() == nil {
		h := &heldLease{ttl: time.Duration(1500+dice.IntN(3000)) * time.Millisecond, attached: n%3 > 0}
		options := []Option{TTL(h.ttl), Wait(10 * time.Second)}
		if h.attached {
			options = append(options, Attached())
		}
		if n%3 == 2 {
			h.linger = h.ttl / 3
			options = append(options, Linger(h.linger))
		}
		at := dice.IntN(len(names))
		if dice.IntN(4) == 0 {
			options = append(options, Also(names[(at+1)%len(names)]))
		}
		l, err := c.Acquire(ctx, names[at], options...)
		if err != nil {
			r.count("acquires that were refused", 1)
			continue
		}
		h.Lease = l
		r.mu.Lock()
		r.held = append(r.held, h)
		r.told["leases"]++
		r.mu.Unlock()
		wait := time.NewTimer(time.Duration(100+dice.IntN(1500)) * time.Millisecond)
		select {
		case <-wait.C:
		case <-l.Context().Done():
			r.count("leases that were not counted on to their end", 1)
		case <-ctx.Done():
		}
		wait.Stop()
		r.mu.Lock()
		r.held = slices.DeleteFunc(r.held, func(o *heldLease) bool { return o == h })
		r.mu.Unlock()
		l.Release(context.WithoutCancel(ctx))
	}
}

func (r *registry) count(what string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told[what] += n
}

// looks looks every few milliseconds until the time is over.
func (r *registry) looks(ctx context.Context) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.look()
		case <-ctx.Done():
			return
		}
	}
}

// look looks at all leases once. Of two that are believed in the first is asked again after the second, so that both were at
// the same time.
func (r *registry) look() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told["looks"]++
	believed := map[string][]*heldLease{}
	for _, h := range r.held {
		if h.Err() == nil {
			for _, g := range h.Grants() {
				believed[g.Name] = append(believed[g.Name], h)
			}
		}
	}
	for name, all := range believed {
		slices.SortFunc(all, func(a, b *heldLease) int { return int(tokenOf(a, name) - tokenOf(b, name)) })
		for _, h := range all[:len(all)-1] { // all but the newest have ended
			if h.Err() != nil {
				continue
			}
			cuts := r.cuts[h.Public()]
			switch {
			case h.attached && slices.ContainsFunc(cuts, func(c streamCut) bool {
				return c.gateway && !c.client && time.Since(c.at) < h.linger+h.unseen()
			}):
				r.told["looks at which two believe, and only the gateway had seen the end of a stream"]++
			default:
				if r.told["looks at which two believe"]++; h.guilty {
					continue
				}
				h.guilty = true
				r.t.Errorf("%s: %s (attached %t, linger %s, TTL %s, %s remain) is believed in beside %s; its streams: %+v",
					name, h.Public(), h.attached, h.linger, h.ttl, h.Remaining(), all[len(all)-1].Public(), cuts)
			}
		}
	}
}

func tokenOf(h *heldLease, name string) int64 {
	for _, g := range h.Grants() {
		if g.Name == name {
			return g.Token
		}
	}
	return 0
}

func (r *registry) tell() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, what := range slices.Sorted(maps.Keys(r.told)) {
		r.t.Logf("%8d %s", r.told[what], what)
	}
	if r.told["looks"] == 0 || r.told["leases"] == 0 || r.told["streams that were cut"] == 0 {
		r.t.Error("nothing was tried")
	}
}

// cutter is the proxy of one client, before all gateways. It cuts one stream of three.
type cutter struct {
	*registry
	running sync.WaitGroup

	listeners []net.Listener // one for each gateway

	own    sync.Mutex // guards what follows
	dice   *rand.Rand
	conns  map[net.Conn]bool
	away   time.Time // until when it takes no connections
	closed bool
}

// start starts the part of it that is before one gateway, and returns its URL.
func (p *cutter) start(t *testing.T, gateway string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			p.running.Go(func() { p.serve(conn, gateway) })
		}
	})
	p.listeners = append(p.listeners, listener)
	return fmt.Sprint("http://", listener.Addr())
}

// close ends the proxy, and returns when nothing of it runs any more.
func (p *cutter) close() {
	for _, listener := range p.listeners {
		listener.Close()
	}
	p.own.Lock()
	p.closed = true
	for conn := range p.conns {
		conn.Close()
	}
	p.own.Unlock()
	p.running.Wait()
}

// keep notes a connection, so that close ends it.
func (p *cutter) keep(conn net.Conn) (done func()) {
	p.own.Lock()
	defer p.own.Unlock()
	p.conns[conn] = true
	if p.closed || time.Now().Before(p.away) {
		conn.Close()
	}
	return func() {
		conn.Close()
		p.own.Lock()
		defer p.own.Unlock()
		delete(p.conns, conn)
	}
}

// link is a connection through the proxy.
type link struct {
	client, server net.Conn

	mu  sync.Mutex
	cut [2]bool // at the gateway's end, at the client's: what comes from the other is taken, and goes nowhere
}

// ends closes both sides, unless the connection was cut: then the other end goes on.
func (l *link) ends() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut == [2]bool{} {
		l.client.Close()
		l.server.Close()
	}
}

// serve passes requests on, one after the other, until the client leaves.
func (p *cutter) serve(client net.Conn, gateway string) {
	defer p.keep(client)()
	server, err := net.Dial("tcp", gateway)
	if err != nil {
		return
	}
	l := &link{client: client, server: server}
	p.running.Go(func() { // what the gateway writes
		defer p.keep(server)()
		io.Copy(client, server)
		l.ends()
		io.Copy(io.Discard, server)
	})
	defer l.ends()
	for lines := bufio.NewReader(client); ; {
		request, err := http.ReadRequest(lines)
		if err != nil {
			return
		}
		if request.Header.Get("Accept") == "text/event-stream" {
			p.mayCut(l, PublicPart(request.Header.Get("Lease-Id")))
		}
		if request.Write(server) != nil {
			return
		}
	}
}

// mayCut has one stream of three be cut after a while.
func (p *cutter) mayCut(l *link, lease string) {
	p.own.Lock()
	cuts, after := p.dice.IntN(3) == 0, time.Duration(20+p.dice.IntN(1200))*time.Millisecond
	ends := [][2]bool{{true, true}, {true, false}, {false, true}}[p.dice.IntN(3)]
	away := time.Duration(p.dice.IntN(2)*p.dice.IntN(2000)) * time.Millisecond
	p.own.Unlock()
	if !cuts {
		return
	}
	p.running.Go(func() {
		time.Sleep(after)
		l.mu.Lock()
		l.cut = ends
		l.mu.Unlock()
		p.mu.Lock()
		p.cuts[lease] = append(p.cuts[lease], streamCut{time.Now(), ends[0], ends[1]})
		p.told["streams that were cut"]++
		p.mu.Unlock()
		if ends == [2]bool{true, true} && away > 0 { // the whole proxy
			p.own.Lock()
			p.away = time.Now().Add(away)
			for conn := range p.conns {
				conn.Close()
			}
			p.own.Unlock()
		}
		if ends[0] {
			l.server.Close()
		}
		if ends[1] {
			l.client.Close()
		}
	})
}
