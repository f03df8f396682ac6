package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
)

// errNoGateway is a success that no gateway answers with: a proxy's page, or an answer that was
// cut short or mixed up. Nothing is known of what the request has done.
var errNoGateway = errors.New("the answer is not from a gateway")

// absent is a number that an answer does not have.
const absent = math.MinInt64

// reader reads the body of a success, or says that it is not a gateway's.
type reader func(status int, body []byte) error

// done reads the answer to what returns nothing.
func done(status int, _ []byte) error {
	if status != http.StatusNoContent {
		return errNoGateway
	}
	return nil
}

// into reads JSON, which right has to find right.
func into[T any](v *T, right func(*T) bool) reader {
	return func(status int, body []byte) error {
		var read T
		if err := json.Unmarshal(body, &read); err != nil || status != http.StatusOK || !right(&read) {
			return errNoGateway
		}
		*v = read
		return nil
	}
}

// read reads what a lease lives for, from an answer or an event.
func (g *granted) read(data []byte) error {
	read := granted{ExpiresIn: absent}
	if err := json.Unmarshal(data, &read); err != nil || read.ExpiresIn == absent {
		return errNoGateway
	}
	for _, ms := range []int64{read.ExpiresIn, read.RenewIn, read.Waited, read.Elapsed, read.TTL} {
		if ms > maxMaxHold.Milliseconds() || ms < 0 && ms != read.ExpiresIn { // it may have expired
			return errNoGateway
		}
	}
	if read.ExpiresIn < -maxMaxHold.Milliseconds() {
		return errNoGateway
	}
	*g = read
	return nil
}

// readLease reads a lease on all of some names.
func (g *granted) readLease(data []byte, names []string) error {
	var read granted
	if err := read.read(data); err != nil {
		return err
	}
	grants := read.grants()
	if read.ttl() <= 0 || len(grants) != len(names) || slices.ContainsFunc(grants, func(g Grant) bool { return g.Token < 1 || !slices.Contains(names, g.Name) }) {
		return errNoGateway
	}
	*g = read
	return nil
}

// isOf refuses a lease with another lease id than that which was asked with.
func (g *granted) isOf(leaseID string) error {
	if g.LeaseID != leaseID {
		return errNoGateway
	}
	return nil
}

// lease reads the answer to an acquire or a renewal.
func (g *granted) lease(names []string) reader {
	return func(status int, body []byte) error {
		if status != http.StatusOK && status != http.StatusCreated {
			return errNoGateway
		}
		return g.readLease(body, names)
	}
}

// accept reads a success with what its request expects.
func (r call) accept(a answer) error {
	if r.read == nil {
		return nil
	}
	return whose(a.response, r.read(a.response.StatusCode, a.body))
}

// acceptStream refuses what is no stream of events.
func (r call) acceptStream(response *http.Response) error {
	if kind, _, _ := strings.Cut(response.Header.Get("Content-Type"), ";"); strings.TrimSpace(kind) != "text/event-stream" {
		return whose(response, errNoGateway)
	}
	return nil
}

// whose adds to an error which request was answered so.
func whose(response *http.Response, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s is answered %s: %w", response.Request.Method, response.Request.URL.Redacted(), response.Status, err)
}
