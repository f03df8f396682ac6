package redis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// A heartbeat tells of all that there is for its gateway, however many calls that takes,
// and of nothing else.
func TestHeartbeatTellsOfAll(t *testing.T) {
	server := redistest.Start(t)
	near, far := open(t, Options{URL: server.SocketURL()}), open(t, Options{URL: server.SocketURL()})
	heard := listen(t, near)
	var want []fencing.Entry
	names := []fencing.Name{"a", "a/b", "b"}
	for _, name := range names {
		mustAcquire(t, near, acquireRequest(name))
		mustWait(t, far, waitRequest(name))
	}
	for i := range 2*heartbeatPage + 7 {
		r := waitRequest(names[i%len(names)])
		mustWait(t, near, r)
		want = append(want, fencing.Entry{Name: r.Name, Lease: r.Lease.Public(), Stamp: r.Stamp})
	}
	set := acquireRequest("c")
	set.Set = "c\td"
	mustAcquire(t, near, set)
	want = append(want, fencing.Entry{Name: "c", Lease: set.Lease.Public(), Stamp: set.Stamp, Provisional: true})
	wantCode(t, "heartbeat", near.Heartbeat(t.Context(), append(names, "c")), fencing.CodeOK)
	got, want := slices.Clone(heard.entries()), slices.Clone(want)
	for _, all := range [][]fencing.Entry{got, want} {
		slices.SortFunc(all, func(a, b fencing.Entry) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Lease, b.Lease))
		})
	}
	if !slices.Equal(got, want) {
		t.Errorf("told of %d entries, want %d", len(got), len(want))
	}
}

// joinMany has so many requests wait for a name.
func joinMany(t testing.TB, s *Store, name fencing.Name, many int) {
	t.Helper()
	var joining sync.WaitGroup
	for range 16 {
		joining.Go(func() {
			for range many / 16 {
				if out, err := s.Do(t.Context(), waitRequest(name)); err != nil || !out.Waits() {
					t.Errorf("%+v, %v", out, err)
					return
				}
			}
		})
	}
	joining.Wait()
}

// pages is a listener that notes what Has was called with.
type pages struct {
	recorder
	sizes  []int
	names  [][]fencing.Name
	sinces []time.Time
	all    []fencing.Entry
}

func (p *pages) Has(names []fencing.Name, since time.Time, entries []fencing.Entry) {
	p.sizes, p.names, p.sinces = append(p.sizes, len(entries)), append(p.names, names), append(p.sinces, since)
	p.all = append(p.all, entries...)
}

// A heartbeat that has no time for all of it leaves the rest to the next ones, which say
// since when all was told: then the names are complete, and not before.
func TestHeartbeatsGoOn(t *testing.T) {
	s := open(t, Options{URL: redistest.Start(t).SocketURL()})
	s.heartbeatBudget = 0
	heard := &pages{}
	s.Listen(heard)
	mustAcquire(t, s, acquireRequest("a"))
	const many = 2*heartbeatPage + 16
	joinMany(t, s, "a", many)
	before := time.Now()
	for range 4 {
		wantCode(t, "heartbeat", s.Heartbeat(t.Context(), []fencing.Name{"a"}), fencing.CodeOK)
	}
	if want := []int{heartbeatPage, heartbeatPage, many - 2*heartbeatPage, heartbeatPage}; !slices.Equal(heard.sizes, want) {
		t.Fatalf("heartbeats told of %d, want %d", heard.sizes, want)
	}
	for i, names := range heard.names {
		if complete := names != nil; complete != (i == 2) {
			t.Errorf("heartbeat %d told of all: %t", i, complete)
		}
	}
	if heard.sinces[0].Before(before) || heard.sinces[2] != heard.sinces[0] || !heard.sinces[3].After(heard.sinces[2]) {
		t.Errorf("all was told since %v, the first asked at %s", heard.sinces, before)
	}
}

// A master far away hears each heartbeat in time, however many wait.
func TestHeartbeatOfManyFarAway(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.SocketURL()})
	mustAcquire(t, s, acquireRequest("a"))
	joinMany(t, s, "a", 3*heartbeatPage)
	s.heartbeatBudget = 0
	calls := func() (n int) {
		_, after, _ := strings.Cut(s.redis().Info(t.Context(), "commandstats").Val(), "cmdstat_fcall:")
		if _, err := fmt.Sscanf(after, "calls=%d", &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := calls()
	wantCode(t, "heartbeat", s.Heartbeat(t.Context(), []fencing.Name{"a"}), fencing.CodeOK)
	if n := calls() - before; n != 1 {
		t.Errorf("a heartbeat without time for more took %d calls, want the sign of life alone", n)
	}
}

// What is older than the record of its name is of one that was evicted or deleted: heartbeats
// do not tell of it, and it is gone. What is there since is told of.
func TestHeartbeatForgetsWhatHasNoRecord(t *testing.T) {
	for _, anew := range []bool{false, true} {
		t.Run(fmt.Sprintf("anew %t", anew), func(t *testing.T) {
			s := open(t, Options{URL: redistest.Start(t).SocketURL()})
			heard := listen(t, s)
			mustAcquire(t, s, acquireRequest("a"))
			mustAcquire(t, s, acquireRequest("b"))
			joinMany(t, s, "a", heartbeatPage+16)
			mustWait(t, s, waitRequest("b"))
			s.redis().Del(t.Context(), s.keys[0].lock("a"))
			want := 1
			if anew {
				mustAcquire(t, s, acquireRequest("a"))
				mustWait(t, s, waitRequest("a"))
				want = 2
			}
			wantCode(t, "heartbeat", s.Heartbeat(t.Context(), []fencing.Name{"a", "b"}), fencing.CodeOK)
			if n := len(heard.entries()); n != want {
				t.Errorf("told of %d entries, want %d", n, want)
			}
			key := s.keys[0].prefix + "gateway:" + s.handle
			if n := s.redis().ZCard(t.Context(), key).Val(); n != int64(want) {
				t.Errorf("%s has %d entries, want %d", key, n, want)
			}
		})
	}
}

// BenchmarkHeartbeatOfMany measures the heartbeat of a gateway with many waiters: how long
// it takes, and for how long a call keeps Redis from others.
func BenchmarkHeartbeatOfMany(b *testing.B) {
	for _, n := range []int{1, 1_000, 20_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			server := redistest.Start(b)
			s := open(b, Options{URL: server.SocketURL(), ReadTimeout: time.Minute, OperationTimeout: time.Minute})
			heard := listen(b, s)
			client := server.Client()
			defer client.Close()
			mustAcquire(b, s, acquireRequest("a"))
			var joining sync.WaitGroup
			for range min(n, 50) {
				joining.Go(func() { readers(b, s, "a", max(n/50, 1)) })
			}
			joining.Wait()
			if err := client.ConfigResetStat(b.Context()).Err(); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := s.Heartbeat(b.Context(), []fencing.Name{"a"}); err != nil {
					b.Fatal(err)
				}
			}
			if len(heard.entries()) != n {
				b.Errorf("told of %d entries", len(heard.entries()))
			}
			stats := client.Info(b.Context(), "commandstats").Val()
			_, after, _ := strings.Cut(stats, "cmdstat_fcall:")
			var calls int
			var usec, each float64
			if _, err := fmt.Sscanf(after, "calls=%d,usec=%f,usec_per_call=%f", &calls, &usec, &each); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(each, "redis-us/call")
		})
	}
}

// leaseHeard notes at which heartbeat a provisional lease was told of.
type leaseHeard struct {
	recorder
	beat, told int
}

func (p *leaseHeard) Has(_ []fencing.Name, _ time.Time, entries []fencing.Entry) {
	for _, e := range entries {
		if e.Provisional && p.told == 0 {
			p.told = p.beat
		}
	}
}

// A lease whose message was lost is told of by the next heartbeat, however many wait and however
// far away Redis is (P5: 2 s). A patience of 0 is a round trip longer than the patience.
func TestALeaseIsToldByTheNextHeartbeat(t *testing.T) {
	server := redistest.Start(t)
	s, other := open(t, Options{URL: server.SocketURL()}), open(t, Options{URL: server.SocketURL()})
	s.heartbeatBudget = 0
	heard := &leaseHeard{}
	s.Listen(heard)
	holder := acquireRequest("b")
	mustAcquire(t, other, holder)
	mustWait(t, s, waitRequest("b"))
	mustAcquire(t, s, acquireRequest("a"))
	joinMany(t, s, "a", 8*heartbeatPage) // 4,096 of the 20,000 that may wait for a name
	names := []fencing.Name{"a", "b"}
	wantCode(t, "heartbeat", s.Heartbeat(t.Context(), names), fencing.CodeOK)
	if _, err := other.Do(t.Context(), fencing.ReleaseRequest{Name: "b", Lease: holder.Lease}); err != nil {
		t.Fatal(err)
	}
	for heard.told == 0 && heard.beat < 50 {
		heard.beat++
		wantCode(t, "heartbeat", s.Heartbeat(t.Context(), names), fencing.CodeOK)
	}
	if heard.told > 1 {
		t.Errorf("told of by heartbeat %d after the hand-off, want the next", heard.told)
	}
}

// A cursor of long ago is begun anew: it would tell of no lease, and of
// nobody as missing.
func TestAnOldCursorBeginsAnew(t *testing.T) {
	s := open(t, Options{URL: redistest.Start(t).SocketURL()})
	s.cursors.Store(0, &cursor{after: "P~", since: time.Now(), paused: time.Now().Add(-staleCursor)})
	if told := s.takeCursor(0); told.after != "" {
		t.Errorf("it goes on behind %q", told.after)
	}
	s.cursors.Store(0, &cursor{after: "P~", paused: time.Now()})
	if told := s.takeCursor(0); told.after != "P~" {
		t.Errorf("it begins at %q", told.after)
	}
}

// attachRequest asks for a lease for a stream.
func attachRequest(name fencing.Name) fencing.AcquireRequest {
	r := acquireRequest(name)
	r.Stamp, r.Attach = fencing.NewStamp(), true
	return r
}

// wantEntries has a heartbeat about names tell of so much, in whatever order.
func wantEntries(t *testing.T, s *Store, heard *recorder, names []fencing.Name, want ...fencing.Entry) {
	t.Helper()
	wantCode(t, "heartbeat", s.Heartbeat(t.Context(), names), fencing.CodeOK)
	got, want := slices.Clone(heard.entries()), slices.Clone(want)
	for _, all := range [][]fencing.Entry{got, want} {
		slices.SortFunc(all, func(a, b fencing.Entry) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Lease, b.Lease))
		})
	}
	if !slices.Equal(got, want) {
		t.Errorf("told of %+v, want %+v", got, want)
	}
}

func streamEntryOf(r fencing.AcquireRequest) fencing.Entry {
	return fencing.Entry{Name: r.Name, Lease: r.Lease.Public(), Stamp: r.Stamp, Attached: true}
}

// Streams are told of last: however many there are, no place and no lease that is not confirmed
// waits for them, and all of them are told of in the end.
func TestStreamsAreToldLast(t *testing.T) {
	server := redistest.Start(t)
	s, other := open(t, Options{URL: server.SocketURL()}), open(t, Options{URL: server.SocketURL()})
	s.heartbeatBudget = 0
	heard := &pages{}
	s.Listen(heard)
	var names []fencing.Name
	var streams []fencing.Entry
	for i := range 2*heartbeatPage + 10 {
		r := attachRequest(fencing.Name(fmt.Sprintf("s/%d", i)))
		names, streams = append(names, r.Name), append(streams, streamEntryOf(r))
		mustAcquire(t, s, r)
	}
	holder, granted, waits := acquireRequest("z"), waitRequest("z"), waitRequest("z")
	mustAcquire(t, other, holder)
	mustWait(t, s, granted)
	mustWait(t, s, waits)
	mustRelease(t, other, holder)
	names = append(names, "z")
	first := []fencing.Entry{
		{Name: "z", Lease: granted.Lease.Public(), Stamp: granted.Stamp, Provisional: true},
		{Name: "z", Lease: waits.Lease.Public(), Stamp: waits.Stamp},
	}
	for range 3 {
		wantCode(t, "heartbeat", s.Heartbeat(t.Context(), names), fencing.CodeOK)
	}
	if len(heard.all) < 2 || !slices.Equal(heard.all[:2], first) {
		t.Fatalf("told of %d, not first of %+v", len(heard.all), first)
	}
	told := slices.DeleteFunc(heard.all, func(e fencing.Entry) bool { return !e.Attached })
	for _, all := range [][]fencing.Entry{told, streams} {
		slices.SortFunc(all, func(a, b fencing.Entry) int { return cmp.Compare(a.Name, b.Name) })
	}
	if !slices.Equal(told, streams) {
		t.Errorf("three heartbeats told of %d streams, want %d", len(told), len(streams))
	}
}

// What is told of streams may be lost with its key. A stream that has no entry asks by a renewal,
// and is told of from then on.
func TestAStreamIsToldOfAgain(t *testing.T) {
	s := open(t, Options{URL: redistest.Start(t).SocketURL()})
	heard := listen(t, s)
	r, names := attachRequest("a"), []fencing.Name{"a"}
	mustAcquire(t, s, r)
	wantEntries(t, s, heard, names, streamEntryOf(r))
	s.redis().Del(t.Context(), s.keys[0].prefix+"gateway:"+s.handle)
	wantEntries(t, s, heard, names)
	for _, stamp := range []fencing.Stamp{"", r.Stamp} {
		if _, err := s.Do(t.Context(), fencing.RenewRequest{Name: "a", Lease: r.Lease, Stamp: stamp}); err != nil {
			t.Fatal(err)
		}
	}
	wantEntries(t, s, heard, names, streamEntryOf(r))
}

// A lease whose record was evicted or deleted is told of no more, and what is granted since is. So
// it is where a key of several holders is gone, which are put in order.
func TestStreamsOfLostKeys(t *testing.T) {
	s := open(t, Options{URL: redistest.Start(t).SocketURL()})
	heard := listen(t, s)
	names := []fencing.Name{"a", "b"}
	lost, since := attachRequest("a"), attachRequest("a")
	mustAcquire(t, s, lost)
	s.redis().Del(t.Context(), s.keys[0].lock("a"))
	wantEntries(t, s, heard, names)
	mustAcquire(t, s, since)
	wantEntries(t, s, heard, names, streamEntryOf(since))
	mustRelease(t, s, since)

	var readers []fencing.AcquireRequest
	var want []fencing.Entry
	for range 3 {
		r := attachRequest("b")
		r.Mode = fencing.ModeShared
		mustAcquire(t, s, r)
		readers, want = append(readers, r), append(want, streamEntryOf(r))
	}
	s.redis().HDel(t.Context(), s.keys[0].prefix+"holders:b", string(readers[0].Lease.Public()))
	_, err := s.Do(t.Context(), fencing.RenewRequest{Name: "b", Lease: readers[1].Lease})
	wantCode(t, "renew", err, fencing.CodeOK)
	s.redis().Del(t.Context(), s.keys[0].prefix+"until:b")
	_, err = s.Do(t.Context(), fencing.RenewRequest{Name: "b", Lease: readers[1].Lease})
	wantCode(t, "renew", err, fencing.CodeOK)
	wantEntries(t, s, heard, names, want[1:]...)
	mustRelease(t, s, readers[2])
	wantEntries(t, s, heard, names, want[1])
	mustRelease(t, s, readers[1])
	wantEntries(t, s, heard, names)
}
