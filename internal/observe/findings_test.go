package observe

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fencepost/internal/fencing"
)

// ailing is a store with findings and a quarantine.
type ailing struct {
	fencing.Store
	findings []fencing.Finding
	err      error
}

func (s *ailing) Examine(context.Context) ([]fencing.Finding, error) { return s.findings, s.err }

func (s *ailing) Stats(context.Context) (fencing.Stats, error) {
	return fencing.Stats{Held: 2, Quarantine: 1500 * time.Millisecond}, s.err
}

func TestFindingsAndQuarantine(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	ill := &ailing{findings: []fencing.Finding{
		{Node: "a", Check: "clock"}, {Node: "b", Check: "clock"}, {Node: "c", Check: "clock", OK: true}, {Node: "a", Check: "role", OK: true},
	}}
	s := Wrap(ill, reg)
	expect(t, reg, ``, "fencepost_store_findings")
	const found = `
# HELP fencepost_store_findings Servers of the store that did not pass a check of the last examination, by check.
# TYPE fencepost_store_findings gauge
fencepost_store_findings{check="clock"} 2
fencepost_store_findings{check="role"} 0
`
	const quarantine = `
# HELP fencepost_store_quarantine_seconds Time until new leases are granted again after the store may have lost some; 0 without a quarantine.
# TYPE fencepost_store_quarantine_seconds gauge
fencepost_store_quarantine_seconds 1.5
`
	if _, err := s.Examine(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(t, reg, found+quarantine, "fencepost_store_findings", "fencepost_store_quarantine_seconds")

	ill.err = fencing.Unavailable(nil)
	if _, err := s.Examine(t.Context()); err == nil {
		t.Fatal("an error was lost")
	}
	expect(t, reg, found, "fencepost_store_findings", "fencepost_store_quarantine_seconds")

	ill.err, ill.findings = nil, []fencing.Finding{{Check: "access"}}
	if _, err := s.Examine(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(t, reg, `
# HELP fencepost_store_findings Servers of the store that did not pass a check of the last examination, by check.
# TYPE fencepost_store_findings gauge
fencepost_store_findings{check="access"} 1
`, "fencepost_store_findings")
}
