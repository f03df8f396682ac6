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

	// maxFailing is how many clients are told apart. When there are more, those that
	// come last share one allowance.
	maxFailing = 4096
)

// failures bounds the answers to requests without a known key. Requests with one are not
// counted: behind one address there may be an attacker and everybody else.
type failures struct {
	mu      sync.Mutex
	clients map[netip.Prefix]failing // zero: all the others
	swept   time.Time
}

func newFailures() failures { return failures{clients: map[netip.Prefix]failing{}} }

// failing is a client: what it has used of its allowance is forgiven at an instant.
type failing struct {
	forgiven time.Time
	refused  bool // and said so
}

// note counts a failure of a client. wait is 0, or how long it has to stay away; first is
// true of the first refusal of a row.
func (f *failures) note(client string, now time.Time) (wait time.Duration, first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := networkOf(client)
	has, known := f.clients[key]
	if !known && len(f.clients) >= maxFailing {
		f.sweep(now)
		if len(f.clients) >= maxFailing {
			key = netip.Prefix{}
			has = f.clients[key]
		}
	}
	if has.forgiven.Before(now) {
		has = failing{forgiven: now}
	}
	if left := has.forgiven.Sub(now) - (failureBurst-1)*failureInterval; left > 0 {
		first, has.refused = !has.refused, true
		f.clients[key] = has
		return left, first
	}
	has.forgiven = has.forgiven.Add(failureInterval)
	f.clients[key] = has
	return 0, false
}

// sweep forgets clients that are forgiven; once per failureInterval, for it looks at all.
func (f *failures) sweep(now time.Time) {
	if now.Sub(f.swept) < failureInterval {
		return
	}
	f.swept = now
	for key, has := range f.clients {
		if has.forgiven.Before(now) {
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
