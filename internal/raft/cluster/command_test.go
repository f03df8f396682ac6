package cluster

import "testing"

// A transfer is over when somebody leads in a later term: also who led before it, where the leadership moved once
// more beside it.
func TestWhenATransferIsOver(t *testing.T) {
	members := []Member{{Seat: Seat{ID: "1", Addr: "a"}}, {Seat: Seat{ID: "2", Addr: "b"}}}
	before := Status{Leader: "a", Term: 5, Members: members}
	for _, c := range []struct {
		what  string
		after Status
		which string
		is    bool
	}{
		{"nothing has happened", Status{Leader: "a", Term: 5}, "", false},
		{"nobody leads", Status{Term: 6}, "", false},
		{"another leads", Status{Leader: "b", Term: 6}, "", true},
		{"it went to another and back", Status{Leader: "a", Term: 7}, "", true},
		{"the member leads", Status{Leader: "b", Term: 6}, "2", true},
		{"another member leads", Status{Leader: "a", Term: 7}, "b", false},
	} {
		c.after.Members = members
		if got := handedOver(before, c.after, c.which); got != c.is {
			t.Errorf("%s: %v, want %v", c.what, got, c.is)
		}
	}
}
