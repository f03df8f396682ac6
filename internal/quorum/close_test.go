package quorum

import (
	"errors"
	"testing"

	"fencepost/internal/fencing"
)

var errNotClosed = errors.New("not closed")

// broken is a node that can't be closed.
type broken struct{ fencing.Node }

func (broken) Close() error { return errNotClosed }

// TestCloseTwice: the second Close returns what the first did.
func TestCloseTwice(t *testing.T) {
	s, err := Open([]fencing.Node{broken{}, broken{}, broken{}}, Options{Passive: true})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Close(); !errors.Is(err, errNotClosed) {
			t.Error(err)
		}
	}
}
