package http

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"
)

// lineConn is a connection of an address that only says whether it was closed.
type lineConn struct {
	net.Conn
	from   string
	closed bool
}

func (c *lineConn) RemoteAddr() net.Addr { return lineAddr(c.from) }
func (c *lineConn) Close() error         { c.closed = true; return nil }

type lineAddr string

func (lineAddr) Network() string  { return "tcp" }
func (a lineAddr) String() string { return string(a) }

// keyed is the bookkeeping of a server with keys, whose clock the test moves.
type keyed struct {
	*limitedListener
	server *http.Server
	passed time.Duration
}

func newKeyed(o ConnectionOptions) *keyed {
	o.Keys, o.Logger = true, slog.New(slog.DiscardHandler)
	k := &keyed{server: NewHTTPServer(nil, o.Logger)}
	k.limitedListener = LimitConnections(k.server, nil, o).(*limitedListener)
	begun := time.Now()
	k.now = func() time.Time { return begun.Add(k.passed) }
	return k
}

// connect admits a connection, or returns nil.
func (k *keyed) connect(from string) *lineConn {
	c := &lineConn{from: from}
	if setting, _ := k.admit(c); setting != "" {
		return nil
	}
	return c
}

// show has a request with a key come on a connection.
func (k *keyed) show(t *testing.T, c *lineConn) {
	t.Helper()
	connectionOf((&http.Request{}).WithContext(k.server.ConnContext(t.Context(), c))).showedKey()
}

func (k *keyed) move(d time.Duration) {
	k.mu.Lock()
	k.passed += d
	k.mu.Unlock()
	k.sweep()
}

// TestConnectionsWithoutKey: one address on whose connections no key is shown takes a quarter
// of what there may be, whatever it does, and nobody with a key notices.
func TestConnectionsWithoutKey(t *testing.T) {
	for _, c := range []struct{ name, attacker, holder string }{
		{"another address", "192.0.2.1:%d", "192.0.2.2:1"},
		{"the same address", "192.0.2.1:%d", "192.0.2.1:1"},
		{"a network of IPv6", "[2001:db8::%x]:1", "[2001:db8:1::1]:1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newKeyed(ConnectionOptions{Most: 40})
			holder := k.connect(c.holder)
			k.show(t, holder)
			var crowd []*lineConn
			for i := range 100 {
				one := k.connect(fmt.Sprintf(c.attacker, i+2))
				if one == nil {
					t.Fatalf("connection %d is refused: who has a key would be, too", i)
				}
				k.observe(one, http.StateActive) // it asks what is for everybody
				k.observe(one, http.StateIdle)
				crowd = append(crowd, one)
			}
			if k.open != 1+10 {
				t.Errorf("%d are open, want that with a key and a quarter of 40", k.open)
			}
			for i, one := range crowd {
				if want := i < 90; one.closed != want {
					t.Errorf("connection %d: closed is %t, want %t; the oldest go first", i, one.closed, want)
				}
				if one.closed {
					k.observe(one, http.StateClosed) // net/http says so later
				}
			}
			newcomer := k.connect(c.holder)
			if newcomer == nil {
				t.Fatal("a newcomer is refused")
			}
			k.show(t, newcomer)
			for i := range 100 {
				k.connect(fmt.Sprintf(c.attacker, i+200))
			}
			if holder.closed || newcomer.closed {
				t.Error("a connection on which a key was shown was closed")
			}
			if k.open != 2+10 {
				t.Errorf("%d are open, want 12", k.open)
			}
			k.observe(holder, http.StateClosed)
			if k.open != 1+10 || len(k.clients) != 0 || len(k.keyless.conns) != 10 {
				t.Errorf("%d are counted, %d of them without a key", k.open, len(k.keyless.conns))
			}
		})
	}
}

// TestWhoMakesRoom: when all places are taken the oldest connection without a key goes,
// whosever it is; where all have shown one, the newcomer is refused.
func TestWhoMakesRoom(t *testing.T) {
	k := newKeyed(ConnectionOptions{Most: 8})
	var crowd []*lineConn
	for i := range 8 { // two of each address, as many as one may have
		crowd = append(crowd, k.connect(fmt.Sprintf("192.0.2.%d:%d", i/2, i)))
	}
	k.show(t, crowd[0])
	for i := range 7 {
		one := k.connect(fmt.Sprintf("198.51.100.%d:1", i))
		if one == nil || !crowd[i+1].closed || k.open != 8 {
			t.Fatalf("newcomer %d: %v, %d are open, the oldest is closed: %t", i, one, k.open, crowd[i+1].closed)
		}
		k.show(t, one)
	}
	if k.connect("203.0.113.1:1") != nil || crowd[0].closed {
		t.Error("with a key on each connection there is no room, and nobody makes any")
	}
}

// TestRoomOfOneClient: the bound of a client that was set holds for those with a key, too.
func TestRoomOfOneClient(t *testing.T) {
	k := newKeyed(ConnectionOptions{Most: 100, MostPerClient: 2})
	first, second := k.connect("192.0.2.1:1"), k.connect("192.0.2.1:2")
	k.show(t, second)
	if third := k.connect("192.0.2.1:3"); third == nil || !first.closed || k.clients["192.0.2.1"] != 2 {
		t.Fatalf("%v, and the one without a key is closed: %t; %d are counted", third, first.closed, k.clients["192.0.2.1"])
	} else {
		k.show(t, third)
	}
	if k.connect("192.0.2.1:4") != nil || second.closed {
		t.Error("two with a key are as many as may be")
	}
}

// TestIdleConnectionWithoutKey: it goes after seconds; one that is in use, or on which a key
// was shown, stays.
func TestIdleConnectionWithoutKey(t *testing.T) {
	k := newKeyed(ConnectionOptions{Most: 100})
	idle, busy, holder, later := k.connect("192.0.2.1:1"), k.connect("192.0.2.1:2"), k.connect("192.0.2.1:3"), k.connect("192.0.2.1:4")
	k.show(t, holder)
	for _, c := range []*lineConn{idle, busy, holder} {
		k.observe(c, http.StateActive)
		k.observe(c, http.StateIdle)
	}
	k.move(idleWithoutKey - time.Millisecond)
	k.observe(busy, http.StateActive)
	k.observe(later, http.StateIdle)
	if idle.closed {
		t.Error("it was closed too soon")
	}
	k.move(time.Millisecond)
	if !idle.closed || busy.closed || holder.closed || later.closed {
		t.Errorf("closed: idle %t, in use %t, with a key %t, idle since then %t", idle.closed, busy.closed, holder.closed, later.closed)
	}
	k.move(time.Hour)
	if !later.closed || busy.closed || holder.closed || k.open != 2 {
		t.Errorf("closed: idle %t, in use %t, with a key %t; %d are open", later.closed, busy.closed, holder.closed, k.open)
	}
}
