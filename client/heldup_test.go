package client

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"fencepost/verify/system"
)

// holdUp is a proxy that passes requests on although who sent them has left, and that may hold the next
// one for a stream up.
type holdUp struct {
	*httptest.Server
	target string

	mu   sync.Mutex
	next *heldUp
}

// heldUp is a request that is held up.
type heldUp struct {
	free     chan struct{} // closed when it may go on
	answered chan int      // its status
	ended    chan struct{} // closed at the end of its stream
}

func holdsUp(t *testing.T, target string) *holdUp {
	p := &holdUp{target: target}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

// hold has the next request for a stream held up.
func (p *holdUp) hold() *heldUp {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = &heldUp{free: make(chan struct{}), answered: make(chan int, 1), ended: make(chan struct{})}
	return p.next
}

func (p *holdUp) take() *heldUp {
	p.mu.Lock()
	defer p.mu.Unlock()
	held := p.next
	p.next = nil
	return held
}

func (p *holdUp) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	ctx := r.Context()
	var held *heldUp
	if r.Header.Get("Accept") == "text/event-stream" {
		held = p.take()
	}
	if held != nil {
		defer close(held.ended)
		<-held.free
		ctx = context.WithoutCancel(ctx)
	}
	on, err := http.NewRequestWithContext(ctx, r.Method, p.target+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return
	}
	on.Header = r.Header.Clone()
	answer, err := http.DefaultTransport.RoundTrip(on)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer answer.Body.Close()
	if held != nil {
		held.answered <- answer.StatusCode
	}
	for name, values := range answer.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.StatusCode)
	part := make([]byte, 4096)
	for {
		n, err := answer.Body.Read(part)
		if n > 0 {
			_, _ = w.Write(part[:n]) // perhaps to nobody
			http.NewResponseController(w).Flush()
		}
		if err != nil {
			return
		}
	}
}

// The first request for an attached lease, which a proxy passes on when the next one was granted, takes
// nothing from its client: not of one name or several, at one gateway or two.
func TestAttachedHeldUpByAProxy(t *testing.T) {
	t.Parallel()
	for gateways := 1; gateways <= 2; gateways++ {
		s := system.StartTest(t, system.Options{Gateways: gateways})
		for _, names := range [][]string{{"a"}, {"b", "c"}} {
			t.Run(fmt.Sprint(gateways, len(names)), func(t *testing.T) {
				t.Parallel()
				var addresses []string
				var first *holdUp
				for i, g := range s.Gateways {
					p := holdsUp(t, g.URL())
					if addresses = append(addresses, p.URL); i == 0 {
						first = p
					}
				}
				direct := connect(t, s.Gateways[0].URL())
				c := nimble(connect(t, addresses...))
				held := first.hold()
				l := must[*Lease](t)(c.Acquire(t.Context(), names[0], Also(names[1:]...), Attached(), TTL(6*time.Second)))
				close(held.free)
				if status := <-held.answered; status != http.StatusOK {
					t.Errorf("the request that was held up is answered %d", status)
				}
				select {
				case <-held.ended: // this client has taken the lease over from it
				case <-l.Context().Done():
					t.Errorf("it is lost: %v", context.Cause(l.Context()))
					l.c.undo(t.Context(), l.ID(), names) // ends the stream
					return
				}
				for range 2 {
					renewed(t, l)
				}
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
				}
				must[*Lease](t)(direct.TryAcquire(t.Context(), names[0], Also(names[1:]...))).Release(t.Context())
			})
		}
	}
}
