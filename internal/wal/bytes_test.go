package wal

import (
	"sync"
	"testing"

	"github.com/hashicorp/raft"

	"fencepost/internal/wal/waltest"
)

// How large the files are may be asked while one is made.
func TestBytesWhileAFileIsMade(t *testing.T) {
	l := openTrace(t, waltest.New(nil))
	var asking sync.WaitGroup
	defer asking.Wait()
	done := make(chan struct{})
	defer close(done)
	asking.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if size := l.Bytes(); size%testFile != 0 || size == 0 {
				t.Errorf("the files have %d bytes", size)
				return
			}
		}
	})
	for i := range uint64(100) {
		if err := l.StoreLog(&raft.Log{Index: i + 1, Term: 1}); err != nil {
			t.Fatal(err)
		}
	}
}
