package http

import (
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"fencepost/internal/fencing"
)

// metrics are this package's. Every label has a small fixed set of values.
type metrics struct {
	requests  *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	outcomes  *prometheus.CounterVec
	takenBack prometheus.Counter
	streams   *prometheus.GaugeVec
	limited   *prometheus.CounterVec
	estimate  prometheus.Histogram
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencepost_http_requests_total",
			Help: "Requests answered, by route, method and code (ok, a problem's code, internal, or left: the client went away while it waited).",
		}, []string{"route", "method", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "fencepost_http_request_duration_seconds",
			Help:    "Time from the headers of a request to the end of its answer, without the time it waited for a lock. Streams are not in it.",
			Buckets: []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"route", "method"}),
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencepost_acquire_outcomes_total",
			Help: "Outcomes of acquires that reached the store: granted, retried (the same lease again), undelivered, left (the client went away while it waited), or a problem's code.",
		}, []string{"outcome"}),
		takenBack: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fencepost_grants_taken_back_total",
			Help: "Take-backs requested: grants that could not be delivered, and acquires whose outcome is unknown.",
		}),
		streams: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fencepost_http_streams",
			Help: "Streams open now, by kind: attached (leases) and events.",
		}, []string{"kind"}),
		limited: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencepost_http_requests_limited_total",
			Help: "Requests refused with 429 because their principal reached its limit, by limit: rate or number.",
		}, []string{"limit"}),
		estimate: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "fencepost_wait_estimate_ratio",
			Help:    "Waits of attached leases that ended with a grant, as multiples of the estimate that the client was told when it joined the queue.",
			Buckets: []float64{.1, .25, .5, .75, 1, 1.5, 2, 4, 10},
		}),
	}
	for _, limit := range []string{limitRate, limitNumber} {
		m.limited.WithLabelValues(limit) // 0, for who alerts on its increase
	}
	if registerer != nil {
		registerer.MustRegister(m.requests, m.duration, m.outcomes, m.takenBack, m.streams, m.limited, m.estimate)
	}
	return m
}

// estimated notes how long a wait took of which something else was told.
func (m *metrics) estimated(took, told time.Duration) {
	m.estimate.Observe(float64(took) / float64(told))
}

// codeIndex numbers the values of the code label.
var codeIndex = func() map[fencing.Code]int {
	index := map[fencing.Code]int{fencing.CodeOK: 0, codeInternal: 1, codeLeft: 2}
	for _, code := range fencing.Codes() {
		index[code] = len(index)
	}
	return index
}()

// endpoint is a route with a method. It keeps the counters it has used, so that
// the hot path looks no labels up and unused ones make no series.
type endpoint struct {
	path, method string
	metrics      *metrics
	counters     []atomic.Pointer[prometheus.Counter] // by codeIndex
	duration     atomic.Pointer[prometheus.Observer]
}

func (m *metrics) endpoint(path, method string) *endpoint {
	return &endpoint{path: path, method: method, metrics: m, counters: make([]atomic.Pointer[prometheus.Counter], len(codeIndex))}
}

func (e *endpoint) count(code fencing.Code) {
	slot := &e.counters[codeIndex[code]]
	counter := slot.Load()
	if counter == nil {
		made := e.metrics.requests.WithLabelValues(e.path, e.method, string(code))
		counter = &made
		slot.Store(counter)
	}
	(*counter).Inc()
}

func (e *endpoint) observe(elapsed time.Duration) {
	duration := e.duration.Load()
	if duration == nil {
		made := e.metrics.duration.WithLabelValues(e.path, e.method)
		duration = &made
		e.duration.Store(duration)
	}
	(*duration).Observe(elapsed.Seconds())
}

// metricsPage serves what the gatherer has, even if a part of it failed: a
// broken collector must not blind its operator.
func (s *Server) metricsPage() func(*call) {
	if s.gatherer == nil {
		return func(c *call) {
			c.writeError(&fencing.Error{Code: fencing.CodeNotFound, Detail: "metrics are not served at this address; see FENCEPOST_ADMIN_ADDR"})
		}
	}
	gather := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := s.gatherer.Gather()
		if err != nil {
			s.log.Warn("some metrics could not be collected", slog.String("error", err.Error()))
		}
		return families, nil
	})
	var page http.Handler = promhttp.HandlerFor(gather, promhttp.HandlerOpts{})
	return func(c *call) { page.ServeHTTP(c, c.r) }
}
