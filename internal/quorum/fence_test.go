package quorum

import (
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
)

func (s *scene) admit(name fencing.Name, token fencing.Token) error {
	_, err := s.Do(bg, fencing.AdmitRequest{Name: name, Token: token, Slot: fencing.NoSlot})
	synctest.Wait()
	return err
}

func (s *scene) cut(i int, cut bool) {
	s.nodes[i].set(func(n *node) { n.cut = cut })
	if !cut {
		s.pass(time.Minute) // it is asked again
	}
}

// turns has a holder stopped past its TTL, and a writer after it.
func (s *scene) turns() (old, token fencing.Token) {
	stopped, writer := request("a"), request("a")
	stopped.TTL = time.Second
	old = s.acquire(stopped).Holder.Token
	s.pass(2 * time.Second)
	token = s.acquire(writer).Holder.Token
	synctest.Wait() // all nodes have it
	return old, token
}

// With any one node out of reach a stale token finds no majority, whichever was out of
// reach when the newer one was admitted.
func TestAdmissionsMeetAtANode(t *testing.T) {
	for first := range 3 {
		for second := range 3 {
			play(t, func(s *scene) {
				old, token := s.turns()
				s.cut(first, true)
				if err := s.admit("a", token); err != nil {
					t.Fatalf("the token is not admitted without node %d: %v", first, err)
				}
				s.nodes[first].set(func(n *node) { n.cut = false })
				s.nodes[second].set(func(n *node) { n.cut = true })
				if err := s.admit("a", old); err == nil {
					t.Errorf("without node %d %d is admitted after %d, without node %d", second, old, token, first)
				}
			})
		}
	}
}

// A node that forgot does not know the tokens of before, so that it admits no stale one; nor
// does one that missed a writer's grant let its token pass without a mark.
func TestAdmissionsAtNodesThatLackSomething(t *testing.T) {
	t.Run("forgot", func(t *testing.T) {
		play(t, func(s *scene) {
			old, token := s.turns()
			if err := s.admit("a", token); err != nil {
				t.Fatal(err)
			}
			s.nodes[0].forget()
			s.pass(10 * time.Minute) // it votes again
			s.cut(1, true)
			if err := s.admit("a", old); err == nil {
				t.Errorf("%d is admitted after %d, where one node forgot and another is out of reach", old, token)
			}
		})
	})
	t.Run("missed a grant", func(t *testing.T) {
		play(t, func(s *scene) {
			stopped, writer, reader := request("a"), request("a"), request("a")
			stopped.TTL, reader.Mode = time.Second, fencing.ModeShared
			old := s.acquire(stopped).Holder.Token
			s.pass(2 * time.Second)
			s.cut(2, true)
			token := s.acquire(writer).Holder.Token
			synctest.Wait()
			if _, err := s.Do(bg, fencing.ReleaseRequest{Name: "a", Lease: writer.Lease}); err != nil {
				t.Fatal(err)
			}
			s.cut(2, false)
			s.acquire(reader)
			synctest.Wait()
			s.nodes[1].set(func(n *node) { n.cut = true })
			if err := s.admit("a", token); err != nil { // its last write, which was under way
				t.Fatal(err)
			}
			s.nodes[1].set(func(n *node) { n.cut = false })
			if err := s.admit("a", old); err == nil {
				t.Errorf("%d is admitted after %d", old, token)
			}
		})
	})
}

// What has a majority neither for nor against it is not known, and nothing that was not
// claimed is admitted.
func TestAdmissionWithoutMajority(t *testing.T) {
	play(t, func(s *scene) {
		_, token := s.turns()
		s.refused(s.admit("a", token+1), fencing.CodeStaleToken)
		s.cut(0, true)
		s.cut(1, true)
		s.refused(s.admit("a", token), fencing.CodeUnavailable)
	})
}
