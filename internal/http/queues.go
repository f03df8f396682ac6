package http

import (
	"context"

	"github.com/go-json-experiment/json/jsontext"

	"fencepost/internal/fencing"
)

// decodeEvict reads a DELETE of a place in a queue.
func decodeEvict(c *call) (fencing.EvictRequest, error) {
	var req fencing.EvictRequest
	var err error
	if req.Name, err = c.pathName(); err != nil {
		return req, err
	}
	if err = readQuery(c.r.URL.RawQuery, "lease", func(name string, values []string) error {
		if name != "lease" {
			return errUnknownField
		}
		value, err := once(name, values)
		if err == nil {
			req.Waiter, err = fencing.ParseLeasePublic(name, value)
		}
		return err
	}); err != nil {
		return req, err
	}
	if req.Waiter == "" {
		return req, invalid("lease", "is missing; it must be the public part of the waiter's lease id")
	}
	id, err := c.leaseID()
	if err == nil && !id.IsZero() {
		err = invalid("Lease-Id", "is not allowed here: a waiter leaves by ending its request; name the waiter to evict in the parameter lease")
	}
	if err == nil {
		err = c.refuseIfMatch()
	}
	if err != nil {
		return req, err
	}
	if req.BreakReason, err = c.reason(); err != nil {
		return req, err
	}
	return req, fencing.CheckEvict(&req)
}

// reason reads a body that says why, if anything.
func (c *call) reason() (reason string, err error) {
	body, err := c.readBody()
	if err != nil {
		return "", err
	}
	err = decodeObject(body, "reason", func(name string, d *jsontext.Decoder) (err error) {
		if name != "reason" {
			return errUnknownField
		}
		reason, err = readString(d, name)
		return err
	})
	return reason, err
}

// evictWaiter takes a place away. That goes on when the client leaves: it wanted it.
func evictWaiter(c *call, req fencing.EvictRequest) (ended, error) {
	audit, done, err := c.s.auditFor()
	if err != nil {
		return ended{}, err
	}
	defer done()
	_, err = c.s.dog.Do(context.WithoutCancel(c.r.Context()), req)
	c.auditEvict(audit, req, err)
	return ended{}, err
}
