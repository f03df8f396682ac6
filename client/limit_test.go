package client

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A client that lets go of 150 leases at once, as at a SIGTERM, is held up by the gateway's own limit of requests, which says
// when to come back; it is not kept from releasing one, and asks seldom.
func TestReleasesUnderALimit(t *testing.T) {
	t.Parallel()
	const leases, rate = 150, 20
	s, direct := start(t, fmt.Sprintf("FENCEPOST_MAX_REQUEST_RATE_PER_PRINCIPAL=%d", rate))
	c := connect(t, s.Gateways[0].URL())
	var dialled, from atomic.Int64 // the limit is of an address: the acquires come from many
	c.http.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		from := from.Load()
		if from == 0 {
			from = 2 + dialled.Add(1)%200
		}
		return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(from))}}).DialContext(ctx, network, address)
	}
	held := make([]*Lease, leases)
	for i := range held {
		held[i] = must[*Lease](t)(c.TryAcquire(t.Context(), fmt.Sprintf("a/%d", i), TTL(10*time.Minute)))
		c.http.CloseIdleConnections()
	}
	from.Store(254)
	var asked atomic.Int64
	c.http.Transport = counted{c.http.Transport, func(*http.Request) { asked.Add(1) }}
	var all sync.WaitGroup
	for _, l := range held {
		all.Go(func() {
			if err := l.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for l, err := range direct.List(t.Context(), "a/") {
		t.Errorf("%s is held: %v", l.Name, err)
	}
	if n := asked.Load(); n <= leases || n > 6*leases {
		t.Errorf("%d requests", n)
	}
}
