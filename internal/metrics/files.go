package metrics

import "github.com/prometheus/client_golang/prometheus"

// Files tells of the files that the gateway reads again when they change.
type Files struct {
	current *prometheus.GaugeVec
}

// NewFiles registers the metrics of files.
func NewFiles(reg prometheus.Registerer) *Files {
	f := &Files{current: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "fencepost_file_in_force",
		Help: "1 if what is in force is what the file of a setting says, 0 if the file can't be used and what was read before stays in force.",
	}, []string{"setting"})}
	reg.MustRegister(f.current)
	return f
}

// Note says whether the file of a setting could be used.
func (f *Files) Note(setting string, used bool) {
	value := 0.0
	if used {
		value = 1
	}
	f.current.WithLabelValues(setting).Set(value)
}
