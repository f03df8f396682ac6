package http

import (
	"container/list"
	"net"
	"net/netip"
	"time"
)

// idleWithoutKey is how long a connection on which no key was shown may be idle. Those with
// one have http.Server.IdleTimeout.
const idleWithoutKey = 5 * time.Second

// keyless are the connections of a gateway with keys on which none was shown yet. They are
// what is closed to make room, for no holder has one. A client is an address or, of IPv6, a
// network.
type keyless struct {
	mostPerClient int

	conns   map[net.Conn]*keylessConn
	clients map[netip.Prefix]*list.List // of *keylessConn; the oldest comes first
	all     list.List                   // likewise, of all clients
}

type keylessConn struct {
	conn            net.Conn
	client          netip.Prefix
	inAll, inClient *list.Element
	idle            time.Time // since when; zero: it is not
}

// newKeyless bounds what one client has to a quarter of the connections that there may be.
func newKeyless(most int) *keyless {
	return &keyless{mostPerClient: max(1, most/4), conns: map[net.Conn]*keylessConn{}, clients: map[netip.Prefix]*list.List{}}
}

func (k *keyless) add(conn net.Conn, client netip.Prefix) {
	c := &keylessConn{conn: conn, client: client}
	of := k.clients[client]
	if of == nil {
		of = list.New()
		k.clients[client] = of
	}
	c.inAll, c.inClient = k.all.PushBack(c), of.PushBack(c)
	k.conns[conn] = c
}

// remove forgets a connection: it was closed, or has shown a key.
func (k *keyless) remove(conn net.Conn) {
	c := k.conns[conn]
	if c == nil {
		return
	}
	delete(k.conns, conn)
	k.all.Remove(c.inAll)
	if of := k.clients[c.client]; of.Remove(c.inClient) != nil && of.Len() == 0 {
		delete(k.clients, c.client)
	}
}

// full reports whether a client has as many as it may.
func (k *keyless) full(client netip.Prefix) bool {
	of := k.clients[client]
	return of != nil && of.Len() >= k.mostPerClient
}

// oldestOf returns the oldest of a client; nil: it has none.
func (k *keyless) oldestOf(client netip.Prefix) net.Conn {
	if of := k.clients[client]; of != nil {
		return of.Front().Value.(*keylessConn).conn
	}
	return nil
}

// oldest returns the oldest of all; nil: there is none.
func (k *keyless) oldest() net.Conn {
	if first := k.all.Front(); first != nil {
		return first.Value.(*keylessConn).conn
	}
	return nil
}

// rests notes that a connection is idle since then, or that it is not, with the zero time.
func (k *keyless) rests(conn net.Conn, since time.Time) (known bool) {
	c := k.conns[conn]
	if c != nil {
		c.idle = since
	}
	return c != nil
}

// idlers returns those that have been idle for too long, and how long it is until there may
// be another one; 0: none is idle.
func (k *keyless) idlers(now time.Time) (over []net.Conn, next time.Duration) {
	for _, c := range k.conns {
		if c.idle.IsZero() {
			continue
		}
		left := idleWithoutKey - now.Sub(c.idle)
		switch {
		case left <= 0:
			over = append(over, c.conn)
		case next == 0 || left < next:
			next = left
		}
	}
	return over, next
}
