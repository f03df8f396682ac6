package fencingtest

import (
	"fmt"
	"testing"

	"fencepost/internal/fencing"
)

// TestCrowded: what is shown after a command is held to P1 by itself, without Step.
func TestCrowded(t *testing.T) {
	const name = "a"
	holder := func(lease string, limit, from, permits int) fencing.Holder {
		h := fencing.Holder{Lease: leaseOf(lease).Public(), Mode: fencing.ModeShared, Limit: limit, Permits: permits}
		h.Slot = from
		if permits > 1 {
			h.Slots = fencing.Slots(fmt.Sprintf("%d-%d", from, from+permits-1))
		}
		return h
	}
	renewOf := func(lease string) *command { return &command{verb: "renew", name: name, lease: lease} }
	all := func(holders ...fencing.Holder) []fencing.Holder { return holders }
	for _, c := range []struct {
		what  string
		was   []fencing.Holder
		after *command
		is    []fencing.Holder
		legal bool
	}{
		{"a newcomer that fits", all(holder("A", 3, 0, 2)), &command{verb: "acquire"}, all(holder("A", 3, 0, 2), holder("B", 3, 2, 1)), true},
		{"a newcomer that does not fit", all(holder("A", 3, 0, 2)), &command{verb: "acquire"}, all(holder("A", 3, 0, 2), holder("B", 4, 2, 2)), false},
		{"permits that grow beside a lower limit", all(holder("A", 4, 1, 2), holder("B", 3, 0, 1)), renewOf("A"), all(holder("A", 4, 1, 3), holder("B", 3, 0, 1)), false},
		{"permits that are given back", all(holder("A", 4, 0, 3), holder("B", 4, 3, 1)), renewOf("A"), all(holder("A", 4, 0, 2), holder("B", 4, 3, 1)), true},
		{"a limit that is lowered", all(holder("A", 4, 0, 2), holder("B", 4, 2, 2)), renewOf("A"), all(holder("A", 3, 0, 2), holder("B", 4, 2, 2)), true},
		{"a raise that has one more fit", all(holder("A", 3, 0, 2), holder("B", 4, 2, 1)), renewOf("A"), all(holder("A", 4, 0, 2), holder("B", 4, 2, 1), holder("C", 4, 3, 1)), true},
		{"limits that are raised for who comes", all(holder("A", 3, 0, 2), holder("B", 3, 2, 1)), &command{verb: "acquire", name: name, lease: "C"}, all(holder("A", 4, 0, 2), holder("B", 4, 2, 1), holder("C", 4, 3, 1)), false},
		{"another limit than that which was renewed", all(holder("A", 3, 0, 2), holder("B", 3, 2, 1)), renewOf("A"), all(holder("A", 3, 0, 2), holder("B", 4, 2, 1)), false},
		{"a limit of another name than that which was renewed", all(holder("A", 3, 0, 2)), &command{verb: "renew", name: "b", lease: "A"}, all(holder("A", 4, 0, 2)), false},
	} {
		t.Run(c.what, func(t *testing.T) {
			d := &comparison{holders: map[fencing.EndedLease]fencing.Holder{}}
			if err := d.crowded(&fencing.Lock{Name: name, Holders: c.was}, &command{verb: "acquire"}); err != nil {
				t.Fatalf("before: %v", err)
			}
			if err := d.crowded(&fencing.Lock{Name: name, Holders: c.is}, c.after); (err == nil) != c.legal {
				t.Errorf("found %v, want that it is legal: %t", err, c.legal)
			}
		})
	}
}
