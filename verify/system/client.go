package system

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Client sends requests to gateways; many goroutines may use one.
type Client struct{ http http.Client }

// NewClient returns a client that keeps up to so many idle connections to a gateway.
func NewClient(connections int) *Client {
	return &Client{http.Client{Transport: &http.Transport{MaxIdleConns: 0, MaxIdleConnsPerHost: connections, DisableCompression: true}}}
}

// Close closes the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Lease is what an answer says of a lease; times in milliseconds.
type Lease struct {
	Name      string `json:"name"`
	ID        string `json:"lease_id"`
	Token     int64  `json:"fencing_token"`
	Mode      string `json:"mode"`
	Slot      int    `json:"slot"`
	Hold      int    `json:"hold"`
	TTL       int64  `json:"ttl_ms"`
	ExpiresIn int64  `json:"expires_in_ms"`
	Waited    int64  `json:"waited_ms"`
}

// Answer is what a gateway answered.
type Answer struct {
	Status         int
	Code           string // of a problem
	Body           []byte
	Lease          Lease     // where there is one
	Sent, Received time.Time // by this process
}

// Deadline returns until when the client may believe in the lease: by the time it
// sent the request, as the interface has it.
func (a Answer) Deadline() time.Time {
	return a.Sent.Add(time.Duration(a.Lease.Waited+a.Lease.ExpiresIn) * time.Millisecond)
}

func (a Answer) String() string { return fmt.Sprintf("%d %s", a.Status, a.Body) }

// Do sends one request, once. leaseID and body may be empty. An error means that no
// answer was read: whether the request was carried out is unknown.
func (c *Client) Do(ctx context.Context, method, url, leaseID, body string) (a Answer, err error) {
	if leaseID == "" {
		return c.do(ctx, method, url, body)
	}
	return c.do(ctx, method, url, body, "Lease-Id", leaseID)
}

// do sends a request with headers: names, each followed by its value.
func (c *Client) do(ctx context.Context, method, url, body string, headers ...string) (a Answer, err error) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return a, err
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	a.Sent = time.Now()
	response, err := c.http.Do(r)
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	a.Body, err = io.ReadAll(response.Body)
	a.Received, a.Status = time.Now(), response.StatusCode
	if err != nil || len(a.Body) == 0 {
		return a, err
	}
	if a.Status >= http.StatusBadRequest {
		var problem struct{ Code string }
		err = json.Unmarshal(a.Body, &problem)
		a.Code = problem.Code
		return a, err
	}
	return a, json.Unmarshal(a.Body, &a.Lease)
}

// Acquire sends POST for a name, which must need no escaping.
func (c *Client) Acquire(ctx context.Context, g *Gateway, name, leaseID, body string) (Answer, error) {
	return c.Do(ctx, http.MethodPost, g.URL()+"/locks/"+name, leaseID, body)
}

// Renew sends PUT.
func (c *Client) Renew(ctx context.Context, g *Gateway, name, leaseID, body string) (Answer, error) {
	return c.Do(ctx, http.MethodPut, g.URL()+"/locks/"+name, leaseID, body)
}

// Release sends DELETE.
func (c *Client) Release(ctx context.Context, g *Gateway, name, leaseID string) (Answer, error) {
	return c.Do(ctx, http.MethodDelete, g.URL()+"/locks/"+name, leaseID, "")
}

// Break sends DELETE with the token of the lease that is to end.
func (c *Client) Break(ctx context.Context, g *Gateway, name string, token uint64) (Answer, error) {
	return c.do(ctx, http.MethodDelete, g.URL()+"/locks/"+name, "", "If-Match", fmt.Sprintf(`"%d"`, token))
}

// Inspect sends GET.
func (c *Client) Inspect(ctx context.Context, g *Gateway, name string) (Answer, error) {
	return c.Do(ctx, http.MethodGet, g.URL()+"/locks/"+name, "", "")
}
