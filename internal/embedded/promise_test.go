package embedded

import (
	"reflect"
	"strings"
	"testing"

	"fencepost/internal/fencing"
)

// granted are the fields of a lease in the file that its grant settles: no step changes
// them while the lease has its token, but a renewal that sets labels, which is always written.
var granted = map[string]bool{
	"Owner": true, "Metadata": true, "Secret": true, "GrantTTL": true, "MaxHold": true, "LockDelay": true, "AcquiredAt": true, "Waited": true, "Set": true,
}

// TestEveryFieldIsPromised: a field of a lease in the file that a step may change is in
// promise, or the change would be written only when something else is.
func TestEveryFieldIsPromised(t *testing.T) {
	promised := map[string]bool{}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[promise]()) {
		promised[strings.ToLower(field.Name)] = true
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[fencing.Holding]()) {
		if _, excused := notOnDisk["Holding."+field.Name]; excused || field.Anonymous {
			continue
		}
		name := strings.ToLower(field.Name)
		if granted[field.Name] == promised[name] {
			t.Errorf("%s of a lease is in the file: is it settled by the grant (%t), or in promise of decide.go (%t)?", field.Name, granted[field.Name], promised[name])
		}
	}
}
