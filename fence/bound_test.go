package fence

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// What is refused for its token, its slot or its context leaves nothing in memory.
func TestMemoryOfTheRefused(t *testing.T) {
	var g Memory
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	write := func() error { t.Error("written"); return nil }
	for i := range 100 {
		name := fmt.Sprint(i)
		if err := g.Do(t.Context(), name, 0, NoSlot, write); !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
		if err := g.Do(t.Context(), name, 1, MaxSlot+1, write); !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
		if err := g.Do(ended, name, 1, NoSlot, write); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if n := len(g.marks); n != 0 {
		t.Errorf("%d resources are kept, and none was written", n)
	}
}
