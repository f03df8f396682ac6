package machine

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
	"fencepost/internal/seed"
)

// testMachine returns a machine that forgets histories soon.
func testMachine(t testing.TB) *Machine {
	m := New()
	m.mostPast = 8
	m.Ready()
	return m
}

// logged is an entry of a log.
type logged struct {
	index uint64
	data  []byte
}

// apply has a machine carry out an entry.
func (l logged) apply(t testing.TB, m *Machine) {
	t.Helper()
	e, err := Decode(l.data)
	if err == nil {
		_, err = m.Apply(l.index, e, &Telling{}, false)
	}
	if err != nil {
		t.Fatal(err)
	}
	m.Ready()
}

// anew returns the machine that goes on from a snapshot.
func anew(t testing.TB, snapshot io.Reader) *Machine {
	t.Helper()
	m := testMachine(t)
	r, err := Read(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Restore(r); err != nil {
		t.Fatal(err)
	}
	m.Ready()
	return m
}

// encoded returns all that a machine remembers.
func encoded(t testing.TB, m *Machine) []byte {
	t.Helper()
	s, err := m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	var b bytes.Buffer
	if err := s.Write(&b, &sync.Mutex{}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// logOf returns a random log.
func logOf(seed uint64, entries int) []logged {
	random := rand.New(rand.NewPCG(seed, 0))
	oneOf := func(n int) bool { return random.IntN(n) == 0 }
	var leases []fencing.LeaseID
	for i := range 12 {
		var hash fencing.SecretHash
		hash[0] = byte(i)
		leases = append(leases, fencing.HashedLeaseID(fencing.LeasePublic(fmt.Sprintf("%026d", i)), hash))
	}
	now, last := fencingtest.Epoch, fencing.Token(0)
	var log []logged
	for index := range entries {
		now = now.Add([]time.Duration{0, time.Microsecond, time.Duration(random.IntN(4000)) * time.Millisecond, 6 * time.Second, fencing.TombstoneTTL, fencing.ForgetAfter + time.Hour}[min(random.IntN(12), random.IntN(7), 5)])
		e := Entry{Term: 1, Now: int64(now), Wall: int64(now.Add(time.Duration(index/20) * time.Hour))}
		for range 1 + random.IntN(3) {
			b := Batch{Gateway: fmt.Sprintf("%016d", random.IntN(4))}
			for range 1 + random.IntN(4) {
				name, lease := fencing.Name(fmt.Sprintf("n%d", random.IntN(10))), leases[random.IntN(len(leases))]
				if oneOf(8) { // a lease id that is new
					lease = fencing.HashedLeaseID(fencing.LeasePublic(fmt.Sprintf("%026d", 100+random.IntN(1<<30))), fencing.SecretHash{})
				}
				stamp := fencing.Stamp(fmt.Sprintf("%016d", random.IntN(3)))
				token := fencing.Token(now) - fencing.Token(random.IntN(2))
				if oneOf(2) {
					token = last
				}
				switch random.IntN(20) {
				default:
					a := fencing.AcquireRequest{
						Name: name, Lease: lease, Stamp: stamp, Owner: "o", Mode: fencing.ModeExclusive, Hold: 1, TTL: 10 * time.Second,
						Keep: oneOf(2), Attach: oneOf(4), Metadata: map[string]string{"a": "1", "b": "2", "c": "3"},
					}
					if oneOf(2) {
						a.Mode, a.Limit = fencing.ModeShared, random.IntN(4)
					}
					if !oneOf(3) {
						a.Wait = time.Minute
					}
					if oneOf(4) {
						a.Set, a.Epoch = "s", int64(random.IntN(3))
					}
					if oneOf(4) {
						a.LockDelay, a.MaxHold = 20*time.Second, time.Minute
					}
					if oneOf(4) && a.Limit > 0 {
						a.Permits = 1 + random.IntN(a.Limit)
					}
					if oneOf(8) {
						a.Intent = time.Second
					}
					b.Ops, last = append(b.Ops, EncodeOp(a)), fencing.Token(now)
				case 1:
					r := fencing.RenewRequest{Name: name, Lease: lease, TTL: time.Minute, Owner: []string{"", "p"}[random.IntN(2)]}
					if oneOf(2) {
						r.Stamp, r.Epoch = stamp, int64(random.IntN(3))
					}
					b.Ops = append(b.Ops, EncodeOp(r))
				case 2:
					b.Ops = append(b.Ops, EncodeOp(fencing.ReleaseRequest{Name: name, Lease: lease}))
				case 3:
					b.Ops = append(b.Ops, EncodeOp(fencing.ConfirmRequest{Name: name, Lease: lease, Stamp: stamp}))
				case 4:
					b.Ops = append(b.Ops, EncodeOp(fencing.LeaveRequest{Name: name, Lease: lease, Stamp: stamp}))
				case 5:
					b.Ops = append(b.Ops, EncodeOp(fencing.TakeBackRequest{Name: name, Lease: lease, Stamp: stamp, Left: oneOf(2), Linger: time.Duration(random.IntN(2)) * time.Second, Epoch: int64(random.IntN(3))}))
				case 6:
					b.Ops = append(b.Ops, EncodeOp(fencing.BreakRequest{Name: name, Token: token, BreakReason: "r", Notice: time.Duration(random.IntN(2)) * time.Minute}))
				case 7:
					b.Ops = append(b.Ops, EncodeOp(fencing.AdmitRequest{Name: name, Token: token, Slot: random.IntN(6) - 1}))
				case 8:
					b.Ops = append(b.Ops, EncodeOp(fencing.ExpireRequest{Name: name}))
				case 10:
					b.Ops = append(b.Ops, EncodeOp(fencing.EvictRequest{Name: name, Waiter: lease.Public(), BreakReason: "r"}))
				case 11:
					b.Ops = append(b.Ops, EncodeOp(fencing.ReleaseRequest{Name: name, Lease: lease, Stamp: stamp, Linger: 5 * time.Second, Epoch: int64(random.IntN(3))}))
				case 12:
					b.Ops = append(b.Ops, EncodeOp(fencing.RenewRequest{Name: name, Lease: lease, TTL: time.Minute, Mode: fencing.ModeShared, Limit: random.IntN(3)}))
				case 13:
					b.Ops = append(b.Ops, EncodeOp(fencing.ClaimRequest{Name: name, Lease: lease, Token: token + 1}))
				case 9:
					b.Ops = append(b.Ops, plain([]kind{kindBeat, kindTick, kindPrune}[random.IntN(3)]))
				}
			}
			e.Batches = append(e.Batches, b)
		}
		log = append(log, logged{uint64(index + 1), must(e.Encode())})
	}
	return log
}

// Every node comes to the same state, to the byte: also one that began with a snapshot
// which was written while another went on.
func TestEveryNodeHasTheSameState(t *testing.T) { testSameState(t, 4) }

func TestSystemEveryNodeHasTheSameState(t *testing.T) { testSameState(t, 20) }

func testSameState(t *testing.T, seeds uint64) {
	const entries = 600
	records, tombstones, histories := 0, 0, 0
	defer func() {
		if records == 0 || tombstones == 0 || histories == 0 {
			t.Errorf("%d records, %d tombstones and %d ended leases were left to compare", records, tombstones, histories)
		}
	}()
	first := seed.Of(t)
	for seed := first; seed < first+seeds; seed++ {
		log := logOf(seed, entries)
		first, second := testMachine(t), testMachine(t)
		at := rand.New(rand.NewPCG(seed, 1)).IntN(entries)
		for _, l := range log[:at] {
			l.apply(t, first)
		}
		s, err := first.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		before, then := testMachine(t), at
		for _, l := range log[:at] {
			l.apply(t, before)
		}
		var written bytes.Buffer
		if err := s.Write(&written, &sync.Mutex{}); err != nil {
			t.Fatal(err)
		}
		s.Release()
		if !bytes.Equal(written.Bytes(), encoded(t, before)) {
			t.Fatalf("seed %d: a snapshot of entry %d is not its state", seed, at)
		}
		third := anew(t, &written)
		for _, l := range log[then:] {
			l.apply(t, first)
			l.apply(t, third)
		}
		for _, l := range log {
			l.apply(t, second)
		}
		want := encoded(t, first)
		for i, m := range []*Machine{second, third} {
			if got := encoded(t, m); !bytes.Equal(got, want) {
				t.Fatalf("seed %d, a snapshot after %d entries: node %d has another state", seed, at, i+2)
			}
		}
		records, tombstones, histories = records+len(first.state.Records), tombstones+len(first.state.Tombstones), histories+first.past.total
	}
}

// What changes while a snapshot is written is in it as it was.
func TestASnapshotIsOfOneInstant(t *testing.T) { testOneInstant(t, 4) }

func TestSystemASnapshotIsOfOneInstant(t *testing.T) { testOneInstant(t, 20) }

func testOneInstant(t *testing.T, seeds uint64) {
	first := seed.Of(t)
	for seed := first; seed < first+seeds; seed++ {
		log := logOf(seed, 800)
		const at = 400
		m, before := testMachine(t), testMachine(t)
		for _, l := range log[:at] {
			l.apply(t, m)
			l.apply(t, before)
		}
		s, err := m.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		rest := log[at:]
		goOn := func() {
			for range min(len(rest), 30) {
				rest[0].apply(t, m)
				rest = rest[1:]
			}
		}
		goOn()
		var b bytes.Buffer
		if err := s.writeChunks(&b, &sync.Mutex{}, 2, goOn); err != nil {
			t.Fatal(err)
		}
		s.Release()
		got, want := anew(t, &b), encoded(t, before)
		if !bytes.Equal(encoded(t, got), want) {
			t.Fatalf("seed %d: a snapshot that was written while entries followed is another state", seed)
		}
	}
}

// All of a state is in its encoding.
func TestEveryFieldOfAStateIsKept(t *testing.T) {
	waiting, resting := filled[fencing.Place](), filled[fencing.Place]()
	waiting.RestTill = 0
	for _, p := range []*fencing.Place{&waiting, &resting} {
		p.Ask.Lease = fencing.HashedLeaseID(p.Ask.Lease.Public(), fencing.SecretHash{})
		p.Ask.Claimed = false // nobody waits at a node of a quorum
	}
	resting.Ask.Lease = fencing.HashedLeaseID("another", fencing.SecretHash{})
	r := filled[fencing.Record]()
	h := filled[fencing.Holding]()
	h.SetAt, h.SentAt, r.DelaySetAt, r.DelaySentAt, resting.SetAt, resting.SentAt = 0, 0, 0, 0, 0, 0 // there is one clock
	waiting.SetAt, waiting.SentAt, r.DelayedOther = 0, 0, 0
	r.Holders.Put(h)
	r.Queue = fencing.RestoredQueue([]fencing.Place{waiting}, []fencing.Place{resting}, 1<<40)
	r.History[0].Name, r.History[0].Holder.Metadata = "a", ""
	var encoded, read stateRecord
	encoded.set("a", &r)
	if err := Strict.Unmarshal(must(Encoding.Marshal(encoded)), &read); err != nil {
		t.Fatal(err)
	}
	got, err := read.record()
	if err != nil {
		t.Fatal(err)
	}
	if found, _ := got.Holders.Find(h.Lease); !reflect.DeepEqual(found, h) {
		t.Errorf("a lease comes back as %+v; it was %+v", found, h)
	}
	if w := got.Queue.Waiting(); len(w) != 1 || !reflect.DeepEqual(w[0], waiting) {
		t.Errorf("a place comes back as %+v; it was %+v", w, waiting)
	}
	if p := got.Queue.Resting(); len(p) != 1 || !reflect.DeepEqual(p[0], resting) || got.Queue.LastSeq() != 1<<40 {
		t.Errorf("a place that rests comes back as %+v, behind %d; it was %+v", p, got.Queue.LastSeq(), resting)
	}
	got.Holders, r.Holders, got.Queue, r.Queue = fencing.Holders{}, fencing.Holders{}, fencing.Queue{}, fencing.Queue{}
	if !reflect.DeepEqual(got, &r) {
		t.Errorf("a record comes back as %+v; it was %+v", got, &r)
	}
	key, tomb := fencing.EndedLease{Name: "a", Lease: "l"}, filled[fencing.Tombstone]()
	t1 := tombstoneOf(key, tomb)
	if k, found := t1.tombstone(); k != key || found != tomb {
		t.Errorf("a tombstone comes back as %+v; it was %+v", found, tomb)
	}
	state := filled[fencing.State]()
	head := headOf(&state, 7, 8)
	s := head.state()
	state.Records, state.Tombstones = s.Records, s.Tombstones
	if !reflect.DeepEqual(s, &state) || head.now() != 7 || head.Applied != 8 {
		t.Errorf("the rest comes back as %+v; it was %+v", s, &state)
	}
}

// A snapshot that was changed or cut off is refused.
func TestADamagedSnapshotIsRefused(t *testing.T) {
	m := testMachine(t)
	for _, l := range logOf(1, 200) {
		l.apply(t, m)
	}
	whole, random := encoded(t, m), rand.New(rand.NewPCG(seed.Of(t), 0))
	for range 300 {
		b := bytes.Clone(whole)
		b[random.IntN(len(b))] ^= 1 << random.IntN(8)
		if _, err := Read(bytes.NewReader(b)); err == nil {
			t.Fatal("a snapshot with a flipped bit is read")
		}
		if _, err := Read(bytes.NewReader(whole[:random.IntN(len(whole))])); err == nil {
			t.Fatal("a snapshot that is cut off is read")
		}
	}
}

// A lease id may be used again once its tombstone is due, also in the step that ended it.
func TestTheIndexHasEachTombstoneOnce(t *testing.T) { testTombstoneOnce(t, 4) }

func TestSystemTheIndexHasEachTombstoneOnce(t *testing.T) { testTombstoneOnce(t, 20) }

func testTombstoneOnce(t *testing.T, seeds uint64) {
	first := seed.Of(t)
	for seed := first; seed < first+seeds; seed++ {
		m := testMachine(t)
		for _, l := range logOf(seed, 400) {
			l.apply(t, m)
			if m.index.tombstones.Len() != len(m.state.Tombstones) {
				t.Fatalf("seed %d, entry %d: %d tombstones are to go, and there are %d", seed, l.index, m.index.tombstones.Len(), len(m.state.Tombstones))
			}
		}
	}
}
