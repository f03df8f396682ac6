package raft

import (
	"fmt"
	"strings"
	"testing"
)

// A new node is refused where it would soon have no room. One that has data is started with what there is.
func TestTheRoomForANewNode(t *testing.T) {
	const need = newNode * segmentSize
	free := int64(need)
	c := newCluster(t, 1, func(_ int, o *Options) { o.free = func(string) (int64, bool) { return free, true } })
	n := c.nodes[0]
	n.Close()
	free = 0
	c.reopen(0)
	n.Close()
	o := n.options
	o.Dir, o.Network = t.TempDir(), &hubNetwork{listen(t, o.Self.Address), c.hub, o.Self.Address}
	free = need - 1
	s, err := Open(o)
	if err == nil {
		s.Close()
		t.Fatal("a new node begins with less room than it needs")
	}
	for _, text := range []string{fmt.Sprintf("a new node needs %d MiB", need>>20), fmt.Sprintf("has %d MiB free", need>>20-1), o.Dir} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q is not in it: %v", text, err)
		}
	}
}
