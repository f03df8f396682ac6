//go:build planted

// It builds the program a dozen times and plays as many histories: go test -tags planted
// ./verify/planted, or go run ./verify -only planted.

package planted

import (
	"testing"
	"time"
)

// Every bug is caught, and without it nothing is found.
func TestBugsAreCaught(t *testing.T) {
	for _, bug := range Bugs() {
		t.Run(bug.Name, func(t *testing.T) {
			t.Parallel()
			started := time.Now()
			by, err := bug.Caught(t.Context(), t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("caught by %s, after %s", by, time.Since(started).Round(time.Second))
			if err := bug.Clean(t.Context(), t.TempDir()); err != nil {
				t.Error(err)
			}
		})
	}
}
