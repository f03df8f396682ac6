package embedded

import (
	"reflect"
	"testing"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// notOnDisk are the fields that a file does not have, with the reason.
var notOnDisk = map[string]string{
	"Record.EndedToken":   "for claims, and the embedded store is no node of a quorum",
	"Record.Intent":       "as EndedToken",
	"Record.LastClaimed":  "as EndedToken",
	"Record.SlotMarks":    "a bucket of its own",
	"Record.Holders":      "a bucket of its own",
	"Record.Queue":        "does not outlive the process",
	"Record.RetryAt":      "a restart looks at all names",
	"Record.History":      "a bucket of its own",
	"Record.DelaySetAt":   "there is one clock",
	"Record.DelaySentAt":  "as DelaySetAt",
	"Record.DelayedOther": "as DelaySetAt",

	"Holding.Stamp":       "its request does not outlive the process",
	"Holding.Told":        "as Stamp",
	"Holding.Gateway":     "as Stamp",
	"Holding.Attached":    "as Stamp",
	"Holding.Epoch":       "as Stamp: no stream has one that outlives the process",
	"Holding.Keep":        "as Stamp",
	"Holding.Seq":         "as Stamp",
	"Holding.JoinedAt":    "as Stamp",
	"Holding.ExpiresAt":   "a restart begins the TTL anew",
	"Holding.Provisional": "only firm leases are written",
	"Holding.Claimed":     "as Record.EndedToken",
	"Holding.Lease":       "in the key",
	"Holding.SetAt":       "as Record.DelaySetAt",
	"Holding.SentAt":      "as Record.DelaySetAt",

	"Tombstone.Until": "in the key",
}

// TestEveryFieldIsDurable: a field of what the state remembers that is neither written
// to the file nor excused fails by its name; and a record that differs in the file is
// seen to differ.
func TestEveryFieldIsDurable(t *testing.T) {
	check := func(what string, kind reflect.Type, differs func(name string, v reflect.Value) bool) {
		for _, field := range reflect.VisibleFields(kind) {
			if field.Anonymous {
				continue
			}
			name := what + "." + field.Name
			if _, excused := notOnDisk[name]; excused {
				continue
			}
			v := reflect.New(kind).Elem()
			v.FieldByIndex(field.Index).Set(fencingtest.NotZero(t, field.Type))
			if !differs(name, v) {
				t.Errorf("%s is not written: see record.go", name)
			}
		}
	}
	check("Record", reflect.TypeFor[fencing.Record](), func(name string, v reflect.Value) bool {
		r := v.Interface().(fencing.Record)
		if keptOf(&r) == (keptRecord{}) {
			t.Errorf("%s is written, and a step that changes it is not noticed: see keptRecord", name)
		}
		d := recordOnDisk(&r)
		restored := d.restore(0)
		return reflect.DeepEqual(*restored, r)
	})
	check("Holding", reflect.TypeFor[fencing.Holding](), func(_ string, v reflect.Value) bool {
		h := v.Interface().(fencing.Holding)
		d := holdingOnDisk(&h)
		restored := d.restore(h.Lease, 0, 0)
		restored.ExpiresAt = h.ExpiresAt
		return reflect.DeepEqual(restored, h)
	})
	check("Tombstone", reflect.TypeFor[fencing.Tombstone](), func(_ string, v reflect.Value) bool {
		tomb := v.Interface().(fencing.Tombstone)
		d := tombstoneOnDisk(tomb)
		return reflect.DeepEqual(d.restore(make([]byte, 8)), tomb)
	})
}
