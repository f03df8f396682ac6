package fencing

import "testing"

// TestHeldDetail: a refusal says what keeps the request from the lock.
func TestHeldDetail(t *testing.T) {
	t.Parallel()
	permit, reader := Holder{Mode: ModeShared, Limit: 3, Permits: 2}, Holder{Mode: ModeShared, Permits: 1}
	for want, l := range map[string]Lock{
		"the lock is held by somebody else": {Holders: []Holder{{Mode: ModeExclusive, Limit: 1, Permits: 1}}, HolderCount: 1},
		"2 of 3 permits are taken":          {Holders: []Holder{permit}, HolderCount: 1},
		"3 of 3 permits are taken":          {Holders: []Holder{permit, reader}, HolderCount: 2},
		"a shared lease holds the lock":     {Holders: []Holder{reader}, HolderCount: 1},
		"2 shared leases hold the lock":     {Holders: []Holder{reader, reader}, HolderCount: 2},
		"others wait for the lock":          {Waiting: 1},
	} {
		if got := LockedError(CodeLocked, &l).Detail; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
