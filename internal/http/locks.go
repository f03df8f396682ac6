package http

import (
	"context"
	"encoding/base64"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"fencepost/internal/fencing"
)

// decodeRenew reads a PUT.
func decodeRenew(c *call) (fencing.RenewRequest, error) {
	var req fencing.RenewRequest
	var err error
	if req.Name, err = c.lockName(); err != nil {
		return req, err
	}
	if req.Lease, err = c.leaseID(); err != nil {
		return req, err
	}
	if err = c.refuseIfMatch(); err != nil {
		return req, err
	}
	if req.Lease.IsZero() {
		return req, &fencing.Error{Code: fencing.CodeLeaseIDRequired, Detail: "a renewal needs the Lease-Id header"}
	}
	body, err := c.readBody()
	if err != nil {
		return req, err
	}
	return req, decodeObject(body, "ttl_ms", func(name string, d *jsontext.Decoder) (err error) {
		switch name {
		case "ttl_ms":
			req.TTL, err = readMillis(d, name, c.s.bounds.MinTTL, c.s.bounds.MaxTTL)
			return err
		case "mode", "limit":
			return invalid(name, "is not available in this version: a renewal keeps the mode")
		}
		return errUnknownField
	})
}

func renewLock(c *call, req fencing.RenewRequest) (*renewed, error) {
	sent := c.s.now()
	out, err := c.s.store.Renew(c.r.Context(), req)
	if err != nil {
		return nil, err
	}
	left := out.Holder.ExpiresAt.Sub(out.Now) - c.s.now().Sub(sent)
	if left < time.Millisecond {
		return nil, errNothingLeft
	}
	return &renewed{name: req.Name, holder: &out.Holder, left: left}, nil
}

// errNothingLeft: the answer took longer than the lease had left. The store
// may know better by now, so this is no "lost".
var errNothingLeft = &fencing.Error{Code: fencing.CodeUnavailable,
	Detail: "the store's answer took longer than the lease had left to live"}

// renewed answers a PUT: the lease, with the public part of its id only.
type renewed struct {
	name   fencing.Name
	holder *fencing.Holder
	left   time.Duration
}

func (a *renewed) status() int { return http.StatusOK }

func (a *renewed) setHeader(h http.Header) {
	h["Fencing-Token"] = []string{a.holder.Token.String()}
}

func (a *renewed) appendJSON(b []byte) []byte {
	b = append(b, `{"name":`...)
	b = appendString(b, string(a.name))
	b = appendStringMember(b, "lease", string(a.holder.Lease))
	return appendLease(b, a.holder, a.left)
}

// endRequest is a DELETE: a release or, with a token, a break.
type endRequest struct {
	name  fencing.Name
	lease fencing.LeaseID
	token fencing.Token
}

// decodeEnd reads a DELETE.
func decodeEnd(c *call) (endRequest, error) {
	var req endRequest
	var err error
	if req.name, err = c.lockName(); err != nil {
		return req, err
	}
	if req.lease, err = c.leaseID(); err != nil {
		return req, err
	}
	if req.token, err = c.ifMatch(); err != nil {
		return req, err
	}
	if err = c.checkHold(); err != nil {
		return req, err
	}
	switch {
	case !req.lease.IsZero() && req.token != 0:
		return req, invalid("If-Match", "can't stand beside Lease-Id: one breaks a lease, the other releases it")
	case req.lease.IsZero() && req.token == 0:
		return req, &fencing.Error{Code: fencing.CodeLeaseIDRequired,
			Detail: "a release needs the Lease-Id header; breaking somebody's lease needs If-Match with its token"}
	}
	body, err := c.readBody()
	if err != nil {
		return req, err
	}
	return req, decodeObject(body, "none", func(string, *jsontext.Decoder) error { return errUnknownField })
}

// releaseLock ends a lease. That goes on when the client leaves: it wanted it.
func releaseLock(c *call, req endRequest) (ended, error) {
	ctx := context.WithoutCancel(c.r.Context())
	var err error
	if req.token != 0 {
		_, err = c.s.store.Break(ctx, fencing.BreakRequest{Name: req.name, Token: req.token})
	} else {
		_, err = c.s.store.Release(ctx, fencing.ReleaseRequest{Name: req.name, Lease: req.lease})
	}
	return ended{}, err
}

// ended answers a DELETE: there is nothing to say.
type ended struct{}

func (ended) status() int                { return http.StatusNoContent }
func (ended) setHeader(http.Header)      {}
func (ended) appendJSON(b []byte) []byte { return b }

// decodeInspect reads GET /locks/{name}. A malformed Lease-Id is refused
// everywhere: it is a sign that a client mixes something up.
func decodeInspect(c *call) (fencing.InspectRequest, error) {
	name, err := c.lockName()
	if err == nil {
		_, err = c.leaseID()
	}
	return fencing.InspectRequest{Name: name}, err
}

func inspectLock(c *call, req fencing.InspectRequest) (*inspected, error) {
	out, err := c.s.store.Inspect(c.r.Context(), req)
	if err != nil {
		return nil, err
	}
	return (*inspected)(out.Lock), nil
}

type inspected fencing.Lock

func (a *inspected) status() int { return http.StatusOK }

func (a *inspected) setHeader(h http.Header) {
	h["Etag"] = []string{`"` + a.LastToken.String() + `"`}
}

func (a *inspected) appendJSON(b []byte) []byte { return appendLock(b, (*fencing.Lock)(a), true) }

// decodeList reads GET /locks.
func decodeList(c *call) (fencing.ListRequest, error) {
	if _, err := c.leaseID(); err != nil {
		return fencing.ListRequest{}, err
	}
	return parseList(c.r.URL.RawQuery)
}

func listLocks(c *call, req fencing.ListRequest) (*listed, error) {
	page, err := c.s.store.List(c.r.Context(), req)
	if err != nil {
		return nil, err
	}
	return &listed{req: req, page: page}, nil
}

// listed answers GET /locks.
type listed struct {
	req  fencing.ListRequest
	page fencing.ListPage
}

func (a *listed) status() int { return http.StatusOK }

func (a *listed) setHeader(h http.Header) {
	if a.page.Next == "" {
		return
	}
	next := url.Values{"limit": {strconv.Itoa(a.req.Limit)}, "cursor": {a.cursor()}}
	if a.req.Prefix != "" {
		next.Set("prefix", a.req.Prefix)
	}
	if a.req.Query != "" {
		next.Set("q", a.req.Query)
	}
	h["Link"] = []string{"</locks?" + next.Encode() + `>; rel="next"`}
}

func (a *listed) cursor() string {
	return base64.RawURLEncoding.EncodeToString([]byte(a.page.Next))
}

func (a *listed) appendJSON(b []byte) []byte {
	b = append(b, `{"locks":[`...)
	for i := range a.page.Locks {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendLock(b, &a.page.Locks[i], false)
	}
	b = append(b, ']')
	if a.page.Next != "" {
		b = appendStringMember(b, "next_cursor", a.cursor())
	}
	return append(b, '}')
}
