package raft

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// talkative is metadata of 4 kB.
var talkative = func() map[string]string {
	m := map[string]string{}
	for i := range 16 {
		m[fmt.Sprint(i)] = strings.Repeat("x", 250)
	}
	return m
}()

// lockOf returns a lock with so many holders.
func lockOf(name fencing.Name, holders int) *fencing.Lock {
	l := &fencing.Lock{Name: name, Now: 1, HolderCount: holders}
	for i := range holders {
		l.Holders = append(l.Holders, fencing.Holder{Lease: fencing.LeasePublic(fmt.Sprintf("%026d", i)), Metadata: fencing.LabelsOf(talkative), Token: fencing.Token(1 + i)})
	}
	return l
}

// sent returns an answer as the node has it that asked.
func sent(t *testing.T, a answer, after fencing.Name, most int) (got answer, size int) {
	t.Helper()
	a.pack(after, most)
	b := must(machine.Encoding.Marshal(&a))
	if err := machine.Lenient.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if err := got.unpack(); err != nil {
		t.Fatal(err)
	}
	return got, len(b)
}

// Many refusals of one name have each lease once, and are what they were for those who asked.
func TestRefusalsOfOneNameAreSmall(t *testing.T) {
	var a answer
	for range 50 {
		a.Outcomes = append(a.Outcomes, fencing.Outcome{Now: 1, Err: fencing.LockedError(fencing.CodeLocked, lockOf("a", 20))})
	}
	renewed := lockOf("a", 20) // one of them was renewed in between
	renewed.Holders[3].ExpiresAt = 7
	a.Outcomes[10].Err.Lock = renewed
	a.Outcomes = append(a.Outcomes, fencing.Outcome{Now: 1, Lock: lockOf("b", 20)}, fencing.Outcome{Now: 1})
	want := slices.Clone(a.Outcomes)
	a.Outcomes = slices.Clone(want)
	got, size := sent(t, a, "", mostSent)
	if !reflect.DeepEqual(got.Outcomes, want) {
		t.Error("the outcomes are not what they were")
	}
	if one := len(must(machine.Encoding.Marshal(lockOf("a", 20)))); size > 4*one {
		t.Errorf("the answer has %d bytes, a lock has %d", size, one)
	}
	if len(want[0].Err.Lock.Holders) != 20 {
		t.Error("packing has changed what the leader has")
	}
}

// What has no room is left out from the end; the first is always there.
func TestOutcomesWithoutRoomAreLeftOut(t *testing.T) {
	var a answer
	for i := range 11 {
		a.Outcomes = append(a.Outcomes, fencing.Outcome{Now: 1, Lock: lockOf(fencing.Name(fmt.Sprint(i)), 50)})
	}
	a.Told = []machine.Told{{Index: 1, Grant: fencing.Grant{Holder: lockOf("a", 1).Holders[0]}}}
	one := len(must(machine.Encoding.Marshal(a.Outcomes[0])))
	for most, want := range map[int]int{1: 1, 3 * one: 2, 6 * one: 5} {
		packed := answer{Outcomes: slices.Clone(a.Outcomes), Told: a.Told}
		got, size := sent(t, packed, "", most)
		if n := len(got.Outcomes); n < want || n > want+1 {
			t.Errorf("with room for %d bytes there are %d outcomes of %d bytes each", most, n, one)
		}
		if size > max(most, one)+10_000 {
			t.Errorf("with room for %d bytes the answer has %d", most, size)
		}
		if !reflect.DeepEqual(got.Outcomes, a.Outcomes[:len(got.Outcomes)]) {
			t.Error("the outcomes are not what they were")
		}
	}
}

// A page of a list is shorter where locks have much to say, and the next one goes on behind it.
func TestAPageHasRoom(t *testing.T) {
	var a answer
	for i := range 20 {
		a.Page.Locks = append(a.Page.Locks, *lockOf(fencing.Name(fmt.Sprintf("n%02d", i)), 10))
	}
	one := len(must(machine.Encoding.Marshal(&a.Page.Locks[0])))
	a.Page.Next, a.Page.Total = "n19", 30
	got, _ := sent(t, a, "", 5*one)
	if len(got.Page.Locks) != 5 || got.Page.Next != "n04" || got.Page.Total != 30 {
		t.Errorf("the page has %d locks and goes on behind %q", len(got.Page.Locks), got.Page.Next)
	}
	if got, _ := sent(t, a, "", 1); len(got.Page.Locks) != 1 || got.Page.Next != "n00" {
		t.Errorf("without room the page has %d locks and goes on behind %q", len(got.Page.Locks), got.Page.Next)
	}
	if got, _ := sent(t, a, "", mostSent); len(got.Page.Locks) != 20 || got.Page.Next != "n19" {
		t.Errorf("with room the page has %d locks and goes on behind %q", len(got.Page.Locks), got.Page.Next)
	}
}

// Entries of a heartbeat come in parts, none of them twice.
func TestEntriesComeInParts(t *testing.T) {
	var all []fencing.Entry
	for i := range 300 { // of some names there are many
		all = append(all, fencing.Entry{Name: fencing.Name(fmt.Sprintf("n%03d", i*i/600)), Lease: fencing.LeasePublic(fmt.Sprint(i)), Stamp: "s"})
	}
	for _, most := range []int{1, 500, 3000, mostSent} {
		var got []fencing.Entry
		after := fencing.Name("")
		for parts := 0; ; parts++ {
			part, size := sent(t, answer{Entries: slices.Clone(all)}, after, most)
			if got = append(got, part.Entries...); part.More == "" {
				break
			}
			if part.More <= after || size > most+2000 {
				t.Fatalf("with room for %d bytes a part has %d, and goes on behind %q after %q", most, size, part.More, after)
			}
			after = part.More
		}
		slices.SortFunc(got, func(a, b fencing.Entry) int {
			return strings.Compare(fmt.Sprint(a.Name, a.Lease), fmt.Sprint(b.Name, b.Lease))
		})
		want := slices.Clone(all)
		slices.SortFunc(want, func(a, b fencing.Entry) int {
			return strings.Compare(fmt.Sprint(a.Name, a.Lease), fmt.Sprint(b.Name, b.Lease))
		})
		if !slices.Equal(got, want) {
			t.Errorf("with room for %d bytes %d entries of %d have come", most, len(got), len(want))
		}
	}
}

// An answer that refers to what it does not have is refused.
func TestAnAnswerThatShowsNothing(t *testing.T) {
	for _, s := range []shown{{Outcome: -1}, {Outcome: 1}, {Outcome: 0, Refused: true}, {Outcome: 0, Holders: []int{1}}, {Outcome: 0, Holders: []int{-1}}} {
		a := answer{Outcomes: []fencing.Outcome{{Lock: &fencing.Lock{}}}, Holders: make([]fencing.Holder, 1), Shown: []shown{s}}
		if err := a.unpack(); err == nil {
			t.Errorf("%+v is taken", s)
		}
	}
}

// insist asks again while nothing is known, as clients do.
func insist(ctx context.Context, s fencing.Store, r fencing.AcquireRequest) error {
	for {
		_, err := s.Do(ctx, r)
		if code(err) != fencing.CodeUnavailable || ctx.Err() != nil {
			return err
		}
	}
}

// Many who are refused at a follower are refused, with the many who hold the lock; and others are served there meanwhile.
func TestManyRefusalsAtAFollower(t *testing.T) {
	const holders, refusals = 20, 40
	c := newCluster(t, 3, nil)
	c.hub.most = 1 << 20 // all of them would be 3 MB
	leader, follower := c.nodes[0], c.nodes[1]
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var asking sync.WaitGroup
	for range holders {
		r := acquire("a", time.Hour)
		r.Mode, r.Metadata = fencing.ModeShared, talkative
		asking.Go(func() {
			if err := insist(ctx, leader, r); err != nil {
				t.Error(err)
			}
		})
	}
	asking.Wait()
	for range callsInFlight { // nothing is sent until all have asked
		follower.calling <- struct{}{}
	}
	for i := range refusals {
		asking.Go(func() {
			err := insist(ctx, follower, acquire("a", time.Hour))
			if code(err) != fencing.CodeLocked {
				t.Errorf("refusal %d: %v", i, err)
				return
			}
			if lock := err.(*fencing.Error).Lock; len(lock.Holders) != holders || lock.Holders[holders-1].Metadata.Len() != len(talkative) {
				t.Errorf("refusal %d shows %d holders", i, len(lock.Holders))
			}
		})
	}
	asking.Go(func() {
		if err := insist(ctx, follower, acquire("b", time.Hour)); err != nil {
			t.Errorf("somebody else: %v", err)
		}
	})
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for waiting := 0; waiting <= refusals; {
		select {
		case <-look.C:
		case <-ctx.Done():
			t.Fatal("not all have asked")
		}
		follower.queue.mu.Lock()
		waiting = len(follower.queue.items)
		follower.queue.mu.Unlock()
	}
	for range callsInFlight {
		<-follower.calling
	}
	asking.Wait()
	if n := c.hub.tooLarge.Load(); n > 0 {
		t.Errorf("%d answers were too large to be sent", n)
	}
}
