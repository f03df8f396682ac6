package observe

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fencepost/internal/fencing"
)

// Observer counts what becomes of requests that wait. Its methods may be called
// from many goroutines.
type Observer struct {
	waiting   prometheus.Gauge
	waited    *prometheus.HistogramVec
	handOff   prometheus.Histogram
	takenBack prometheus.Counter
	lost      prometheus.Counter
	dropped   *prometheus.CounterVec
}

// NewObserver returns an Observer whose metrics are registered with reg.
func NewObserver(reg prometheus.Registerer) *Observer {
	o := &Observer{
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fencepost_queue_waiters",
			Help: "Requests waiting at this gateway now.",
		}),
		waited: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "fencepost_queue_wait_seconds",
			Help:    "Time that requests waited, by outcome: granted, left (the client went away) or the code of the refusal.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 11), // 1 ms to 17 min
		}, []string{"outcome"}),
		handOff: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fencepost_queue_handoff_seconds",
			Help: "Time from the hand-off in the store until the waiting request had its lease.",
			// 50 us to 3.3 s: from a round trip on loopback to a message that was lost and more.
			Buckets: prometheus.ExponentialBuckets(50e-6, 2, 17),
		}),
		takenBack: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fencepost_queue_grants_taken_back_total",
			Help: "Grants to waiting requests whose client had already left; they were taken back.",
		}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fencepost_queue_lost_messages_total",
			Help: "Grants found by a heartbeat because no message or answer announced them.",
		}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencepost_queue_drops_total",
			Help: "Requests that were not admitted to the queue (name_full, process_full, draining), or lost their place and queued again (lapsed).",
		}, []string{"reason"}),
	}
	for _, reason := range []string{"name_full", "process_full", "lapsed"} { // begin at 0: an alert sees no increase in a series that appears
		o.dropped.WithLabelValues(reason)
	}
	reg.MustRegister(o.waiting, o.waited, o.handOff, o.takenBack, o.lost, o.dropped)
	return o
}

// Waited tells how long a request waited, and what it came to.
func (o *Observer) Waited(d time.Duration, outcome string) {
	o.waited.WithLabelValues(outcome).Observe(d.Seconds())
}

// HandedOver tells how long a hand-off took.
func (o *Observer) HandedOver(latency time.Duration) { o.handOff.Observe(latency.Seconds()) }

// TakenBack tells of a grant to a request that had gone.
func (o *Observer) TakenBack() { o.takenBack.Inc() }

// FoundLost tells of a grant whose message was lost.
func (o *Observer) FoundLost() { o.lost.Inc() }

// Dropped tells of a request that is not in the queue, and why.
func (o *Observer) Dropped(reason string) { o.dropped.WithLabelValues(reason).Inc() }

// Waiting tells that so many more requests wait, or fewer.
func (o *Observer) Waiting(delta int) { o.waiting.Add(float64(delta)) }

// handedOn counts the leases that are handed to waiters of this gateway.
type handedOn struct {
	fencing.Listener
	granted prometheus.Counter
}

// Granted implements fencing.Listener. A provisional lease is counted when it is
// confirmed.
func (l handedOn) Granted(g fencing.Grant, now fencing.Instant, asked time.Time) {
	if !g.Holder.Provisional {
		l.granted.Inc()
	}
	l.Listener.Granted(g, now, asked)
}
