package http

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"fencepost/internal/fencing"
)

var problemType = []string{"application/problem+json"}

// bearerChallenge is the WWW-Authenticate of a 401 (RFC 6750).
var bearerChallenge = []string{`Bearer realm="fencepost"`}

// codeInternal counts and logs a defect of the gateway. It is no fencing.Code:
// no client can do anything about it, so the problem it is shown as has none.
const codeInternal fencing.Code = "internal"

// codeLeft counts and logs requests whose clients went away while they waited. A
// client that has only closed its half of the connection is told unavailable.
const codeLeft fencing.Code = "left"

// problems maps every code to its status and title. Nothing else does.
var problems = map[fencing.Code]struct {
	status int
	title  string
}{
	fencing.CodeInvalidRequest:     {400, "The request is not valid"},
	fencing.CodeUnsupportedByStore: {400, "The store can't do this"},
	fencing.CodeUnauthenticated:    {401, "The credentials are missing or not valid"},
	fencing.CodeForbidden:          {403, "This is not allowed"},
	fencing.CodeNotFound:           {404, "Not found"},
	fencing.CodeMethodNotAllowed:   {405, "The method is not allowed here"},
	fencing.CodeConflict:           {409, "The request contradicts what the lease has"},
	fencing.CodeReplaced:           {409, "A newer request with the same lease id took over"},
	fencing.CodeLeaseLost:          {412, "The lease is lost"},
	fencing.CodeStaleToken:         {412, "The token is stale"},
	fencing.CodeTooLarge:           {413, "The body is too large"},
	fencing.CodeMisdirected:        {421, "The Host is not served here"},
	fencing.CodeLocked:             {423, "The lock is held"},
	fencing.CodeWaitTimeout:        {423, "The lock is still held"},
	fencing.CodeLeaseIDRequired:    {428, "A Lease-Id is required"},
	fencing.CodeTooManyRequests:    {429, "Too many requests"},
	fencing.CodeUnavailable:        {503, "Not available now"},
	fencing.CodeClockSkew:          {503, "The clocks disagree"},
	fencing.CodeNotReplicated:      {503, "Too few replicas acknowledged"},
	fencing.CodeQuarantined:        {503, "The store may have forgotten leases"},
	fencing.CodeDraining:           {503, "The gateway is shutting down"},
}

// writeError answers with the problem that err is. An error that is no
// *fencing.Error, or has a code without a status, is unexpected: nothing is
// known about the outcome, so it is shown as unavailable and logged as it is.
func (c *call) writeError(err error) {
	var lost *setLost
	if errors.As(err, &lost) {
		c.writeProblem(err, func(b []byte) []byte { return lost.appendMembers(b, c.s.wall) })
		return
	}
	var refused *setRefused
	if errors.As(err, &refused) {
		c.writeProblem(err, func(b []byte) []byte { return appendStringMember(b, "name", string(refused.name)) })
		return
	}
	c.writeProblem(err, nil)
}

// writeProblem is writeError with members added by more.
func (c *call) writeProblem(err error, more func([]byte) []byte) {
	e := problemOf(err)
	status := problems[e.Code].status
	if after := retryAfter(e, status); after > 0 {
		c.Header()["Retry-After"] = []string{strconv.FormatInt(ceilTo(after, time.Second), 10)}
	}
	if e.Code == fencing.CodeUnauthenticated {
		c.Header()["Www-Authenticate"] = bearerChallenge
	}
	b := c.appendProblem(c.out[:0], e)
	if more != nil {
		b = more(b)
	}
	c.out = append(b, '}', '\n')
	sent := c.send(status, problemType, c.out)
	if c.session != nil && c.session.Unknown() && (sent != nil || c.flush() != nil || connectionOf(c.r).leftUntold()) {
		c.session.Unheard()
	}
}

// problemOf returns err as an error with a code that has a status.
func problemOf(err error) *fencing.Error {
	var e *fencing.Error
	if !errors.As(err, &e) {
		return fencing.Unavailable(err)
	}
	if _, ok := problems[e.Code]; !ok {
		return fencing.Unavailable(err)
	}
	return e
}

// appendProblem appends a problem without its last brace, and notes it for the
// log and the metrics.
func (c *call) appendProblem(b []byte, e *fencing.Error) []byte {
	problem := problems[e.Code]
	c.code = e.Code
	if c.gone {
		c.code = codeLeft
	}
	if problem.status >= 500 {
		c.cause = e
	}
	b = append(b, `{"type":"urn:fencepost:problem:`...)
	b = append(b, e.Code...)
	b = append(b, `","title":`...)
	b = appendString(b, problem.title)
	b = appendIntMember(b, "status", int64(problem.status))
	b = appendStringMember(b, "detail", e.Detail)
	b = append(b, `,"instance":"urn:fencepost:request:`...)
	b = append(b, c.requestID()...)
	b = append(b, `","code":"`...)
	b = append(b, e.Code...)
	b = append(b, '"')
	return c.appendProblemMembers(b, e)
}

// appendProblemMembers appends what helps the reader of one particular code.
func (c *call) appendProblemMembers(b []byte, e *fencing.Error) []byte {
	switch e.Code {
	case fencing.CodeInvalidRequest, fencing.CodeUnsupportedByStore, fencing.CodeConflict:
		if e.Field != "" {
			b = appendStringMember(b, "field", e.Field)
		}
		if e.CurrentToken != 0 {
			b = appendIntMember(b, "current_token", int64(e.CurrentToken))
		}
	case fencing.CodeLeaseLost:
		b = appendStringMember(b, "reason", string(e.Reason))
		if e.BreakReason != "" {
			b = appendStringMember(b, "break_reason", e.BreakReason)
		}
		if e.Reason == fencing.ReasonExpired || e.Reason == fencing.ReasonSuperseded {
			b = appendIntMember(b, "late_ms", max(0, e.Late.Milliseconds()))
		}
		if e.Reason == fencing.ReasonSuperseded {
			b = appendIntMember(b, "current_token", int64(e.CurrentToken))
		}
	case fencing.CodeQuarantined:
		if e.RetryAfter > 0 {
			b = appendIntMember(b, "retry_after_ms", ceilTo(e.RetryAfter, time.Millisecond))
		}
	case fencing.CodeForbidden:
		b = appendFence(b, e.Fence)
	case fencing.CodeLocked, fencing.CodeWaitTimeout, fencing.CodeTooManyRequests, fencing.CodeStaleToken:
		b = appendFence(b, e.Fence)
		if e.Lock == nil {
			break
		}
		b = appendStringMember(b, "name", string(e.Lock.Name))
		b = appendHolders(b, e.Lock, c.s.wall)
		if e.Code == fencing.CodeStaleToken {
			break
		}
		b = appendIntMember(b, "waiting", int64(e.Lock.Waiting))
		b = appendDelay(b, e.Lock)
		if e.Position > 0 {
			b = appendIntMember(b, "position", int64(e.Position))
		}
		if e.RetryAfter > 0 {
			b = appendIntMember(b, "retry_after_ms", ceilTo(e.RetryAfter, time.Millisecond))
		}
		b = appendEstimate(b, e.EstimatedWait)
	}
	return b
}

// appendFence appends what a fence knows that has refused a token.
func appendFence(b []byte, f *fencing.Fence) []byte {
	if f == nil {
		return b
	}
	b = appendIntMember(b, "highest_issued", int64(f.HighestIssued))
	return appendIntMember(b, "highest_admitted", int64(f.HighestAdmitted))
}

// retryAfter says when to come back; 0 if that is not for the gateway to say.
func retryAfter(e *fencing.Error, status int) time.Duration {
	switch status {
	case http.StatusLocked, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return max(e.RetryAfter, time.Second)
	}
	return 0
}

// ceilTo returns d in units, rounded up.
func ceilTo(d, unit time.Duration) int64 { return int64((d + unit - 1) / unit) }

// writeInternalError answers for a defect of the gateway.
func (c *call) writeInternalError() {
	h := c.Header()
	for _, name := range []string{"Location", "Fencing-Token", "ETag", "Link", "Content-Security-Policy"} {
		h.Del(name)
	}
	b := append(c.out[:0], `{"type":"about:blank","title":"Internal Server Error","status":500`...)
	b = appendStringMember(b, "detail", "the gateway has a defect; its log says more under the request id")
	b = append(b, `,"instance":"urn:fencepost:request:`...)
	b = append(b, c.requestID()...)
	c.out = append(b, '"', '}', '\n')
	c.send(http.StatusInternalServerError, problemType, c.out)
}
