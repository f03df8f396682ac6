package client

import (
	"net/http"
	"sync"
)

// replaced sends requests over connections that are made with what Options.TLSFunc returns at the time.
type replaced struct {
	options Options

	mu      sync.Mutex
	current *http.Transport // nil: none yet
}

// RoundTrip leaves requests that are under way on the connections that they have.
func (r *replaced) RoundTrip(request *http.Request) (*http.Response, error) {
	config, err := r.options.TLSFunc()
	if err != nil {
		return nil, &unsent{err}
	}
	r.mu.Lock()
	if r.current == nil || r.options.TLS != config {
		if r.current != nil {
			r.current.CloseIdleConnections()
		}
		r.options.TLS = config
		r.current = r.options.transport()
	}
	current := r.current
	r.mu.Unlock()
	return current.RoundTrip(request)
}

// CloseIdleConnections closes those that nothing is sent over.
func (r *replaced) CloseIdleConnections() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current != nil {
		r.current.CloseIdleConnections()
	}
}
