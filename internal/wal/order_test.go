package wal

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"fencepost/internal/wal/waltest"
)

// Frames that are whole, and not where they were written, are found, whichever two of a file change places: none is
// passed over. So it is in the first file that is left of a log, before whose first frame nothing is known.
func TestFramesInAnotherOrder(t *testing.T) {
	files := waltest.New(nil)
	l := openTrace(t, files)
	if err := l.Set([]byte("vote"), []byte("a")); err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); i < 40; i++ {
		if err := errors.Join(l.StoreLog(&raft.Log{Index: i, Term: 1}), l.next()); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.DeleteRange(1, 28); err != nil {
		t.Fatal(err)
	}
	right, err := described(l)
	if err != nil {
		t.Fatal(err)
	}
	tried, first := 0, l.path(l.segments[0].name)
	for path, whole := range files.Content() {
		for one := block; one < len(whole); one += block {
			for other := one + block; other < len(whole); other += block {
				a, b := whole[one:one+block], whole[other:other+block]
				if path == l.path(l.current.name) || bytes.Equal(a, make([]byte, block)) || bytes.Equal(b, make([]byte, block)) {
					continue
				}
				tried++
				content := files.Content()
				copy(content[path][one:], b)
				copy(content[path][other:], a)
				l, is, err := opened(filepath.Dir(path), waltest.New(content))
				if l != nil {
					l.Close()
				}
				if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), filepath.Base(path)) {
					t.Errorf("%s (first: %v), bytes %d and %d: %v, and it comes to\n%.200s\nnot\n%.200s", filepath.Base(path), path == first, one, other, err, is, right)
				}
			}
		}
	}
	if tried < 20 || filepath.Base(first) == nameOf(1) {
		t.Errorf("%d were tried, and %s is the first file: the test misses its aim", tried, first)
	}
}
