// Package observe counts, times and traces what a store does, as a fencing.Store around a
// fencing.Store. No metric carries a lock's name, an owner or a lease: their number is not
// bounded.
package observe

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"fencepost/internal/fencing"
)

// Store is a fencing.Store that measures another one.
type Store struct {
	fencing.Store
	duration    *prometheus.HistogramVec
	observers   map[string]prometheus.Observer
	errors      *prometheus.CounterVec
	granted     prometheus.Counter
	ended       *prometheus.CounterVec
	hold        *prometheus.HistogramVec
	margin      prometheus.Histogram
	tooLate     *prometheus.CounterVec
	lateSeconds *prometheus.HistogramVec
	admissions  *prometheus.CounterVec
	findings    *findings

	tracer trace.Tracer // nil: no spans are made
	kind   attribute.KeyValue
}

var operations = []string{
	"acquire", "renew", "release", "confirm", "leave", "take_back", "break", "evict", "admit", "judge", "inspect", "history", "list", "expire",
	"heartbeat", "examine", "check",
}

// Wrap returns store measured, its metrics registered with reg.
func Wrap(store fencing.Store, reg prometheus.Registerer) *Store {
	s := &Store{
		Store: store,
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "fencepost_store_operation_duration_seconds",
			Help: "Time a store operation took, retries included.",
			// 50 us to 3.3 s: from a round trip on loopback to the end of an operation's budget.
			Buckets: prometheus.ExponentialBuckets(50e-6, 2, 17),
		}, []string{"operation"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencepost_store_errors_total",
			Help: "Store operations answered with a 503, by code: refused (quarantined), or with an unknown outcome.",
		}, []string{"operation", "code"}),
		granted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fencepost_leases_granted_total",
			Help: "Leases granted through this gateway.",
		}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencepost_leases_ended_total",
			Help: "Leases that this gateway ended or whose end it noticed, by reason.",
		}, []string{"reason"}),
		hold: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "fencepost_lease_hold_seconds",
			Help:    "Time from grant to end of a lease, by how it ended.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 14), // 1 ms to 18.6 h
		}, []string{"reason"}),
		margin: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "fencepost_renew_margin_ratio",
			Help:    "What was left of a lease when it was renewed, as a part of the TTL it was granted with. Near 0: almost too late.",
			Buckets: []float64{.01, .02, .05, .1, .2, .3, .4, .5, .6, .7, .8, .9, 1},
		}),
		tooLate: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencepost_leases_lost_total",
			Help: "Requests of former holders that came too late, by operation and reason.",
		}, []string{"operation", "reason"}),
		lateSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "fencepost_late_seconds",
			Help:    "By how much a renewal or release missed the end of its lease.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 10), // 1 ms to 262 s
		}, []string{"operation"}),
		admissions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencepost_fence_admissions_total",
			Help: "Tokens that fences were asked to admit, by result: ok, stale_token, or a code of a 503.",
		}, []string{"code"}),
		findings:  &findings{},
		observers: map[string]prometheus.Observer{},
	}
	for _, op := range operations {
		s.observers[op] = s.duration.WithLabelValues(op)
	}
	// Series that are alerted on begin at 0: Prometheus sees no increase in one that appears.
	for _, code := range []fencing.Code{fencing.CodeOK, fencing.CodeStaleToken} {
		s.admissions.WithLabelValues(string(code))
	}
	for _, reason := range []fencing.Reason{fencing.ReasonReleased, fencing.ReasonExpired, fencing.ReasonBroken} {
		s.ended.WithLabelValues(string(reason))
	}
	for _, op := range []string{"renew", "release"} {
		for _, reason := range []fencing.Reason{fencing.ReasonExpired, fencing.ReasonSuperseded} {
			s.tooLate.WithLabelValues(op, string(reason))
		}
	}
	reg.MustRegister(s.duration, s.errors, s.granted, s.ended, s.hold, s.margin, s.tooLate, s.lateSeconds, s.admissions, s.findings, statsCollector{store})
	return s
}

// Do implements fencing.Store.
func (s *Store) Do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	ctx, c := s.beginTraced(ctx, fencing.Verb(op))
	out, err := s.Store.Do(ctx, op)
	code := s.end(c, out.Ended, err)
	switch op.(type) {
	case fencing.AcquireRequest, fencing.ConfirmRequest:
		if err == nil && out.Fresh && !out.Holder.Provisional { // a provisional one is counted when it is confirmed
			s.granted.Inc()
		}
	case fencing.RenewRequest:
		if err == nil && out.Holder.GrantTTL > 0 {
			s.margin.Observe(out.Margin.Seconds() / out.Holder.GrantTTL.Seconds())
		}
	case fencing.AdmitRequest:
		s.admissions.WithLabelValues(string(code)).Inc()
	}
	return out, err
}

// List implements fencing.Store.
func (s *Store) List(ctx context.Context, r fencing.ListRequest) (fencing.ListPage, error) {
	ctx, c := s.beginTraced(ctx, "list")
	page, err := s.Store.List(ctx, r)
	s.end(c, nil, err)
	return page, err
}

// Expire implements fencing.Store.
func (s *Store) Expire(ctx context.Context, limit int) (fencing.Expiry, error) {
	c := begin("expire")
	expiry, err := s.Store.Expire(ctx, limit)
	s.end(c, expiry.Ended, err)
	return expiry, err
}

// Heartbeat implements fencing.Store.
func (s *Store) Heartbeat(ctx context.Context, names []fencing.Name) error {
	c := begin("heartbeat")
	err := s.Store.Heartbeat(ctx, names)
	s.end(c, nil, err)
	return err
}

// Listen implements fencing.Store.
func (s *Store) Listen(l fencing.Listener) { s.Store.Listen(handedOn{l, s.granted}) }

// Examine implements fencing.Store. A store that can't be examined counts as it did.
func (s *Store) Examine(ctx context.Context) ([]fencing.Finding, error) {
	c := begin("examine")
	found, err := s.Store.Examine(ctx)
	s.end(c, nil, err)
	if err == nil {
		s.findings.note(found)
	}
	return found, err
}

// Check implements fencing.Store.
func (s *Store) Check(ctx context.Context) error {
	c := begin("check")
	err := s.Store.Check(ctx)
	s.end(c, nil, err)
	return err
}

// call is a call of the store that is under way.
type call struct {
	operation string
	start     time.Time
	span      trace.Span // nil for none
}

func begin(operation string) call { return call{operation: operation, start: time.Now()} }

// end measures a call, counts what it came to, and returns its code.
func (s *Store) end(c call, ended []fencing.Ended, err error) fencing.Code {
	took := time.Since(c.start)
	code := fencing.CodeOf(err)
	c.endSpan(took, code)
	if o := s.observers[c.operation]; o != nil { // there is none of what a gateway does not ask for
		o.Observe(took.Seconds())
	}
	for i := range ended {
		reason := string(ended[i].Reason)
		s.ended.WithLabelValues(reason).Inc()
		s.hold.WithLabelValues(reason).Observe(ended[i].Held().Seconds())
	}
	switch code {
	case fencing.CodeLeaseLost:
		refusal := fencing.AsError(err)
		s.tooLate.WithLabelValues(c.operation, string(refusal.Reason)).Inc()
		if refusal.Late > 0 {
			s.lateSeconds.WithLabelValues(c.operation).Observe(refusal.Late.Seconds())
		}
	case fencing.CodeUnavailable, fencing.CodeClockSkew, fencing.CodeNotReplicated, fencing.CodeQuarantined:
		s.errors.WithLabelValues(c.operation, string(code)).Inc()
	}
	return code
}
