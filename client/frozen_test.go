package client

import (
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// freezer is what stands between a client and a gateway and can forget the connections that there are, as a firewall does:
// nothing passes by them any more, and nobody is told.
type freezer struct {
	net.Listener
	target string

	mu    sync.Mutex
	open  []net.Conn
	froze int // how many of open, the first, are frozen
}

func freezes(t *testing.T, target string) *freezer {
	t.Helper()
	f := &freezer{Listener: must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0")), target: target}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := f.Accept()
			if err != nil {
				return
			}
			on, err := net.Dial("tcp", f.target)
			if err != nil {
				conn.Close()
				continue
			}
			f.mu.Lock()
			n := len(f.open) / 2
			f.open = append(f.open, conn, on)
			f.mu.Unlock()
			for from, to := range map[net.Conn]net.Conn{conn: on, on: conn} {
				running.Go(func() { f.pass(n, from, to) })
			}
		}
	})
	t.Cleanup(func() {
		f.Close()
		f.mu.Lock()
		for _, conn := range f.open {
			conn.Close()
		}
		f.mu.Unlock()
		running.Wait()
	})
	return f
}

// pass passes on what connection number n says, until it is frozen.
func (f *freezer) pass(n int, from, to net.Conn) {
	part := make([]byte, 4096)
	for {
		read, err := from.Read(part)
		f.mu.Lock()
		frozen := n < f.froze
		f.mu.Unlock()
		if frozen {
			if err != nil {
				return
			}
			continue
		}
		if err != nil {
			to.Close()
			return
		}
		_, _ = to.Write(part[:read])
	}
}

// freeze freezes the connections that there are, and returns their number.
func (f *freezer) freeze() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.froze = len(f.open) / 2
	return f.froze
}

// passing is a Transport of the user's, which may have its idle connections closed.
type passing struct{ http.RoundTripper }

func (p passing) CloseIdleConnections() { p.RoundTripper.(*http.Transport).CloseIdleConnections() }

// An attempt beside one that is late has a connection of its own: however many idle ones have died in silence, one late answer
// is what they cost.
func TestDeadConnections(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	var all sync.WaitGroup
	defer all.Wait()
	for _, own := range []bool{false, true} {
		for what, try := range map[string]func(c *Client, l *Lease) error{
			"release": func(c *Client, l *Lease) error { return l.Release(t.Context()) },
			"acquire": func(c *Client, l *Lease) error {
				_, err := c.TryAcquire(t.Context(), "another"+c.options.Owner)
				return err
			},
			"wait": func(c *Client, l *Lease) error {
				_, err := c.Acquire(t.Context(), "waits"+c.options.Owner, Wait(time.Minute))
				return err
			},
			"attach": func(c *Client, l *Lease) error {
				_, err := c.TryAcquire(t.Context(), "attached"+c.options.Owner, Attached())
				return err
			},
			"renew":   func(c *Client, l *Lease) error { _, err := c.Renew(t.Context(), l.ID(), 0, l.Name()); return err },
			"inspect": func(c *Client, l *Lease) error { _, err := c.Inspect(t.Context(), l.Name()); return err },
			"lease": func(c *Client, l *Lease) error {
				for sent := l.sentAt(); l.sentAt() == sent; time.Sleep(time.Millisecond) {
					if err := l.Err(); err != nil {
						return err
					}
				}
				return nil
			},
		} {
			all.Go(func() {
				f := freezes(t, s.Gateways[0].Addr())
				o := Options{Addresses: []string{"http://" + f.Addr().String()}, Owner: fmt.Sprint(what, own)}
				if own {
					o.Transport = passing{(&Options{}).transport()}
				}
				c, err := New(o)
				if err != nil {
					t.Error(err)
					return
				}
				if own {
					defer c.http.CloseIdleConnections()
				}
				defer c.Close()
				l, err := c.Acquire(t.Context(), what+o.Owner, TTL(9*time.Second))
				if err != nil {
					t.Error(err)
					return
				}
				var burst sync.WaitGroup
				for range 16 { // as many connections as there are requests at a time
					burst.Go(func() { _, _ = c.Acquire(t.Context(), l.Name(), Wait(200*time.Millisecond)) })
				}
				burst.Wait()
				if n := f.freeze(); n < 12 {
					t.Errorf("%s: %d connections are frozen", o.Owner, n)
				}
				begun := time.Now()
				if err := try(c, l); err != nil {
					t.Errorf("%s: %v after %s", o.Owner, err, time.Since(begun))
				}
			})
		}
	}
}
