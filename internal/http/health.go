package http

import (
	"context"
	"errors"
	"net/http"
	"time"

	"fencepost/internal/fencing"
)

// livez says that the process answers. It never asks the store: a store that is
// down is no reason to restart a gateway.
func livez(c *call) { c.send(http.StatusOK, jsonType, []byte(`{"status":"alive"}`)) }

// readyz says whether this gateway should get traffic: it is not draining, and
// the store can be asked. ?verbose adds what was found.
func readyz(c *call) {
	ctx, cancel := context.WithTimeout(c.r.Context(), checkTimeout)
	defer cancel()
	began := c.s.now()
	err := c.s.dog.Check(ctx)
	took := c.s.now().Sub(began)

	details := func(b []byte) []byte { return b }
	if c.r.URL.Query().Has("verbose") {
		details = func(b []byte) []byte { return c.s.appendChecks(b, err, took) }
	}
	switch {
	case c.s.draining.Load():
		c.writeProblem(&fencing.Error{Code: fencing.CodeDraining, Detail: "the gateway is shutting down"}, details)
	case err != nil:
		c.writeProblem(err, details)
	default:
		c.out = append(details(append(c.out, `{"status":"ready"`...)), '}')
		c.send(http.StatusOK, jsonType, c.out)
	}
}

func (s *Server) appendChecks(b []byte, err error, took time.Duration) []byte {
	b = appendStringMember(b, "store", s.storeKind)
	b = appendStringMember(b, "version", s.version)
	b = append(b, `,"checks":[{"name":"store"`...)
	b = appendBoolMember(b, "ok", err == nil)
	b = appendIntMember(b, "took_ms", took.Milliseconds())
	if err != nil {
		detail := "the store can't be asked"
		var e *fencing.Error
		if errors.As(err, &e) {
			detail = e.Detail
		}
		b = appendStringMember(b, "detail", detail)
	}
	b = append(b, `},{"name":"accepting"`...)
	b = appendBoolMember(b, "ok", !s.draining.Load())
	return append(b, '}', ']')
}
