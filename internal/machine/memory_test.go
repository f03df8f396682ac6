package machine

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"

	"fencepost/internal/fencing"
)

// There may be a million locks, and ended leases: what each takes is bounded, whether it came by the log or by a snapshot.
func TestMemoryOfLocks(t *testing.T) {
	const n = 20_000
	ask := func(i int) fencing.AcquireRequest {
		return fencing.AcquireRequest{
			Name: fencing.Name(fmt.Sprintf("orders/%06d", i)), Lease: fencing.NewLeaseID(time.Unix(int64(i), 0)), Stamp: fencing.NewStamp(), Mode: fencing.ModeExclusive, Hold: 1,
			TTL: time.Hour, Owner: fmt.Sprintf("worker-%06d", i), Metadata: map[string]string{"note": strings.Repeat("m", 90) + fmt.Sprintf("%06d", i)},
		}
	}
	bare := func(r fencing.AcquireRequest) fencing.AcquireRequest {
		r.Owner, r.Metadata = "", nil
		return r
	}
	for _, c := range []struct {
		what string
		most int64 // bytes for each name
		of   func(i int) []fencing.Op
	}{
		{"a lock with an owner and 100 bytes of metadata", 800, func(i int) []fencing.Op { return []fencing.Op{ask(i)} }},
		{"a lock", 640, func(i int) []fencing.Op { return []fencing.Op{bare(ask(i))} }},
		{"a lock and a waiter", 2100, func(i int) []fencing.Op {
			waiter := bare(ask(i))
			waiter.Wait = time.Minute
			return []fencing.Op{bare(ask(i)), waiter}
		}},
		{"a name that was released, its tombstone and its history", 1250, func(i int) []fencing.Op {
			r := bare(ask(i))
			return []fencing.Op{r, fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease}}
		}},
		{"a name that was released five times", 5250, func(i int) (ops []fencing.Op) {
			for range 5 {
				r := bare(ask(i))
				ops = append(ops, r, fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease})
			}
			return ops
		}},
		{"a permit", 950, func(i int) []fencing.Op {
			r := bare(ask(i))
			r.Mode, r.Limit = fencing.ModeShared, 10
			return []fencing.Op{r}
		}},
	} {
		var m *Machine
		byLog := memoryOf(func() {
			m = New()
			for i := range n {
				var ops []cbor.RawMessage
				for _, op := range c.of(i) {
					ops = append(ops, EncodeOp(op))
				}
				e := Entry{Now: int64(1 + i), Batches: []Batch{{Gateway: "0123456789abcdef", Ops: ops}}}
				d, err := Decode(must(e.Encode()))
				if err == nil {
					_, err = m.Apply(uint64(1+i), d, &Telling{Quiet: true}, false)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		})
		var written bytes.Buffer
		if err := must(m.Snapshot()).Write(&written, &sync.Mutex{}); err != nil {
			t.Fatal(err)
		}
		m = nil
		bySnapshot := memoryOf(func() {
			m = New()
			if err := m.Restore(must(Read(bytes.NewReader(written.Bytes())))); err != nil {
				t.Fatal(err)
			}
			m.Ready()
		})
		if len(m.State().Records) != n {
			t.Fatalf("%s: %d names", c.what, len(m.State().Records))
		}
		runtime.KeepAlive(&written)
		t.Logf("%s: %d bytes by the log, %d by a snapshot of %d", c.what, byLog/n, bySnapshot/n, written.Len()/n)
		if byLog > n*c.most || bySnapshot > n*c.most {
			t.Errorf("%s takes %d bytes by the log and %d by a snapshot, more than %d", c.what, byLog/n, bySnapshot/n, c.most)
		}
	}
}

// memoryOf returns by how much more is in use after something was made.
func memoryOf(made func()) int64 {
	before := inUse()
	made()
	return inUse() - before
}

func inUse() int64 {
	runtime.GC()
	runtime.GC() // what is in pools goes with the second one
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
