package quorum

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
)

func TestNewQuorum(t *testing.T) {
	play(t, func(s *scene) {
		for i, n := range s.nodes {
			if a := n.admissions(); len(a) != 1 || !a[0].isNew {
				t.Errorf("node %d: %+v", i, a)
			}
		}
		r := request("a")
		r.TTL = time.Minute
		s.acquire(r)
		synctest.Wait() // the last node may be at work, and a model grants what a blank Redis refuses
		s.nodes[1].forget()
		advance(3 * time.Second)
		if a := s.nodes[1].admissions(); len(a) != 2 || a[1].isNew || a[1].longest < time.Minute {
			t.Errorf("a node that forgot: %+v", a)
		}
		if f, err := s.Examine(bg); err != nil || f[len(f)-1].OK {
			t.Errorf("while it does not vote: %+v, %v", f, err)
		}
		advance(time.Minute)
		if f, err := s.Examine(bg); err != nil || !f[len(f)-1].OK {
			t.Errorf("when it votes again: %+v, %v", f, err)
		}
	})
}

// A majority that is not in service grants nothing: the quorum is not ready.
func TestCheckBeforeNodesAreInService(t *testing.T) {
	play(t, func(s *scene) {
		s.nodes[0].forget()
		if err := s.Check(bg); err != nil {
			t.Errorf("with a majority in service: %v", err)
		}
		s.nodes[1].forget()
		if err := asError(s.Check(bg)); err == nil || err.Code != fencing.CodeQuarantined {
			t.Errorf("with one node in service: %v", err)
		}
		advance(3 * time.Second)
		if err := s.Check(bg); err != nil {
			t.Errorf("when they are in service again: %v", err)
		}
	})
}

// While another gateway takes a new quorum into service, node by node, those that are
// still blank have forgotten nothing.
func TestNodesOfANewQuorumAreAdmittedByAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newNodes(t, 3)
		for _, n := range s.nodes[1:] {
			n.forget()
		}
		if err := s.nodes[0].Admit(bg, true, time.Second); err != nil {
			t.Fatal(err)
		}
		s.Store = s.open()
		synctest.Wait()
		for i, n := range s.nodes[1:] {
			if a := n.admissions(); len(a) != 0 {
				t.Errorf("node %d: %+v", i+1, a)
			}
		}
		advance(3 * time.Second)
		for i, n := range s.nodes[1:] {
			if a := n.admissions(); len(a) != 1 || a[0].isNew {
				t.Errorf("node %d is still blank: %+v", i+1, a)
			}
		}
	})
}

// A blank node is not new while nobody who remembers can be asked.
func TestBlankBesideTheUnknown(t *testing.T) {
	play(t, func(s *scene) {
		s.nodes[0].set(func(n *node) { n.cut = true })
		s.nodes[1].forget()
		s.nodes[2].forget()
		advance(3 * time.Second)
		for i := 1; i < 3; i++ {
			if a := s.nodes[i].admissions(); len(a) != 1 {
				t.Errorf("node %d: %+v", i, a)
			}
		}
		f, err := s.Examine(bg)
		if err != nil || f[len(f)-1].OK || f[len(f)-1].Check != "quorum" {
			t.Errorf("%+v, %v", f, err)
		}
		s.nodes[0].set(func(n *node) { n.cut = false })
		advance(3 * time.Second)
		for i := 1; i < 3; i++ {
			if a := s.nodes[i].admissions(); len(a) != 2 || a[1].isNew {
				t.Errorf("node %d: %+v", i, a)
			}
		}
	})
}

func TestList(t *testing.T) {
	play(t, func(s *scene) {
		for _, name := range []fencing.Name{"a", "b/1", "b/2", "b/3", "c"} {
			s.acquire(request(name))
		}
		synctest.Wait()
		if _, err := s.nodes[0].Model.Acquire(bg, request("b/0")); err != nil { // left behind
			t.Fatal(err)
		}
		s.nodes[2].set(func(n *node) { n.cut = true })
		var names []fencing.Name
		ask := fencing.ListRequest{Prefix: "b/", Limit: 2}
		for {
			page, err := s.List(bg, ask)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range page.Locks {
				names = append(names, l.Name)
			}
			if ask.After = page.Next; page.Next == "" {
				break
			}
		}
		if len(names) != 3 || names[0] != "b/1" || names[2] != "b/3" {
			t.Errorf("the list is %v", names)
		}
		if stats, err := s.Stats(bg); err != nil || stats.Held != 5 {
			t.Errorf("%+v, %v", stats, err)
		}
	})
}

type events chan fencing.Event

func (e events) Event(event fencing.Event) { e <- event }
func (events) Wants(fencing.Name) bool     { return true }

func (e events) Gap() { e <- fencing.Event{Kind: "gap"} }

func TestWatch(t *testing.T) {
	play(t, func(s *scene) {
		heard := make(events, 64)
		other := s.open()
		stop := other.Watch(heard)
		r := request("a")
		first := s.acquire(r)
		advance(time.Second)
		if _, err := s.Renew(bg, fencing.RenewRequest{Name: "a", Lease: r.Lease}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Release(bg, fencing.ReleaseRequest{Name: "a", Lease: r.Lease}); err != nil {
			t.Fatal(err)
		}
		quick := request("a")
		second := s.acquire(quick)
		if _, err := s.Release(bg, fencing.ReleaseRequest{Name: "a", Lease: quick.Lease}); err != nil {
			t.Fatal(err)
		}
		advance(time.Second)
		third := s.acquire(request("a"))
		advance(time.Second)
		stop()
		s.acquire(request("b"))
		advance(time.Second)
		want := []fencing.Event{
			{Kind: fencing.EventGranted, Token: first.Holder.Token}, {Kind: fencing.EventReleased, Token: first.Holder.Token},
			{Kind: fencing.EventGranted, Token: second.Holder.Token}, {Kind: fencing.EventReleased, Token: second.Holder.Token},
			{Kind: fencing.EventGranted, Token: third.Holder.Token},
		}
		if len(heard) != len(want) {
			t.Errorf("%d events, want %d", len(heard), len(want))
		}
		for i := range min(len(want), len(heard)) {
			if e := <-heard; e.Kind != want[i].Kind || e.Token != want[i].Token || e.Name != "a" || e.ID == "" {
				t.Errorf("event %d is %+v, want %+v", i, e, want[i])
			}
		}
	})
}

type notes struct{ events chan fencing.Event }

func (n notes) Event(e fencing.Event) { n.events <- e }
func (notes) Wants(fencing.Name) bool { return true }

func (n notes) Gap() {}

// A grant that is taken back while another gateway looks at it is told as left as well.
func TestLeftWhileLooking(t *testing.T) {
	playLenient(t, asIs, func(s *scene) {
		other := s.open()
		heard := notes{make(chan fencing.Event, 16)}
		defer other.Watch(heard)()
		for _, n := range s.nodes {
			n.set(func(n *node) {
				n.lost = func(op string) bool {
					if op == "history" {
						advance(30 * time.Millisecond) // on the way back
					}
					return false
				}
			})
		}
		r := request("a")
		s.acquire(r)
		advance(30 * time.Millisecond)
		if _, err := s.TakeBack(bg, fencing.TakeBackRequest{Name: "a", Lease: r.Lease, Stamp: r.Stamp}); err != nil {
			t.Fatal(err)
		}
		advance(time.Minute)
		var kinds []fencing.EventKind
		for len(heard.events) > 0 {
			kinds = append(kinds, (<-heard.events).Kind)
		}
		if len(kinds) != 2 || kinds[1] != fencing.EventLeft {
			t.Errorf("told %v", kinds)
		}
	})
}

type told struct{ events []fencing.Event }

func (s *told) Event(e fencing.Event) { s.events = append(s.events, e) }
func (*told) Wants(fencing.Name) bool { return true }

func (s *told) Gap() {}

// Each event is told once, also when names that nobody holds are forgotten.
func TestToldTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, 3)
		ear := &told{}
		defer s.Watch(ear)()
		s.watch.mu.Lock()
		for i := range maxFollowed - 1 {
			s.watch.followed[fencing.Name("b/"+string(rune('0'+i%10))+time.Duration(i).String())] = &story{}
		}
		s.watch.mu.Unlock()
		for _, name := range []fencing.Name{"a", "c"} {
			r := request(name)
			s.acquire(r)
			advance(100 * time.Millisecond)
			s.Release(bg, fencing.ReleaseRequest{Name: name, Lease: r.Lease})
			advance(100 * time.Millisecond)
		}
		r := request("a")
		s.acquire(r)
		advance(time.Second)
		synctest.Wait()
		seen := map[leaseToken]map[fencing.EventKind]int{}
		for _, e := range ear.events {
			k := leaseToken{e.Lease, e.Token}
			if seen[k] == nil {
				seen[k] = map[fencing.EventKind]int{}
			}
			if seen[k][e.Kind]++; seen[k][e.Kind] > 1 {
				t.Errorf("%s of %s is told again", e.Kind, e.Name)
			}
		}
	})
}

// What more names change than can be looked at is not kept: a gap is told, and not often.
func TestMoreChangesThanCanBeLookedAt(t *testing.T) {
	play(t, func(s *scene) {
		heard := make(events, 1<<10)
		defer s.Watch(heard)()
		for _, n := range s.nodes {
			n.set(func(n *node) {
				n.before = func(op string) {
					if op == "history" {
						advance(200 * time.Millisecond)
					}
				}
			})
		}
		for second := range 5 {
			for i := range 20_000 {
				s.watch.hint(fencing.Name(fmt.Sprintf("%d/%d", second, i)))
			}
			s.watch.mu.Lock()
			kept := 0
			for i := range s.watch.lookers {
				kept += len(s.watch.lookers[i].dirty)
			}
			s.watch.mu.Unlock()
			if kept > lookers*maxDirty {
				t.Errorf("%d names are kept", kept)
			}
			advance(time.Second)
		}
		advance(10 * time.Second)
		gaps := 0
		for len(heard) > 0 {
			if e := <-heard; e.Kind == "gap" {
				gaps++
			}
		}
		if gaps < 5 || gaps > 9 {
			t.Errorf("%d gaps", gaps)
		}
		s.watch.mu.Lock()
		defer s.watch.mu.Unlock()
		for i := range s.watch.lookers {
			if l := &s.watch.lookers[i]; l.working || len(l.dirty)+len(l.isDirty) > 0 {
				t.Errorf("%d names are left", len(l.dirty)+len(l.isDirty))
			}
		}
	})
}
