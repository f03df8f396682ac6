package datadir

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// Each name that is made is on disk; what was there already is left alone.
func TestMake(t *testing.T) {
	there := t.TempDir()
	a := filepath.Join(there, "a")
	b := filepath.Join(a, "b")
	var synced []string
	note := func(dir string) error {
		synced = append(synced, dir)
		return Sync(dir)
	}
	for _, want := range [][]string{{a, there}, nil} {
		synced = nil
		if err := Make(b, note); err != nil || !slices.Equal(synced, want) {
			t.Errorf("synced %v, %v; want %v", synced, err, want)
		}
	}
	if info, err := os.Stat(b); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
}
