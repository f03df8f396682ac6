package quorum

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
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
		s.pass(3 * time.Second)
		if a := s.nodes[1].admissions(); len(a) != 2 || a[1].isNew || a[1].longest < time.Minute {
			t.Errorf("a node that forgot: %+v", a)
		}
		if f, err := s.Examine(bg); err != nil || f[len(f)-1].OK {
			t.Errorf("while it does not vote: %+v, %v", f, err)
		}
		s.pass(time.Minute)
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
		s.pass(3 * time.Second)
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
		m, err := s.nodes[0].Memory(bg)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.nodes[0].Enroll(bg, m.Server, true, time.Second); err != nil {
			t.Fatal(err)
		}
		s.Store = s.open()
		synctest.Wait()
		for i, n := range s.nodes[1:] {
			if a := n.admissions(); len(a) != 0 {
				t.Errorf("node %d: %+v", i+1, a)
			}
		}
		s.pass(3 * time.Second)
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
		s.pass(3 * time.Second)
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
		s.pass(3 * time.Second)
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
		if _, err := s.nodes[0].Model.Do(bg, request("b/0")); err != nil { // left behind
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
		if page, err := s.List(bg, fencing.ListRequest{Prefix: "b/", Limit: 1, Count: true}); err != nil || page.Total != 3 {
			t.Errorf("the total is %d, %v", page.Total, err)
		}
		if _, err := s.List(bg, fencing.ListRequest{Limit: 1, Waiting: true}); err == nil || asError(err).Code != fencing.CodeUnsupportedByStore {
			t.Errorf("who is waited for: %v", err)
		}
		if stats, err := s.Stats(bg); err != nil || stats.Held != 5 {
			t.Errorf("%+v, %v", stats, err)
		}
	})
}

// TestListSelectsWhatIsShown: the nodes have three ends of one lease, and a list that selects
// by the end goes by the one that is shown, and shows that.
func TestListSelectsWhatIsShown(t *testing.T) {
	play(t, func(s *scene) {
		r := request("a")
		s.acquire(r)
		advance(time.Second)
		for i, ttl := range []time.Duration{8 * time.Second, 12 * time.Second, 20 * time.Second} {
			if _, err := s.nodes[i].Model.Do(bg, fencing.RenewRequest{Name: "a", Lease: r.Lease, TTL: ttl}); err != nil {
				t.Fatal(err)
			}
		}
		const shown = 12 * time.Second
		for within, listed := range map[time.Duration]int{0: 1, shown - time.Second: 0, shown: 1, shown + 3*time.Second: 1} {
			page, err := s.List(bg, fencing.ListRequest{Limit: 10, EndsIn: within})
			if err != nil || len(page.Locks) != listed {
				t.Errorf("%v: %+v, %v", within, page, err)
				continue
			}
			for _, lock := range page.Locks {
				if ends := lock.Holders[0].ExpiresAt.Sub(lock.Now); ends != shown {
					t.Errorf("%v: it ends in %v, want %v", within, ends, shown)
				}
			}
		}
	})
}

// TestListSearchIsBounded: a search that finds little looks at ten pages, and goes on from there.
func TestListSearchIsBounded(t *testing.T) {
	play(t, func(s *scene) {
		for i := range 25 {
			s.acquire(request(fencing.Name(fmt.Sprintf("a/%02d", i))))
		}
		s.acquire(request("zz/1"))
		asked := 0
		s.nodes[0].set(func(n *node) {
			n.before = func(op string) {
				if op == "list" {
					asked++
				}
			}
		})
		list := fencing.ListRequest{Limit: 1, Query: "zz/"}
		for _, want := range []fencing.Name{"a/09", "a/19", ""} {
			page, err := s.List(bg, list)
			if err != nil || page.Next != want || (len(page.Locks) == 1) != (want == "") {
				t.Fatalf("%+v, %v", page, err)
			}
			list.After = page.Next
		}
		if asked > 3*maxRoundsSearched {
			t.Errorf("a node was asked %d times", asked)
		}
	})
}

// away has a node out of reach, or back.
func (s *scene) away(i int, away bool) { s.nodes[i].set(func(n *node) { n.cut = away }) }

// restart has another gateway in place of the one that there is, which knows nothing.
func (s *scene) restart() {
	s.t.Helper()
	if err := s.Close(); err != nil {
		s.t.Error(err)
	}
	s.Store = s.open()
	synctest.Wait()
}

// A node that forgot does not vote for the longest TTL in use, though none of the gateways
// that were asked for it is there any more: the other nodes know.
func TestLongestTTLIsAskedOfTheNodes(t *testing.T) {
	play(t, func(s *scene) {
		s.away(0, true)
		r := request("a")
		r.TTL = time.Minute
		s.acquire(r)
		s.restart()
		s.nodes[2].forget()
		s.away(0, false)
		s.pass(50 * time.Second)
		if a := s.nodes[2].admissions(); len(a) != 2 || a[1].longest != time.Minute {
			t.Errorf("%+v", a)
		}
		_, err := s.Do(bg, request("a"))
		s.refused(err, fencing.CodeQuarantined)
		s.pass(15 * time.Second)
		s.acquire(request("a"))
	})
}

// The log says for how long a node that forgot does not vote, as people read it. Of several gateways only the first to see it says so.
func TestTheLogSaysHowLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newNodes(t, 3)
		var log bytes.Buffer
		s.Store = s.openWith(func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		synctest.Wait()
		r := request("a")
		r.TTL = 90 * time.Second
		s.acquire(r)
		s.nodes[2].forget()
		s.pass(3 * time.Second)
		if text := log.String(); !strings.Contains(text, "node=3 for=1m30s") {
			t.Errorf("the log has %s", text)
		}
	})
}

// While too few nodes can be asked for the longest TTL in use, nobody is taken into service;
// after the longest quarantine that there is nothing can be in use any more.
func TestReplacedNodeBesideARestart(t *testing.T) {
	play(t, func(s *scene) {
		s.away(0, true)
		r := request("a")
		r.TTL = 2 * time.Minute
		s.acquire(r)
		s.restart()
		s.nodes[2].forget()
		s.away(0, false)
		s.away(1, true)
		s.pass(time.Minute)
		if a := s.nodes[2].admissions(); len(a) != 1 {
			t.Errorf("the node that knows is out of reach: %+v", a)
		}
		_, err := s.Do(bg, request("a"))
		s.refused(err, fencing.CodeUnavailable)
		s.pass(fencing.LongestQuarantine)
		if a := s.nodes[2].admissions(); len(a) != 2 {
			t.Errorf("after the longest quarantine: %+v", a)
		}
		s.pass(time.Minute)
		s.acquire(request("a"))
	})
}

// Who takes a node of a new quorum into service after another gateway has done so does not
// take one for new that was restarted empty since.
func TestNodeForgetsBeforeItIsEnrolled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newNodes(t, 3)
		late := make(chan struct{})
		s.nodes[2].set(func(n *node) {
			n.before = func(op string) {
				if op == "enroll" {
					<-late
				}
			}
		})
		s.open() // it is late
		synctest.Wait()
		s.nodes[2].set(func(n *node) { n.before = nil })
		s.Store = s.open()
		s.pass(40 * time.Second)
		s.away(1, true)
		s.acquire(request("a"))
		s.nodes[2].forget()
		close(late)
		synctest.Wait()
		if a := s.nodes[2].admissions(); len(a) != 1 {
			t.Errorf("%+v", a)
		}
		s.away(1, false)
		s.away(0, true)
		if _, err := s.Do(bg, request("a")); err == nil {
			t.Error("two have it")
		}
	})
}

// Nodes that are replaced one by one, each when the one before votes again, as documented,
// lose no lease that is renewed.
func TestNodesAreReplacedOneByOne(t *testing.T) {
	play(t, func(s *scene) {
		r := request("a")
		first := s.acquire(r)
		synctest.Wait()
		for i, n := range s.nodes {
			n.forget()
			for second := 1; ; second++ {
				s.pass(time.Second)
				if f, _ := stands(t, s.Store); f.OK {
					break
				}
				if second%3 != 0 {
					continue
				}
				if out, err := s.Do(bg, fencing.RenewRequest{Name: "a", Lease: r.Lease}); err != nil || out.Holder.Token != first.Holder.Token {
					t.Fatalf("node %d: %+v, %v", i, out.Holder, err)
				}
			}
		}
	})
}
