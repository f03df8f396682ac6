package observe

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"fencepost/internal/fencing"
)

var findingsDesc = prometheus.NewDesc("fencepost_store_findings",
	"Servers of the store that did not pass a check of the last examination, by check.", []string{"check"}, nil)

// findings counts what the last examination has found. A check that it did not
// come to has no sample.
type findings struct {
	last atomic.Pointer[map[string]int]
}

func (f *findings) note(found []fencing.Finding) {
	failed := map[string]int{}
	for i := range found {
		n := failed[found[i].Check]
		if !found[i].OK {
			n++
		}
		failed[found[i].Check] = n
	}
	f.last.Store(&failed)
}

// Describe implements prometheus.Collector.
func (f *findings) Describe(ch chan<- *prometheus.Desc) { ch <- findingsDesc }

// Collect implements prometheus.Collector.
func (f *findings) Collect(ch chan<- prometheus.Metric) {
	last := f.last.Load()
	if last == nil {
		return
	}
	for check, n := range *last {
		ch <- prometheus.MustNewConstMetric(findingsDesc, prometheus.GaugeValue, float64(n), check)
	}
}
