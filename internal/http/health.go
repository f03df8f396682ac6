package http

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"fencepost/internal/fencing"
)

// livez says that the process answers, and that nothing in it hangs for good. It never asks the store: a store that is
// down is no reason to restart a gateway.
func livez(c *call) {
	if err := c.s.alive(); err != nil {
		c.writeError(&fencing.Error{Code: fencing.CodeUnavailable, Detail: err.Error()})
		return
	}
	c.send(http.StatusOK, jsonType, []byte(alive))
}

const alive = `{"status":"alive"}` + "\n"

// readyz says whether this gateway should get traffic: it is not draining, the
// store can be asked, and no finding about the store is held against it. ?verbose
// adds all that was found. A quarantine is no reason to fail: leases that the store
// still has can be renewed, and the other gateways have the same store.
func readyz(c *call) {
	var err error
	details := func(b []byte) []byte { return b }
	if c.r.URL.Query().Has("verbose") {
		ctx, cancel := context.WithTimeout(c.r.Context(), checkTimeout)
		defer cancel()
		began, since := c.s.now(), time.Now()
		err = c.s.dog.Check(ctx)
		took := c.s.now().Sub(began)
		details = func(b []byte) []byte { return c.s.appendChecks(ctx, b, err, took, since) }
	} else {
		err = c.s.probe(c.r.Context())
	}
	refusal := c.s.dog.Refusal()
	switch {
	case c.s.draining.Load():
		c.writeProblem(&fencing.Error{Code: fencing.CodeDraining, Detail: "the gateway is shutting down"}, details)
	case err != nil:
		c.writeProblem(err, details)
	case refusal != nil:
		c.writeProblem(refusal, details)
	default:
		c.out = append(details(append(c.out, `{"status":"ready"`...)), '}', '\n')
		c.send(http.StatusOK, jsonType, c.out)
	}
}

// probed is what the last round trip of a probe came to. Anybody may probe, so one serves
// all that ask for a while: what the store has to do for it does not grow with them.
type probed struct {
	mu  sync.Mutex
	at  time.Time
	err error
}

func (s *Server) probe(ctx context.Context) error {
	p := &s.probed
	p.mu.Lock() // for as long as one round trip may take
	defer p.mu.Unlock()
	if now := s.now(); p.at.IsZero() || now.Sub(p.at) >= probeInterval {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout) // others wait for it, too
		defer cancel()
		p.err = s.dog.Check(ctx)
		p.at = s.now()
	}
	return p.err
}

// appendChecks appends what was looked at: the store, since which it is as err says, and what was found before, unless it can't be asked now.
func (s *Server) appendChecks(ctx context.Context, b []byte, err error, took time.Duration, since time.Time) []byte {
	b = appendStringMember(b, "store", s.storeKind)
	b = appendStringMember(b, "version", s.version)
	b = append(b, `,"checks":[{"name":"store"`...)
	b = appendBoolMember(b, "ok", err == nil)
	b = appendIntMember(b, "took_ms", took.Milliseconds())
	if err != nil {
		detail, remedy := "the store can't be reached", ""
		var e *fencing.Error
		if errors.As(err, &e) {
			detail = e.Detail
		}
		if f := fencing.FaultOf(err); f != nil {
			detail, remedy = f.Detail+" ("+f.Err.Error()+")", f.Remedy
		}
		if o := fencing.OutageOf(err); o != nil {
			detail = "the store can't be reached: " + o.Detail
		}
		b = appendStringMember(b, "detail", detail)
		if remedy != "" {
			b = appendStringMember(b, "remedy", remedy)
		}
	}
	b = append(b, `},{"name":"accepting"`...)
	b = appendBoolMember(b, "ok", !s.draining.Load())
	b = append(b, '}')
	if s.logFound != nil {
		log := s.logFound()
		b = appendFinding(b, &log)
	}
	if err == nil {
		b = s.appendQuarantine(ctx, b)
	}
	findings, at := s.dog.Findings()
	if err != nil && at.Before(since) {
		failed := ctx.Err()
		if failed == nil {
			_, failed = s.dog.Examine(ctx)
		}
		if findings, _ = s.dog.Findings(); failed != nil { // what was fine may not be so any more
			findings = slices.DeleteFunc(slices.Clone(findings), func(f fencing.Finding) bool { return f.OK })
		}
	}
	for i := range findings {
		b = appendFinding(b, &findings[i])
	}
	return append(b, ']')
}

// appendQuarantine appends nothing if the store does not say.
func (s *Server) appendQuarantine(ctx context.Context, b []byte) []byte {
	stats, err := s.dog.Stats(ctx)
	if err != nil {
		return b
	}
	b = append(b, `,{"name":"quarantine"`...)
	b = appendBoolMember(b, "ok", stats.Quarantine <= 0)
	b = appendIntMember(b, "remaining_ms", ceilTo(max(0, stats.Quarantine), time.Millisecond))
	return append(b, '}')
}

func appendFinding(b []byte, f *fencing.Finding) []byte {
	b = append(b, `,{"name":`...)
	b = appendString(b, f.Check)
	b = appendBoolMember(b, "ok", f.OK)
	for _, member := range []struct{ name, value string }{
		{"node", f.Node}, {"promise", f.Promise}, {"detail", f.Detail}, {"remedy", f.Remedy},
	} {
		if member.value != "" {
			b = appendStringMember(b, member.name, member.value)
		}
	}
	return append(b, '}')
}
