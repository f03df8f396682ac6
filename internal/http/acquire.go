package http

import (
	"errors"
	"net/http"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"fencepost/internal/fencing"
)

// acquire is a POST with what the answer depends on.
type acquire struct {
	fencing.AcquireRequest
	ownID bool // the client made the lease id
}

// decodeAcquire reads a POST. All fields are optional.
func decodeAcquire(c *call) (*acquire, error) {
	req := &acquire{AcquireRequest: fencing.AcquireRequest{
		Stamp: c.id, Mode: fencing.ModeExclusive, Hold: 1, TTL: c.s.bounds.DefaultTTL,
	}}
	var err error
	if req.Name, err = c.lockName(); err != nil {
		return nil, err
	}
	if req.Lease, err = c.leaseID(); err != nil {
		return nil, err
	}
	req.ownID = !req.Lease.IsZero()
	if err = c.refuseIfMatch(); err != nil {
		return nil, err
	}
	if err = c.checkAccept(); err != nil {
		return nil, err
	}
	body, err := c.readBody()
	if err != nil {
		return nil, err
	}
	if err := decodeObject(body, "ttl_ms, wait_ms, owner, mode, limit, hold, max_hold_ms and metadata",
		func(name string, d *jsontext.Decoder) error { return req.setField(name, d, &c.s.bounds) }); err != nil {
		return nil, err
	}
	if err := c.s.bounds.CheckAcquire(&req.AcquireRequest); err != nil {
		return nil, err
	}
	return req, nil
}

// setField reads one field. A field that is given is checked here against the
// bounds it is documented with: 0 is then no "absent".
func (r *acquire) setField(name string, d *jsontext.Decoder, bounds *fencing.Bounds) (err error) {
	var n int64
	switch name {
	case "ttl_ms":
		r.TTL, err = readMillis(d, name, bounds.MinTTL, bounds.MaxTTL)
	case "wait_ms":
		r.Wait, err = readMillis(d, name, 0, bounds.MaxWait)
	case "max_hold_ms":
		r.MaxHold, err = readMillis(d, name, 0, fencing.MaxMaxHold)
	case "limit":
		n, err = readInt(d, name, 1, fencing.MaxLimit)
		r.Limit = int(n)
	case "hold":
		n, err = readInt(d, name, 1, fencing.MaxHoldDepth)
		r.Hold = int(n)
	case "owner":
		r.Owner, err = readString(d, name)
	case "mode":
		var mode string
		mode, err = readString(d, name)
		r.Mode = fencing.Mode(mode)
	case "metadata":
		r.Metadata, err = readStrings(d, name)
	default:
		return errUnknownField
	}
	return err
}

// acquireLock asks the store for a lease. A grant that this request made is the
// call's to deliver or to give back.
func acquireLock(c *call, req *acquire) (*granted, error) {
	if c.s.draining.Load() {
		return nil, &fencing.Error{Code: fencing.CodeDraining, Detail: "this gateway grants no new leases: it is shutting down"}
	}
	sent := c.s.now()
	if !req.ownID {
		req.Lease = fencing.NewLeaseID(sent)
		c.lease = req.Lease.Public()
	}
	c.grant = fencing.TakeBackRequest{Name: req.Name, Lease: req.Lease, Stamp: req.Stamp}
	c.hasGrant = true // until the store says otherwise, even if it panics
	out, err := c.s.store.Acquire(c.r.Context(), req.AcquireRequest)
	if err != nil {
		c.hasGrant = c.mayHaveGrant(req, err)
		err = req.judge(err)
		return nil, c.countOutcome(outcomeOf(err), err)
	}
	c.hasGrant = out.Fresh
	left := out.Holder.ExpiresAt.Sub(out.Now) - c.s.now().Sub(sent)
	switch {
	case left < time.Millisecond:
		return nil, c.countOutcome(outcomeUndelivered, errNothingLeft)
	case !out.Fresh:
		c.countOutcome(outcomeRetried, nil)
	case c.r.Context().Err() != nil:
		return nil, c.countOutcome(outcomeUndelivered, errClientLeft)
	default:
		c.countOutcome(outcomeGranted, nil)
	}
	return &granted{renewed: renewed{name: req.Name, holder: &out.Holder, left: left}, lease: req.Lease, fresh: out.Fresh}, nil
}

// judge returns what to tell the client of a refusal. A lease id that the gateway
// has just made can be lost only if the store granted it, lost the reply, and
// found it expired on asking again. The client has lost nothing.
func (r *acquire) judge(err error) error {
	var e *fencing.Error
	if !r.ownID && errors.As(err, &e) && e.Code == fencing.CodeLeaseLost {
		return &fencing.Error{Code: fencing.CodeUnavailable, Err: err,
			Detail: "the lease had expired before the store's answer came; ask again"}
	}
	return err
}

// mayHaveGrant reports whether a failed acquire has to be taken back: its
// outcome is unknown, and nobody will ask again. A client with its own lease id
// that is still there will: it gets the same lease then (P7).
func (c *call) mayHaveGrant(req *acquire, err error) bool {
	var e *fencing.Error
	if errors.As(err, &e) && e.Code != fencing.CodeUnavailable && e.Code != fencing.CodeClockSkew {
		return false
	}
	return !req.ownID || c.r.Context().Err() != nil
}

// The outcomes of an acquire beside the codes.
const (
	outcomeGranted     = "granted"
	outcomeRetried     = "retried"
	outcomeUndelivered = "undelivered"
)

func outcomeOf(err error) string {
	var e *fencing.Error
	if errors.As(err, &e) {
		return string(e.Code)
	}
	return string(fencing.CodeUnavailable)
}

func (c *call) countOutcome(outcome string, err error) error {
	c.s.metrics.outcomes.WithLabelValues(outcome).Inc()
	return err
}

// granted answers a POST: the only answer with a whole lease id.
type granted struct {
	renewed
	lease fencing.LeaseID
	fresh bool
}

func (a *granted) status() int {
	if a.fresh {
		return http.StatusCreated
	}
	return http.StatusOK
}

func (a *granted) setHeader(h http.Header) {
	a.renewed.setHeader(h)
	if a.fresh {
		h["Location"] = []string{"/locks/" + string(a.name)}
	}
}

func (a *granted) appendJSON(b []byte) []byte {
	b = append(b, `{"name":`...)
	b = appendString(b, string(a.name))
	b = appendStringMember(b, "lease_id", a.lease.Reveal())
	return appendLease(b, a.holder, a.left)
}

// appendLease appends what the answers to POST and PUT have in common, and ends
// the object. left is what the client may count on from when it sent its
// request: never more than the store gives it (P9).
func appendLease(b []byte, h *fencing.Holder, left time.Duration) []byte {
	b = appendHolding(b, h)
	b = appendIntMember(b, "expires_in_ms", left.Milliseconds())
	b = appendIntMember(b, "renew_in_ms", min(h.TTL/3, left/2).Milliseconds())
	b = appendIntMember(b, "waited_ms", h.Waited.Milliseconds())
	b = appendMetadata(b, h.Metadata)
	return append(b, '}')
}
