package http

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"fencepost/internal/fencing"
)

// decodeAcquireSet reads a POST for several names.
func decodeAcquireSet(c *call) (*acquire, error) {
	if err := c.refuseQuery(); err != nil {
		return nil, err
	}
	req := &acquire{}
	err := c.readAcquire(req, "names, "+acquireFields, func(field string, d *jsontext.Decoder, bounds *fencing.Bounds) (err error) {
		if field == "names" {
			req.Names, err = readNames(d)
			c.traceNames(req.Names...)
			return err
		}
		return req.setField(field, d, bounds)
	})
	if err == nil && req.Names == nil {
		err = errNoNames
	}
	if err != nil {
		return nil, err
	}
	return req, c.permit(req.Names...)
}

var errNoNames = invalid("names", "is missing; it is a list of 1 to %d names", fencing.MaxNames)

func anyFresh(outs []fencing.Outcome) bool {
	return slices.ContainsFunc(outs, func(out fencing.Outcome) bool { return out.Fresh })
}

// set is leases on several names.
type set struct {
	members []renewed
	left    time.Duration // of the one that ends first
	renewIn time.Duration // of the one to be renewed first
	waited  time.Duration
}

func makeSet(names []fencing.Name, outs []fencing.Outcome, now time.Time) set {
	var s set
	for i := range outs {
		s.add(names[i], &outs[i], now)
	}
	return s
}

func (s *set) add(name fencing.Name, out *fencing.Outcome, now time.Time) {
	m := renewed{name: name, holder: &out.Holder, left: out.Remaining(now)}
	renew := m.holder.RenewIn(m.left)
	if len(s.members) == 0 {
		s.left, s.renewIn = m.left, renew
	}
	s.left, s.renewIn = min(s.left, m.left), min(s.renewIn, renew)
	s.members = append(s.members, m)
}

func (s *set) setHeader(http.Header) {}

// appendMembers appends what follows the lease id.
func (s *set) appendMembers(b []byte, wall wallClock) []byte {
	b = appendIntMember(b, "expires_in_ms", s.left.Milliseconds())
	b = appendIntMember(b, "renew_in_ms", s.renewIn.Milliseconds())
	b = appendIntMember(b, "waited_ms", s.waited.Milliseconds())
	return s.appendLocks(b, wall)
}

func (s *set) appendLocks(b []byte, wall wallClock) []byte {
	b = append(b, `,"locks":[`...)
	for i := range s.members {
		m := &s.members[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"name":`...)
		b = appendString(b, string(m.name))
		b = appendHolding(b, m.holder, m.holder.Permits, wall)
		b = appendIntMember(b, "expires_in_ms", max(0, m.left.Milliseconds()))
		b = append(appendBreak(b, m.holder, m.left, wall), '}')
	}
	return append(b, ']')
}

// grantedSet answers a POST for several names.
type grantedSet struct {
	set
	lease   fencing.LeaseID
	fresh   bool
	elapsed time.Duration // since the request arrived
}

func (a *grantedSet) status() int {
	if a.fresh {
		return http.StatusCreated
	}
	return http.StatusOK
}

func (a *grantedSet) appendJSON(b []byte, wall wallClock) []byte {
	return append(a.appendGrant(b, wall), '}')
}

func (a *grantedSet) appendGrant(b []byte, wall wallClock) []byte {
	b = append(b, `{"lease_id":`...)
	b = appendString(b, a.lease.Reveal())
	return a.appendMembers(b, wall)
}

// renewSet is a PUT for several names.
type renewSet struct {
	fencing.RenewRequest
	names []fencing.Name
}

func decodeRenewSet(c *call) (*renewSet, error) {
	req := &renewSet{}
	var err error
	if err = c.refuseQuery(); err != nil {
		return nil, err
	}
	if req.Lease, err = c.leaseID(); err != nil {
		return nil, err
	}
	if err = c.refuseIfMatch(); err != nil {
		return nil, err
	}
	if req.Lease.IsZero() {
		return nil, &fencing.Error{Code: fencing.CodeLeaseIDRequired, Detail: "a renewal needs the Lease-Id header"}
	}
	body, err := c.readBody()
	if err != nil {
		return nil, err
	}
	if err := decodeObject(body, "names, "+renewFields, func(name string, d *jsontext.Decoder) (err error) {
		if name == "names" {
			req.names, err = readNames(d)
			c.traceNames(req.names...)
			return err
		}
		return setRenewField(&req.RenewRequest, name, d, &c.s.bounds)
	}); err != nil {
		return nil, err
	}
	if req.names == nil {
		return nil, errNoNames
	}
	if err := c.permit(req.names...); err != nil {
		return nil, err
	}
	return req, c.s.bounds.CheckRenew(&req.RenewRequest)
}

// renewLocks renews each name, whatever becomes of the others: what can be kept
// is kept.
func renewLocks(c *call, req *renewSet) (*renewedSet, error) {
	return c.forEach(req.names, req.Lease, func(name fencing.Name) (fencing.Outcome, error) {
		r := req.RenewRequest
		r.Name = name
		return c.s.dog.Do(c.r.Context(), r)
	})
}

// forEach does something for all names of a set at once. That one could not be
// asked, or was answered too late, outweighs that another is lost: the request is to
// be repeated, and says more then.
func (c *call) forEach(names []fencing.Name, lease fencing.LeaseID, do func(fencing.Name) (fencing.Outcome, error)) (*renewedSet, error) {
	outs, errs := askAll(names, do)
	now := c.s.now()
	a := &renewedSet{lease: lease.Public()}
	var lost setLost
	for i, name := range names {
		var e *fencing.Error
		switch {
		case errs[i] == nil:
			if outs[i].Holder.Token != 0 {
				a.add(name, &outs[i], now)
			}
		case errors.As(errs[i], &e) && e.Code == fencing.CodeLeaseLost:
			if lost.first == nil {
				lost.first = e
			}
			lost.names = append(lost.names, name)
		case errors.As(errs[i], &e) && e.Code == fencing.CodeInvalidRequest:
			return nil, &setRefused{e, name}
		default:
			return nil, errs[i]
		}
	}
	switch {
	case len(a.members) > 0 && a.left < time.Millisecond:
		return nil, errNothingLeft
	case lost.first != nil:
		lost.rest = a.set
		return nil, &lost
	}
	return a, nil
}

// askAll calls do for all names at once. A panic is its caller's.
func askAll(names []fencing.Name, do func(fencing.Name) (fencing.Outcome, error)) ([]fencing.Outcome, []error) {
	outs, errs := make([]fencing.Outcome, len(names)), make([]error, len(names))
	var panicked atomic.Value
	var calls sync.WaitGroup
	for i, name := range names {
		calls.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					panicked.Store(fmt.Sprint(p))
				}
			}()
			outs[i], errs[i] = do(name)
		})
	}
	calls.Wait()
	if p := panicked.Load(); p != nil {
		panic(p)
	}
	return outs, errs
}

// renewedSet answers a PUT for several names, and a DELETE: with no members there
// is nothing to say.
type renewedSet struct {
	set
	lease fencing.LeasePublic
}

func (a *renewedSet) status() int {
	if len(a.members) == 0 {
		return http.StatusNoContent
	}
	return http.StatusOK
}

func (a *renewedSet) appendJSON(b []byte, wall wallClock) []byte {
	b = append(b, `{"lease":`...)
	b = appendString(b, string(a.lease))
	return append(a.appendMembers(b, wall), '}')
}

// setLost says which names of a set are lost.
type setLost struct {
	first *fencing.Error // of the first of them
	names []fencing.Name
	rest  set // those that live on
}

func (e *setLost) Error() string { return e.first.Error() }
func (e *setLost) Unwrap() error { return e.first }

func (e *setLost) appendMembers(b []byte, wall wallClock) []byte {
	b = append(b, `,"lost":[`...)
	for i, name := range e.names {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, string(name))
	}
	b = append(b, ']')
	return e.rest.appendLocks(b, wall)
}

// setRefused says which name of a set refuses what the others may have done.
type setRefused struct {
	why  *fencing.Error
	name fencing.Name
}

func (e *setRefused) Error() string { return string(e.name) + ": " + e.why.Error() }
func (e *setRefused) Unwrap() error { return e.why }

// releaseSet is a DELETE for several names.
type releaseSet struct {
	names []fencing.Name
	lease fencing.LeaseID
	hold  int
	after time.Duration // as of an endRequest
}

func decodeReleaseSet(c *call) (*releaseSet, error) {
	req := &releaseSet{}
	var err error
	if req.lease, err = c.leaseID(); err != nil {
		return nil, err
	}
	if len(c.r.Header["If-Match"]) > 0 {
		return nil, invalid("If-Match", "is not allowed here: it breaks a lease on one name, at /locks/{name}")
	}
	if req.hold, err = c.leaseHold(); err != nil {
		return nil, err
	}
	if req.lease.IsZero() {
		return nil, &fencing.Error{Code: fencing.CodeLeaseIDRequired, Detail: "a release needs the Lease-Id header"}
	}
	if err = readQuery(c.r.URL.RawQuery, "name and after_ms", func(name string, values []string) (err error) {
		switch name {
		case "name":
			req.names, err = parseNames("name", values)
		case "after_ms":
			req.after, err = c.parseAfter(values)
		default:
			return errUnknownField
		}
		return err
	}); err != nil {
		return nil, err
	}
	if req.after != 0 && req.hold != 0 {
		return nil, errAfterHold
	}
	if req.names == nil {
		return nil, invalid("name", "is missing; give 1 to %d, as in ?name=a&name=b", fencing.MaxNames)
	}
	if err := c.permit(req.names...); err != nil {
		return nil, err
	}
	return req, c.refuseFields()
}

// releaseLocks releases each name, whatever becomes of the others and of the
// client.
func releaseLocks(c *call, req *releaseSet) (*renewedSet, error) {
	ctx := context.WithoutCancel(c.r.Context())
	return c.forEach(req.names, req.lease, func(name fencing.Name) (fencing.Outcome, error) {
		out, err := c.s.dog.Do(ctx, fencing.ReleaseRequest{Name: name, Lease: req.lease, Hold: req.hold, Linger: req.after})
		if req.after > 0 {
			out.Holder = fencing.Holder{} // nobody counts on it any more
		}
		return out, err
	})
}
