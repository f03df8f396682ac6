package http

import (
	"errors"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"fencepost/internal/fencing"
)

// decodeAdmit reads a POST to a fence.
func decodeAdmit(c *call) (fencing.AdmitRequest, error) {
	req := fencing.AdmitRequest{Slot: fencing.NoSlot}
	var err error
	if req.Name, err = c.lockName(); err != nil {
		return req, err
	}
	if _, err = c.leaseID(); err != nil {
		return req, err
	}
	body, err := c.readBody()
	if err != nil {
		return req, err
	}
	if err := decodeObject(body, "fencing_token and slot", func(name string, d *jsontext.Decoder) (err error) {
		var n int64
		switch name {
		case "fencing_token":
			n, err = readInt(d, name, 1, int64(fencing.MaxToken), "")
			req.Token = fencing.Token(n)
		case "slot":
			n, err = readInt(d, name, 0, fencing.MaxLimit-1, "")
			req.Slot = int(n)
		default:
			return errUnknownField
		}
		return err
	}); err != nil {
		return req, err
	}
	if req.Token == 0 {
		return req, invalid("fencing_token", "is missing; it must be an integer from 1 to %d", fencing.MaxToken)
	}
	return req, nil
}

func admitToken(c *call, req fencing.AdmitRequest) (*admitted, error) {
	out, err := c.s.dog.Do(c.r.Context(), req)
	if err != nil {
		return nil, err
	}
	return &admitted{name: req.Name, highest: out.Fence.HighestAdmitted}, nil
}

// admitted answers a POST to a fence, and a proxy that asks for a writer.
type admitted struct {
	name    fencing.Name
	highest fencing.Token
}

func (a *admitted) status() int           { return http.StatusOK }
func (a *admitted) setHeader(http.Header) {}

func (a *admitted) appendJSON(b []byte, _ wallClock) []byte {
	b = append(b, `{"name":`...)
	b = appendString(b, string(a.name))
	b = appendBoolMember(b, "admitted", true)
	b = appendIntMember(b, "highest_admitted", int64(a.highest))
	return append(b, '}')
}

// decodeJudge reads a GET of a fence.
func decodeJudge(c *call) (fencing.JudgeRequest, error) {
	name, err := fencing.ParseName(c.wildcard)
	if err != nil {
		return fencing.JudgeRequest{}, err
	}
	if _, err := c.leaseID(); err != nil {
		return fencing.JudgeRequest{}, err
	}
	req := fencing.JudgeRequest{Name: name}
	err = readQuery(c.r.URL.RawQuery, "token", func(name string, values []string) error {
		if name != "token" {
			return errUnknownField
		}
		value, err := once(name, values)
		if err == nil {
			req.Token, err = fencing.ParseToken(name, value)
		}
		return err
	})
	if err == nil && req.Token == 0 {
		err = invalid("token", "is missing; give the token to check, as in ?token=17")
	}
	return req, err
}

func judgeToken(c *call, req fencing.JudgeRequest) (*judged, error) {
	out, err := c.s.dog.Do(c.r.Context(), req)
	if err != nil {
		return nil, err
	}
	return &judged{name: req.Name, token: req.Token, fence: out.Fence}, nil
}

// judged answers a GET of a fence.
type judged struct {
	name  fencing.Name
	token fencing.Token
	fence *fencing.Fence
}

func (a *judged) status() int           { return http.StatusOK }
func (a *judged) setHeader(http.Header) {}

func (a *judged) appendJSON(b []byte, _ wallClock) []byte {
	b = append(b, `{"name":`...)
	b = appendString(b, string(a.name))
	b = appendIntMember(b, "fencing_token", int64(a.token))
	b = appendStringMember(b, "verdict", string(a.fence.Verdict))
	b = appendIntMember(b, "highest_issued", int64(a.fence.HighestIssued))
	b = appendIntMember(b, "highest_admitted", int64(a.fence.HighestAdmitted))
	return append(b, '}')
}

// decodeAuthorize reads what a proxy asks for a writer: the name, and the token in the
// header that the writer has sent. The body and the query are the writer's own, and say
// nothing here. Whatever is wrong with the request is 403, for that is what proxies take
// for a refusal.
func decodeAuthorize(c *call) (fencing.AdmitRequest, error) {
	req := fencing.AdmitRequest{Slot: fencing.NoSlot}
	var err error
	if req.Name, err = fencing.ParseName(c.wildcard); err != nil {
		return req, forbidden(err)
	}
	const header = "Fencing-Token"
	switch values := c.r.Header[header]; len(values) {
	case 0:
		return req, forbidden(invalid(header, "is missing: this path is fenced, so a write needs the fencing token of its lease"))
	case 1:
		req.Token, err = fencing.ParseToken(header, values[0])
	default:
		err = invalid(header, "is given %d times; only once is allowed", len(values))
	}
	if err != nil {
		return req, forbidden(err)
	}
	return req, nil
}

func authorizeWrite(c *call, req fencing.AdmitRequest) (*admitted, error) {
	a, err := admitToken(c, req)
	if refusal, ok := errors.AsType[*fencing.Error](err); ok && refusal.Code == fencing.CodeStaleToken {
		return nil, forbidden(refusal)
	}
	return a, err
}

// forbidden makes a refusal one that proxies understand.
func forbidden(err error) error {
	refusal, ok := errors.AsType[*fencing.Error](err)
	if !ok {
		return err
	}
	return &fencing.Error{Code: fencing.CodeForbidden, Detail: refusal.Detail, Fence: refusal.Fence}
}
