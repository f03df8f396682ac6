package http

import (
	"fmt"
	"net"
	"sync"
	"time"

	"fencepost/internal/fencing"
)

// allowance is something of which a client may have so many at a time.
type allowance int

const (
	allowedWaiters allowance = iota
	allowedStreams
	allowances // their number
)

// clients counts what each client has. A client is an address without its port.
type clients struct {
	most [allowances]int // 0 is any number

	mu  sync.Mutex
	has map[string][allowances]int
}

// enter counts one more for the client of the call, until leave or the end of the
// call, or refuses with CodeTooManyRequests.
func (c *call) enter(kind allowance) error {
	all := &c.s.clients
	most := all.most[kind]
	if most == 0 {
		return nil
	}
	client := clientOf(c.r.RemoteAddr)
	all.mu.Lock()
	defer all.mu.Unlock()
	has := all.has[client]
	if has[kind] >= most {
		what, setting := "requests of this client wait", "FENCEPOST_MAX_WAITERS_PER_CLIENT"
		if kind == allowedStreams {
			what, setting = "streams of this client are open", "FENCEPOST_MAX_STREAMS_PER_CLIENT"
		}
		return &fencing.Error{Code: fencing.CodeTooManyRequests, Detail: fmt.Sprintf("%d %s, which is the limit (%s)", most, what, setting), RetryAfter: time.Second}
	}
	has[kind]++
	all.has[client] = has
	c.entered[kind] = true
	return nil
}

// leave takes back what enter has counted. It may be called without.
func (c *call) leave(kind allowance) {
	if !c.entered[kind] {
		return
	}
	c.entered[kind] = false
	all, client := &c.s.clients, clientOf(c.r.RemoteAddr)
	all.mu.Lock()
	defer all.mu.Unlock()
	has := all.has[client]
	has[kind]--
	if has == ([allowances]int{}) {
		delete(all.has, client)
	} else {
		all.has[client] = has
	}
}

func clientOf(remote string) string {
	if host, _, err := net.SplitHostPort(remote); err == nil {
		return host
	}
	return remote
}
