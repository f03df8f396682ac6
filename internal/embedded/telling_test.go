package embedded

import (
	"log/slog"
	"strings"
	"testing"
)

// A start that takes long says how far it is.
func TestALongStartIsTold(t *testing.T) {
	var log strings.Builder
	visited := 0
	visit := telling(slog.New(slog.NewTextHandler(&log, nil)), 0, func(entry) error {
		visited++
		return nil
	})
	for i := range 10_000 {
		e := entry{bucket: locks}
		if i >= 5000 {
			e.bucket = holders
		}
		if err := visit(e); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{"entries=4096 names=4096", "entries=8192 names=5000"} {
		if !strings.Contains(log.String(), text) {
			t.Errorf("no %q in %s", text, log.String())
		}
	}
	if visited != 10_000 {
		t.Errorf("%d were visited", visited)
	}
}
