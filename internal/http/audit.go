package http

import (
	"context"
	"log/slog"
	"net/http"

	"fencepost/internal/auth"
	"fencepost/internal/fencing"
)

// The audit is those lines of the log that have the message "audit" and a group of that
// name: every refusal by keys, every break and eviction, every profile, every change of a key. No secret
// is in any.

// MostAuditBytes is more than the audit's line about a break or an eviction takes: a name, a reason and who it was, escaped.
const MostAuditBytes = 8 << 10

// auditFor sets room aside for the line about an operation, before that is carried out, and returns where the line goes and what
// gives the room back. Where there is none, and has to be, the operation is refused.
func (s *Server) auditFor() (to *slog.Logger, done func(), err error) {
	if s.reserveAudit == nil {
		return s.audit, func() {}, nil
	}
	if to, done, err = s.reserveAudit(); err != nil {
		return nil, nil, &fencing.Error{Code: fencing.CodeUnavailable, Err: err,
			Detail: "nothing was done: the audit's line about it could not be written, and FENCEPOST_AUDIT_REQUIRED is set. The check log of /readyz?verbose says why"}
	}
	return to, done, nil
}

// auditRefusal writes the line of a request that was refused.
func (c *call) auditRefusal(err error, principal *auth.Principal) {
	e := problemOf(err)
	if e.Code == fencing.CodeForbidden {
		if wait, first := c.s.gate.refusals.note(clientOf(c.r.RemoteAddr), c.s.now()); wait > 0 && !first {
			return
		}
	}
	attrs := append(c.auditAttrs("refused", principal), slog.String("code", string(e.Code)), slog.String("reason", e.Detail))
	if name := c.refusedName(); name != "" {
		attrs = append(attrs, slog.String("name", string(name)))
	}
	audit(c.s.audit, slog.LevelWarn, attrs)
}

// refusedName returns the name that a refusal is about: the first that the key may not use, or else the first; empty if
// none is known, or it is no valid one.
func (c *call) refusedName() fencing.Name {
	var first fencing.Name
	for _, asked := range c.asked {
		name, err := fencing.ParseName(string(asked))
		switch {
		case err != nil:
		case !c.covers(name):
			return name
		case first == "":
			first = name
		}
	}
	return first
}

// auditBreak writes the line of a lease that somebody has broken, or tried to.
func (c *call) auditBreak(to *slog.Logger, req endRequest, err error) {
	code := fencing.CodeOK
	if err != nil {
		code = problemOf(err).Code
	}
	attrs := append(c.auditAttrs("break", c.principal),
		slog.String("code", string(code)), slog.String("name", string(req.name)), slog.Int64("fencing_token", int64(req.token)))
	if req.notice != 0 {
		attrs = append(attrs, slog.Int64("notice_ms", req.notice.Milliseconds()))
	}
	if req.breakReason != "" {
		attrs = append(attrs, slog.String("break_reason", req.breakReason))
	}
	audit(to, slog.LevelInfo, attrs)
}

// auditEvict writes the line of a waiter that somebody has evicted, or tried to.
func (c *call) auditEvict(to *slog.Logger, req fencing.EvictRequest, err error) {
	code := fencing.CodeOK
	if err != nil {
		code = problemOf(err).Code
	}
	attrs := append(c.auditAttrs("evict", c.principal),
		slog.String("code", string(code)), slog.String("name", string(req.Name)), slog.String("lease", string(req.Waiter)))
	if req.BreakReason != "" {
		attrs = append(attrs, slog.String("break_reason", req.BreakReason))
	}
	audit(to, slog.LevelInfo, attrs)
}

func (c *call) auditAttrs(event string, principal *auth.Principal) []slog.Attr {
	return append(auditAttrs(c.r, event, principal), slog.String("request_id", string(c.requestID())), slog.String("route", c.endpoint.path))
}

// auditAttrs are what every line about a request has.
func auditAttrs(r *http.Request, event string, principal *auth.Principal) []slog.Attr {
	attrs := []slog.Attr{slog.String("event", event), slog.String("client", clientOf(r.RemoteAddr)), slog.String("method", methodLabel(r.Method))}
	return append(attrs, principalAttrs(principal)...)
}

func audit(log *slog.Logger, level slog.Level, attrs []slog.Attr) {
	log.LogAttrs(context.Background(), level, "audit", slog.Attr{Key: "audit", Value: slog.GroupValue(attrs...)})
}

// principalAttrs say who it was; nothing of nobody.
func principalAttrs(p *auth.Principal) []slog.Attr {
	if p == nil {
		return nil
	}
	attrs := []slog.Attr{slog.String("principal", p.Name)}
	if p.ID != "" {
		attrs = append(attrs, slog.String("key", p.ID))
	}
	return attrs
}
