package observe

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Files tells of the files that the gateway reads again when they change. Its methods do
// nothing if it is nil.
type Files struct {
	current, expiry *prometheus.GaugeVec
}

// NewFiles registers the metrics of files.
func NewFiles(reg prometheus.Registerer) *Files {
	f := &Files{current: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "fencepost_file_in_force",
		Help: "1 if the content of the file of a setting is in force, 0 if the file can't be used and its previous content stays in force.",
	}, []string{"setting"}), expiry: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "fencepost_certificate_expiry_timestamp_seconds",
		Help: "When the certificate of a setting expires, in seconds since 1970.",
	}, []string{"setting"})}
	reg.MustRegister(f.current, f.expiry)
	return f
}

// Note says whether the file of a setting could be used.
func (f *Files) Note(setting string, used bool) {
	if f == nil {
		return
	}
	value := 0.0
	if used {
		value = 1
	}
	f.current.WithLabelValues(setting).Set(value)
}

// Expires says when the certificate of a setting does.
func (f *Files) Expires(setting string, at time.Time) {
	if f == nil {
		return
	}
	f.expiry.WithLabelValues(setting).Set(float64(at.Unix()))
}
