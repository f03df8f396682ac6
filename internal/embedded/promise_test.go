package embedded

import (
	"reflect"
	"strings"
	"testing"

	"fencepost/internal/fencing"
)

// forgotten are the fields of a lease that do not outlive the process, or say nothing to its client, with the reason.
var forgotten = map[string]string{
	"Stamp":       "its request does not outlive the process",
	"Told":        "as Stamp",
	"Gateway":     "as Stamp",
	"Attached":    "as Stamp",
	"Epoch":       "as Stamp: no stream has one that outlives the process",
	"Keep":        "as Stamp",
	"Seq":         "as Stamp",
	"JoinedAt":    "as Stamp",
	"ExpiresAt":   "a restart begins the TTL anew",
	"Provisional": "a restart drops the lease",
	"Claimed":     "for claims, and the embedded store is no node of a quorum",
	"Lease":       "what the rest is of",
	"SetAt":       "there is one clock",
	"SentAt":      "as SetAt",
}

// granted are the fields of a lease that its grant settles: no step changes
// them while the lease has its token. What else is changed promises its client nothing more, or waits in any case.
var granted = map[string]bool{
	"Secret": true, "GrantTTL": true, "MaxHold": true, "LockDelay": true, "AcquiredAt": true, "Waited": true, "Set": true,
	"Owner": true, "Metadata": true, // but for a renewal that sets labels
	"Permits": true, "Slots": true, // but for those that are given back: losing that keeps out others
	"BreakAt": true, "BreakReason": true, // of a break, whose answer always waits
}

// TestEveryFieldIsPromised: a field of a lease that outlives the process and that a step may change is in
// promise, or an answer that tells of the change would not wait until it is durable.
func TestEveryFieldIsPromised(t *testing.T) {
	promised := map[string]bool{}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[promise]()) {
		promised[strings.ToLower(field.Name)] = true
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[fencing.Holding]()) {
		if _, excused := forgotten[field.Name]; excused || field.Anonymous {
			continue
		}
		name := strings.ToLower(field.Name)
		if granted[field.Name] == promised[name] {
			t.Errorf("%s of a lease outlives the process: is it settled by the grant (%t), or in promise of decide.go (%t)?", field.Name, granted[field.Name], promised[name])
		}
	}
}
