package raft

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/hashicorp/raft"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
	"fencepost/internal/machine"
)

// gapListener hears of gaps.
type gapListener struct{ gaps chan struct{} }

func (l *gapListener) Granted(fencing.Grant, fencing.Instant, time.Time) {}
func (l *gapListener) Replaced(fencing.Name, fencing.Stamp)              {}
func (l *gapListener) Ask(fencing.Name, fencing.Stamp)                   {}
func (l *gapListener) Has([]fencing.Name, time.Time, []fencing.Entry)    {}
func (l *gapListener) Gap()                                              { l.gaps <- struct{}{} }
func (l *gapListener) Event(fencing.Event)                               {}

// compacted has a node forget its log but for the last entries.
func compacted(t *testing.T, n *node) {
	t.Helper()
	c := n.raft.ReloadableConfig()
	c.TrailingLogs = 1
	if err := n.raft.ReloadConfig(c); err != nil {
		t.Fatal(err)
	}
	if err := n.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
}

// A follower that was away for so long that the log has gone on without it takes over the
// state, and says that it has missed something.
func TestAFollowerThatIsFarBehind(t *testing.T) {
	c := newCluster(t, 3, func(_ int, o *Options) { o.segment = 4 << 10 })
	leader, behind := c.nodes[0], c.nodes[2]
	missed := &gapListener{make(chan struct{}, 8)}
	behind.Listen(missed)
	defer behind.Watch(missed)()
	c.hub.setCut(behind.self.Address, true)
	for i := range 20 {
		if _, err := leader.Do(t.Context(), acquire(fencing.Name(fmt.Sprintf("n%d", i)), time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	compacted(t, leader)
	waits := acquire("n1", time.Minute)
	waits.Wait = time.Minute
	if _, err := leader.Do(t.Context(), waits); err != nil {
		t.Fatal(err)
	}
	c.hub.setCut(behind.self.Address, false)
	leader.fsm.mu.RLock()
	applied := leader.fsm.machine.Applied()
	leader.fsm.mu.RUnlock()
	behind.fsm.await(applied, t.Context().Done())
	for range 2 { // the listener and the sink hear of one each
		select {
		case <-missed.gaps:
		case <-time.After(time.Minute):
			t.Fatal("no gap was told")
		}
	}
	if !bytes.Equal(encoded(t, leader.fsm), encoded(t, behind.fsm)) {
		t.Error("it has another state")
	}
}

// A node starts from its snapshot and what follows in the log.
func TestARestartFromASnapshot(t *testing.T) {
	c := newCluster(t, 1, func(_ int, o *Options) { o.segment = 4 << 10 })
	n := c.nodes[0]
	for i := range 20 {
		if i == 10 {
			compacted(t, n)
		}
		if _, err := n.Do(t.Context(), acquire(fencing.Name(fmt.Sprintf("n%d", i)), time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	n.Close()
	c.reopen(0)
	c.awaitLeader()
	if stats, err := n.Stats(t.Context()); err != nil || stats.Held != 20 {
		t.Errorf("after a restart %d names are held, %v; it were 20", stats.Held, err)
	}
}

// BenchmarkSnapshot writes a snapshot while entries follow. begin is how long the machine
// stands still for it to begin, the others how long one entry of a thousand takes while it
// is written, and when none is.
func BenchmarkSnapshot(b *testing.B) {
	const names = 100_000
	m := testFSM(b)
	index := uint64(0)
	apply := func(name int) {
		index++
		r := acquire(fencing.Name(fmt.Sprintf("orders/%d", name)), time.Hour)
		e := machine.Entry{Term: 1, Now: int64(fencingtest.Epoch) + int64(index), Batches: []machine.Batch{{Gateway: "g", Ops: []cbor.RawMessage{machine.EncodeOp(r)}}}}
		m.Apply(&raft.Log{Index: index, Term: 1, Data: must(e.Encode())})
	}
	for i := range names {
		apply(i)
	}
	var begin time.Duration
	var with, without []time.Duration
	applyTimed := func(times *[]time.Duration) {
		began := time.Now()
		apply(names + int(index)%names)
		*times = append(*times, time.Since(began))
	}
	b.ResetTimer()
	for range b.N {
		began := time.Now()
		s, err := m.Snapshot()
		begin = max(begin, time.Since(began))
		if err != nil {
			b.Fatal(err)
		}
		written := make(chan error, 1)
		go func() { written <- s.(snapshot).Write(io.Discard, &m.mu) }()
		for busy := true; busy; {
			select {
			case err := <-written:
				if err != nil {
					b.Fatal(err)
				}
				busy = false
			default:
				applyTimed(&with)
			}
		}
		s.Release()
		for len(without) < len(with) {
			applyTimed(&without)
		}
	}
	b.ReportMetric(float64(begin.Nanoseconds())/1e3, "begin-µs")
	for what, times := range map[string][]time.Duration{"with-µs": with, "without-µs": without} {
		slices.Sort(times)
		b.ReportMetric(float64(times[len(times)*999/1000].Nanoseconds())/1e3, what)
	}
}
