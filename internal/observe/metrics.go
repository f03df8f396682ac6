package observe

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fencepost/internal/fencing"
)

// statsTimeout bounds how long a scrape waits for the store.
const statsTimeout = time.Second

var (
	heldDesc = prometheus.NewDesc("fencepost_locks_held",
		"Names with a live lease, in the whole store; expired ones count until they are reaped.", nil, nil)
	quarantineDesc = prometheus.NewDesc("fencepost_store_quarantine_seconds",
		"Time until new leases are granted again after the store may have lost some; 0 without a quarantine.", nil, nil)
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
		Help: "Times that this gateway found a part of the store that may have lost leases; every restart or fail-over counts, even if nothing was lost.",
	}, func() float64 { return float64(losses()) }))
}

// RegisterTurnsEnded registers how many sessions in a database were ended.
func RegisterTurnsEnded(reg prometheus.Registerer, ended func() int64) {
	reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "fencepost_store_turns_ended_total",
		Help: "Sessions in the database that this gateway ended because another gateway stood still in its turn and kept all others waiting.",
	}, func() float64 { return float64(ended()) }))
}

// RegisterPanics registers how many operations could not be carried out, for they panicked.
func RegisterPanics(reg prometheus.Registerer, panics func() int64) {
	reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "fencepost_store_panics_total",
		Help: "Operations that could not be carried out because of a fault of the gateway; its log has each of them.",
	}, func() float64 { return float64(panics()) }))
}

// RegisterLog registers how many lines of the log were lost.
func RegisterLog(reg prometheus.Registerer, lost func() uint64) {
	reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "fencepost_log_lines_lost_total",
		Help: "Lines of the log, the audit's among them, that were dropped because nobody read them, or could not be written.",
	}, func() float64 { return float64(lost()) }))
}

// RegisterBuild registers fencepost_build_info, always 1.
func RegisterBuild(reg prometheus.Registerer, version, goVersion, store string) {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "fencepost_build_info", Help: "Version of the gateway; always 1.",
		ConstLabels: prometheus.Labels{"version": version, "go_version": goVersion, "store": store},
	})
	info.Set(1)
	reg.MustRegister(info)
}
