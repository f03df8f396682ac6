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

// renewFields are those of a PUT, for the errors.
const renewFields = "ttl_ms, mode, limit, permits, owner and metadata"

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
	if err := decodeObject(body, renewFields, func(name string, d *jsontext.Decoder) error {
		return setRenewField(&req, name, d, &c.s.bounds)
	}); err != nil {
		return req, err
	}
	return req, c.s.bounds.CheckRenew(&req)
}

// setRenewField reads one field of a PUT.
func setRenewField(req *fencing.RenewRequest, name string, d *jsontext.Decoder, bounds *fencing.Bounds) (err error) {
	switch name {
	case "ttl_ms":
		req.TTL, err = readMillis(d, name, bounds.MinTTL, bounds.MaxTTL)
	case "mode":
		var mode string
		if mode, err = readString(d, name); err == nil && mode == "" {
			err = invalid(name, `must be "exclusive" or "shared"`)
		}
		req.Mode = fencing.Mode(mode)
	case "limit":
		var n int64
		n, err = readInt(d, name, 1, fencing.MaxLimit, "")
		req.Limit = int(n)
	case "permits":
		var n int64
		n, err = readInt(d, name, 1, fencing.MaxLimit, "")
		req.Permits = int(n)
	case "owner":
		req.Owner, err = readString(d, name)
	case "metadata":
		if req.Metadata, err = readStrings(d, name); req.Metadata == nil {
			req.Metadata = map[string]string{} // {} is not absent
		}
	default:
		return errUnknownField
	}
	return err
}

func renewLock(c *call, req fencing.RenewRequest) (*renewed, error) {
	out, err := c.s.dog.Do(c.r.Context(), req)
	if err != nil {
		return nil, err
	}
	return c.renewed(req.Name, &out)
}

// renewed makes the answer of a renewal, or of a release that leaves holds.
func (c *call) renewed(name fencing.Name, out *fencing.Outcome) (*renewed, error) {
	left := out.Remaining(c.s.now())
	if left < time.Millisecond {
		return nil, errNothingLeft
	}
	return &renewed{name: name, holder: &out.Holder, left: left}, nil
}

// errNothingLeft: the answer took longer than the lease had left. The store
// may know better by now, so this is no "lost".
var errNothingLeft = &fencing.Error{Code: fencing.CodeUnavailable,
	Detail: "the store took longer to answer than the lease had left"}

// renewed answers a PUT: the lease, with the public part of its id only.
type renewed struct {
	name   fencing.Name
	holder *fencing.Holder
	left   time.Duration // of its life; see fencing.Outcome.Remaining

	waited  time.Duration // in the queue, by this request
	elapsed time.Duration // since the request arrived, at the instant of left; of a POST
}

func (a *renewed) status() int { return http.StatusOK }

func (a *renewed) setHeader(h http.Header) {
	h["Fencing-Token"] = []string{a.holder.Token.String()}
}

func (a *renewed) appendJSON(b []byte, wall wallClock) []byte {
	b = append(b, `{"name":`...)
	b = appendString(b, string(a.name))
	b = appendStringMember(b, "lease", string(a.holder.Lease))
	return append(appendLease(b, a, wall), '}')
}

// endRequest is a DELETE: a release or, with a token, a break, at once or with notice.
type endRequest struct {
	name  fencing.Name
	lease fencing.LeaseID
	hold  int           // the depth to unwind; 0 is all
	after time.Duration // of a release: how long the lease is to live on; 0: not at all
	token fencing.Token

	notice      time.Duration
	breakReason string
}

// decodeEnd reads a DELETE.
func decodeEnd(c *call) (endRequest, error) {
	var req endRequest
	var err error
	if req.name, err = c.pathName(); err != nil {
		return req, err
	}
	if err = c.readEndQuery(&req); err != nil {
		return req, err
	}
	if req.lease, err = c.leaseID(); err != nil {
		return req, err
	}
	if req.token, err = c.ifMatch(); err != nil {
		return req, err
	}
	if req.hold, err = c.leaseHold(); err != nil {
		return req, err
	}
	switch {
	case req.notice != 0 && req.token == 0:
		return req, invalid("notice_ms", "is only for a break: send If-Match too")
	case req.after != 0 && req.token != 0:
		return req, invalid("after_ms", "is only for a release: send Lease-Id in place of If-Match")
	case req.after != 0 && req.hold != 0:
		return req, errAfterHold
	case req.hold != 0 && req.token != 0:
		return req, invalid("Lease-Hold", "can't be combined with If-Match: a broken lease has no hold left")
	case !req.lease.IsZero() && req.token != 0:
		return req, invalid("If-Match", "can't be combined with Lease-Id: one breaks a lease, the other releases it")
	case req.lease.IsZero() && req.token == 0:
		return req, &fencing.Error{Code: fencing.CodeLeaseIDRequired,
			Detail: "a release needs the Lease-Id header; breaking somebody's lease needs If-Match with its token"}
	}
	if req.token == 0 {
		return req, c.refuseFields()
	}
	if req.breakReason, err = c.reason(); err != nil {
		return req, err
	}
	broken := req.breaks()
	return req, fencing.CheckBreak(&broken)
}

// breaks returns the break that is asked for.
func (req *endRequest) breaks() fencing.BreakRequest {
	return fencing.BreakRequest{Name: req.name, Token: req.token, BreakReason: req.breakReason, Notice: req.notice}
}

var errAfterHold = invalid("Lease-Hold", "can't be combined with after_ms: a lease that is left has no hold")

// readEndQuery reads the query of a DELETE.
func (c *call) readEndQuery(req *endRequest) error {
	return readQuery(c.r.URL.RawQuery, "notice_ms and after_ms", func(name string, values []string) (err error) {
		switch name {
		case "notice_ms":
			var value string
			if value, err = once(name, values); err == nil {
				req.notice, err = parseNotice(value)
			}
		case "after_ms":
			req.after, err = c.parseAfter(values)
		default:
			return errUnknownField
		}
		return err
	})
}

// parseAfter reads for how long a lease is to live on that its holder leaves: what may be a TTL.
func (c *call) parseAfter(values []string) (time.Duration, error) {
	value, err := once("after_ms", values)
	if err != nil {
		return 0, err
	}
	least, most := c.s.bounds.MinTTL.Milliseconds(), c.s.bounds.MaxTTL.Milliseconds()
	ms, err := strconv.ParseInt(value, 10, 64)
	if err != nil || strconv.FormatInt(ms, 10) != value || ms < least || ms > most {
		return 0, invalid("after_ms", "must be an integer from %d to %d", least, most)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// refuseFields reads a body that must be empty, or an empty object.
func (c *call) refuseFields() error {
	body, err := c.readBody()
	if err != nil {
		return err
	}
	return decodeObject(body, "none", func(string, *jsontext.Decoder) error { return errUnknownField })
}

// releaseLock ends a lease. That goes on when the client leaves: it wanted it.
func releaseLock(c *call, req endRequest) (answer, error) {
	ctx := context.WithoutCancel(c.r.Context())
	if req.token != 0 {
		audit, done, err := c.s.auditFor()
		if err != nil {
			return ended{}, err
		}
		defer done()
		out, err := c.s.dog.Do(ctx, req.breaks())
		c.auditBreak(audit, req, err)
		if err != nil || out.Holder.Token == 0 {
			return ended{}, err
		}
		return &noticed{name: req.name, out: &out}, nil
	}
	out, err := c.s.dog.Do(ctx, fencing.ReleaseRequest{Name: req.name, Lease: req.lease, Hold: req.hold, Linger: req.after})
	if err != nil || out.Holder.Token == 0 || req.after > 0 {
		return ended{}, err
	}
	return c.renewed(req.name, &out)
}

// noticed answers a break with notice: the public view of the lease, which ends later.
type noticed struct {
	name fencing.Name
	out  *fencing.Outcome
}

func (*noticed) status() int           { return http.StatusAccepted }
func (*noticed) setHeader(http.Header) {}

func (a *noticed) appendJSON(b []byte, wall wallClock) []byte {
	b = append(b, `{"name":`...)
	b = appendString(b, string(a.name))
	b = appendStringMember(b, "lease", string(a.out.Holder.Lease))
	return append(appendHolderMembers(b, &a.out.Holder, a.out.Now, wall), '}')
}

// ended answers a DELETE: there is nothing to say.
type ended struct{}

func (ended) status() int                             { return http.StatusNoContent }
func (ended) setHeader(http.Header)                   {}
func (ended) appendJSON(b []byte, _ wallClock) []byte { return b }

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
	out, err := c.s.dog.Do(c.r.Context(), req)
	if err != nil {
		return nil, err
	}
	return &inspected{lock: out.Lock, pace: fencing.PaceOf(out.Lock, out.Past), advice: fencing.Advise(out.Lock, out.Past)}, nil
}

// inspected answers GET /locks/{name}.
type inspected struct {
	lock   *fencing.Lock
	pace   fencing.Pace
	advice []fencing.Advice
}

func (a *inspected) status() int { return http.StatusOK }

func (a *inspected) setHeader(h http.Header) {
	h["Etag"] = []string{`"` + a.lock.LastToken.String() + `"`}
}

func (a *inspected) appendJSON(b []byte, wall wallClock) []byte {
	return append(appendAdvice(appendLockMembers(b, a.lock, &a.pace, wall), a.advice), '}')
}

// decodeList reads GET /locks.
func decodeList(c *call) (fencing.ListRequest, error) {
	if _, err := c.leaseID(); err != nil {
		return fencing.ListRequest{}, err
	}
	return parseList(c.r.URL.RawQuery)
}

func listLocks(c *call, req fencing.ListRequest) (*listed, error) {
	page, err := c.list(req)
	if err != nil {
		return nil, err
	}
	for i := range page.Locks {
		page.Locks[i].Trim(fencing.MaxHoldersListed)
	}
	return &listed{req: req, page: page}, nil
}

// list asks the store for a page of what the principal may see: each of its ranges of
// names by itself, so that neither a lock nor a cursor tells of another name.
func (c *call) list(req fencing.ListRequest) (fencing.ListPage, error) {
	if c.principal == nil || c.principal.Names().All() {
		return c.s.dog.List(c.r.Context(), req)
	}
	var page fencing.ListPage
	if req.Count {
		var err error
		if page.Total, err = c.count(req.Prefix); err != nil {
			return page, err
		}
		req.Count = false
	}
	for _, within := range c.principal.Names().Within(req.Prefix) {
		if req.After != "" && within.Before(string(req.After)) {
			continue
		}
		if len(page.Locks) == req.Limit { // perhaps there is more
			page.Next = page.Locks[req.Limit-1].Name
			break
		}
		part := req
		part.Prefix, part.Limit = within.Prefix, req.Limit-len(page.Locks)
		if within.One { // of all that begin with it, it is the first
			part.Limit = 1
		}
		found, err := c.s.dog.List(c.r.Context(), part)
		if err != nil {
			return fencing.ListPage{}, err
		}
		if within.One {
			if len(found.Locks) > 0 && string(found.Locks[0].Name) == within.Prefix {
				page.Locks = append(page.Locks, found.Locks[0])
			}
			continue
		}
		page.Locks = append(page.Locks, found.Locks...)
		if found.Next != "" {
			page.Next = found.Next
			break
		}
	}
	return page, nil
}

// count returns how many of the names that the principal may see begin with prefix and are held.
func (c *call) count(prefix string) (total int, err error) {
	for _, within := range c.principal.Names().Within(prefix) {
		found, err := c.s.dog.List(c.r.Context(), fencing.ListRequest{Prefix: within.Prefix, Limit: 1, Count: !within.One})
		if err != nil {
			return 0, err
		}
		if within.One && len(found.Locks) > 0 && string(found.Locks[0].Name) == within.Prefix {
			total++
		}
		total += found.Total
	}
	return total, nil
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
	if a.req.Mode != "" {
		next.Set("mode", string(a.req.Mode))
	}
	if a.req.HeldFor > 0 {
		next.Set("held_for_ms", strconv.FormatInt(a.req.HeldFor.Milliseconds(), 10))
	}
	if a.req.EndsIn > 0 {
		next.Set("expires_within_ms", strconv.FormatInt(a.req.EndsIn.Milliseconds(), 10))
	}
	for name, is := range map[string]bool{"waiting": a.req.Waiting, "attached": a.req.Attached, "unrenewed": a.req.Unrenewed} {
		if is {
			next.Set(name, "true")
		}
	}
	h["Link"] = []string{"</locks?" + next.Encode() + `>; rel="next"`}
}

func (a *listed) cursor() string {
	return base64.RawURLEncoding.EncodeToString([]byte(a.page.Next))
}

func (a *listed) appendJSON(b []byte, wall wallClock) []byte {
	b = append(b, `{"locks":[`...)
	for i := range a.page.Locks {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendLockMembers(b, &a.page.Locks[i], nil, wall), '}')
	}
	b = append(b, ']')
	if a.req.Count {
		b = appendIntMember(b, "total", int64(a.page.Total))
	}
	if a.page.Next != "" {
		b = appendStringMember(b, "next_cursor", a.cursor())
	}
	return append(b, '}')
}
