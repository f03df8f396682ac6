package raft

import (
	"fmt"
	"testing"

	"fencepost/internal/machine"
)

// A leader of a long term remembers so many gateways, and not those that it has heard of longest ago: what a gateway
// that goes on has given up is not carried out.
func TestSessionsAreBounded(t *testing.T) {
	s := newSessions()
	message := func(gateway string, number uint64) *message {
		return &message{Term: 1, Batch: machine.Batch{Gateway: gateway, Number: number}, Floor: 7}
	}
	if s.admit(message("stays", 6)) {
		t.Error("a batch that was given up is carried out")
	}
	for i := range mostSessions + 200 {
		s.meet(message(fmt.Sprint("start ", i), 1))
		if s.admit(message("stays", 6)) {
			t.Fatalf("after %d others a batch that was given up is carried out", i)
		}
	}
	if n := len(s.all); n != mostSessions {
		t.Errorf("%d are known", n)
	}
}
