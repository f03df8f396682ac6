package http

import (
	"net/netip"
	"sync"
	"time"
)

const (
	// failureBurst is how many requests without a known key a client may make at once,
	// and failureInterval how long it takes until it may make one more.
	failureBurst    = 20
	failureInterval = time.Second

	// maxNetworks is how many clients are told apart. When there are more, those that
	// come last share one allowance, or have none: see rates.
	maxNetworks = 4096

	// sweepInterval is how often a full table is looked through at most.
	sweepInterval = time.Second
)

// bucket is an allowance that fills again by and by: what has been used of it is forgiven
// at an instant (the generic cell rate algorithm). The zero bucket is full.
type bucket struct{ forgiven time.Time }

// take uses one of an allowance of burst, one of which is forgiven every interval. wait is
// 0, or how long it takes until there is one.
func (b *bucket) take(now time.Time, interval time.Duration, burst int) (wait time.Duration) {
	b.begin(now)
	if left := b.forgiven.Sub(now) - time.Duration(burst-1)*interval; left > 0 {
		return left
	}
	b.forgiven = b.forgiven.Add(interval)
	return 0
}

// spend uses one, whether or not there is one, but for what is more than debt.
func (b *bucket) spend(now time.Time, interval time.Duration, burst int, debt time.Duration) {
	b.begin(now)
	if most := now.Add(time.Duration(burst)*interval + debt); b.forgiven.Before(most) {
		b.forgiven = b.forgiven.Add(interval)
	}
}

func (b *bucket) begin(now time.Time) {
	if b.forgiven.Before(now) {
		b.forgiven = now
	}
}

// full reports whether all is forgiven.
func (b *bucket) full(now time.Time) bool { return !b.forgiven.After(now) }

// rates bounds what happens so often by client: an address or, of IPv6, a network.
type rates struct {
	interval time.Duration
	burst    int
	spares   bool // those that come last are not bounded: else a few networks could keep out everybody

	mu      sync.Mutex
	clients map[netip.Prefix]pace // zero: all the others
	swept   time.Time
}

// newRates allows each client so many at once, and one more every interval.
func newRates(interval time.Duration, burst int) rates {
	return rates{interval: interval, burst: burst, clients: map[netip.Prefix]pace{}}
}

// newFailures bounds the answers to requests without a known key. Requests with one are not
// counted: behind one address there may be an attacker and everybody else.
func newFailures() rates { return newRates(failureInterval, failureBurst) }

// pace is that of a client.
type pace struct {
	bucket
	refused bool // and said so
}

// note counts one of a client. wait is 0, or how long it has to stay away; first is
// true of the first refusal of a row.
func (f *rates) note(client string, now time.Time) (wait time.Duration, first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := networkOf(client)
	has, known := f.clients[key]
	if !known && len(f.clients) >= maxNetworks {
		f.sweep(now)
		if len(f.clients) >= maxNetworks {
			if f.spares {
				return 0, false
			}
			key = netip.Prefix{}
			has = f.clients[key]
		}
	}
	if has.forgiven.Before(now) {
		has.refused = false
	}
	wait = has.take(now, f.interval, f.burst)
	if wait > 0 {
		first, has.refused = !has.refused, true
	}
	f.clients[key] = has
	return wait, first
}

// sweep forgets clients that are forgiven; once per sweepInterval, for it looks at all.
func (f *rates) sweep(now time.Time) {
	if now.Sub(f.swept) < sweepInterval {
		return
	}
	f.swept = now
	for key, has := range f.clients {
		if has.full(now) {
			delete(f.clients, key)
		}
	}
}

// networkOf returns what counts as one client: an IPv4 address, or the 64 bits of an IPv6
// address that one network has. What is no address is one client, too.
func networkOf(client string) netip.Prefix {
	addr, err := netip.ParseAddr(client)
	if err != nil {
		return netip.Prefix{}
	}
	addr = addr.Unmap().WithZone("")
	bits := 32
	if addr.Is6() {
		bits = 64
	}
	network, _ := addr.Prefix(bits)
	return network
}
