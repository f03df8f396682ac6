// Package metrics counts and times what a store does, as a fencing.Store around
// a fencing.Store. No metric carries a lock's name, an owner or a lease: their
// number is not bounded.
package metrics

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fencepost/internal/fencing"
)

// statsTimeout bounds how long a scrape waits for the store.
const statsTimeout = time.Second

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
			Help: "Store operations answered with a 503, by code: refused (quarantined), or with an outcome that is not known.",
		}, []string{"operation", "code"}),
		granted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fencepost_leases_granted_total",
			Help: "Leases granted through this gateway.",
		}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencepost_leases_ended_total",
			Help: "Leases whose end this gateway brought about or noticed, by reason.",
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
			Help: "Requests of former holders who came too late, by operation and reason.",
		}, []string{"operation", "reason"}),
		lateSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "fencepost_late_seconds",
			Help:    "By how much a renewal or release missed the end of its lease.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 10), // 1 ms to 262 s
		}, []string{"operation"}),
		admissions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencepost_fence_admissions_total",
			Help: "Tokens that fences were asked to admit, by what came of it: ok, stale_token, or a code of a 503.",
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
	start := time.Now()
	out, err := s.Store.Do(ctx, op)
	s.observe(fencing.Verb(op), start, out.Ended, err)
	switch op.(type) {
	case fencing.AcquireRequest, fencing.ConfirmRequest:
		s.grant(&out, err)
	case fencing.RenewRequest:
		if err == nil && out.Holder.GrantTTL > 0 {
			s.margin.Observe(out.Margin.Seconds() / out.Holder.GrantTTL.Seconds())
		}
	case fencing.AdmitRequest:
		s.admissions.WithLabelValues(string(codeOf(err))).Inc()
	}
	return out, err
}

// grant counts a lease that its request has now. A provisional one is counted when
// it is confirmed.
func (s *Store) grant(out *fencing.Outcome, err error) {
	if err == nil && out.Fresh && !out.Holder.Provisional {
		s.granted.Inc()
	}
}

// List implements fencing.Store.
func (s *Store) List(ctx context.Context, r fencing.ListRequest) (fencing.ListPage, error) {
	start := time.Now()
	page, err := s.Store.List(ctx, r)
	s.observe("list", start, nil, err)
	return page, err
}

// Expire implements fencing.Store.
func (s *Store) Expire(ctx context.Context, limit int) (fencing.Expiry, error) {
	start := time.Now()
	expiry, err := s.Store.Expire(ctx, limit)
	s.observe("expire", start, expiry.Ended, err)
	return expiry, err
}

// Heartbeat implements fencing.Store.
func (s *Store) Heartbeat(ctx context.Context, names []fencing.Name) error {
	start := time.Now()
	err := s.Store.Heartbeat(ctx, names)
	s.observe("heartbeat", start, nil, err)
	return err
}

// Listen implements fencing.Store.
func (s *Store) Listen(l fencing.Listener) { s.Store.Listen(handedOn{l, s.granted}) }

// Examine implements fencing.Store. A store that can't be examined counts as it did.
func (s *Store) Examine(ctx context.Context) ([]fencing.Finding, error) {
	start := time.Now()
	found, err := s.Store.Examine(ctx)
	s.observe("examine", start, nil, err)
	if err == nil {
		s.findings.note(found)
	}
	return found, err
}

// Check implements fencing.Store.
func (s *Store) Check(ctx context.Context) error {
	start := time.Now()
	err := s.Store.Check(ctx)
	s.observe("check", start, nil, err)
	return err
}

// observe counts what an operation came to.
func (s *Store) observe(operation string, start time.Time, ended []fencing.Ended, err error) {
	if o := s.observers[operation]; o != nil {
		o.Observe(time.Since(start).Seconds())
	}
	for i := range ended {
		reason := string(ended[i].Reason)
		s.ended.WithLabelValues(reason).Inc()
		s.hold.WithLabelValues(reason).Observe(ended[i].Held().Seconds())
	}
	if err == nil {
		return
	}
	switch refusal := refusalOf(err); refusal.Code {
	case fencing.CodeLeaseLost:
		s.tooLate.WithLabelValues(operation, string(refusal.Reason)).Inc()
		if refusal.Late > 0 {
			s.lateSeconds.WithLabelValues(operation).Observe(refusal.Late.Seconds())
		}
	case fencing.CodeUnavailable, fencing.CodeClockSkew, fencing.CodeNotReplicated, fencing.CodeQuarantined:
		s.errors.WithLabelValues(operation, string(refusal.Code)).Inc()
	}
}

// refusalOf returns an error as a refusal with a code.
func refusalOf(err error) *fencing.Error {
	if refusal, ok := errors.AsType[*fencing.Error](err); ok {
		return refusal
	}
	return fencing.Unavailable(err)
}

func codeOf(err error) fencing.Code {
	if err == nil {
		return fencing.CodeOK
	}
	return refusalOf(err).Code
}

var (
	heldDesc = prometheus.NewDesc("fencepost_locks_held",
		"Names with a live lease, in the whole store; expired ones count until they are reaped.", nil, nil)
	quarantineDesc = prometheus.NewDesc("fencepost_store_quarantine_seconds",
		"Time until everything may be granted again after something may have been forgotten; 0 without a quarantine.", nil, nil)
)

// statsCollector asks the store at every scrape. A store that does not answer
// leaves the samples out rather than failing the scrape: that is when an
// operator needs the other metrics.
type statsCollector struct{ store fencing.Store }

// Describe implements prometheus.Collector.
func (c statsCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- heldDesc
	ch <- quarantineDesc
}

// Collect implements prometheus.Collector.
func (c statsCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), statsTimeout)
	defer cancel()
	if stats, err := c.store.Stats(ctx); err == nil {
		ch <- prometheus.MustNewConstMetric(heldDesc, prometheus.GaugeValue, float64(stats.Held))
		ch <- prometheus.MustNewConstMetric(quarantineDesc, prometheus.GaugeValue, stats.Quarantine.Seconds())
	}
}

// Pool is what is known of a pool of connections.
type Pool struct {
	Hits, Misses, Timeouts uint32 // since the start: taken from the pool, newly dialled, waited for in vain
	Stale                  uint32 // since the start: closed for age or error
	Total, Idle            uint32 // now
}

// RegisterPool registers the metrics of a store's connection pool.
func RegisterPool(reg prometheus.Registerer, stats func() Pool) {
	for _, m := range []struct {
		name, help string
		counter    bool
		of         func(Pool) uint32
	}{
		{"hits_total", "Times a free connection was found in the pool.", true, func(p Pool) uint32 { return p.Hits }},
		{"misses_total", "Times no free connection was found in the pool.", true, func(p Pool) uint32 { return p.Misses }},
		{"timeouts_total", "Times waiting for a connection took too long.", true, func(p Pool) uint32 { return p.Timeouts }},
		{"stale_total", "Connections dropped because they were stale.", true, func(p Pool) uint32 { return p.Stale }},
		{"connections", "Connections in the pool.", false, func(p Pool) uint32 { return p.Total }},
		{"idle_connections", "Idle connections in the pool.", false, func(p Pool) uint32 { return p.Idle }},
	} {
		value := func() float64 { return float64(m.of(stats())) }
		name := "fencepost_store_pool_" + m.name
		if m.counter {
			reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: m.help}, value))
		} else {
			reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: m.help}, value))
		}
	}
}

// RegisterLosses registers how often a store was found to have forgotten something.
func RegisterLosses(reg prometheus.Registerer, losses func() int64) {
	reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "fencepost_store_losses_total",
		Help: "Parts of the store that may have forgotten leases, each time this gateway found one: a restart or fail-over counts, whatever was lost.",
	}, func() float64 { return float64(losses()) }))
}

// RegisterBuild registers fencepost_build_info, always 1.
func RegisterBuild(reg prometheus.Registerer, version, goVersion, store string) {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "fencepost_build_info", Help: "What is running; always 1.",
		ConstLabels: prometheus.Labels{"version": version, "go_version": goVersion, "store": store},
	})
	info.Set(1)
	reg.MustRegister(info)
}
