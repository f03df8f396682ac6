package quorum

import (
	"errors"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis"
	"fencepost/internal/redis/redistest"
)

// Nodes that refuse the gateway are not told as nodes that disagree, and what they
// refuse is not told to clients.
func TestRefusingNodes(t *testing.T) {
	f := &servers{t: t}
	var nodes []fencing.Node
	for range 3 {
		server := redistest.Start(t, "--requirepass", "another")
		node, err := redis.Open(t.Context(), redis.Options{URL: server.URL(), Password: "wrong", Member: true, Logger: quiet, MaxSkew: realSkew})
		f.must(err)
		nodes = append(nodes, node)
	}
	s, err := Open(nodes, Options{MaxSkew: realSkew, Logger: quiet})
	f.must(err)
	_, acquired := s.Do(bg, request("a"))
	_, renewed := s.Do(bg, fencing.RenewRequest{Name: "a", Lease: request("a").Lease, TTL: time.Minute})
	_, inspected := s.Do(bg, fencing.InspectRequest{Name: "a"})
	checked := s.Check(bg)
	f.must(s.Close())
	for what, err := range map[string]error{"acquire": acquired, "renew": renewed, "inspect": inspected, "check": checked} {
		e := asError(err)
		if e == nil || e.Code != fencing.CodeUnavailable || fencing.FaultOf(err) == nil {
			t.Errorf("%s: %v; want the fault of the nodes", what, err)
			continue
		}
		if what != "check" && !strings.Contains(e.Detail, "refuse") || strings.Contains(strings.ToLower(e.Detail), "pass") {
			t.Errorf("%s: clients are told %q", what, e.Detail)
		}
	}
}

// Who is out of reach, and who refuses, is told by which of them are more.
func TestRefusedAt(t *testing.T) {
	away := fencing.Unavailable(errors.New("out of reach"))
	refusing := fencing.Unavailable(&fencing.Fault{Err: errors.New("WRONGPASS")})
	for _, c := range []struct {
		errs  []*fencing.Error
		fault bool
	}{
		{[]*fencing.Error{away, refusing, refusing}, true},
		{[]*fencing.Error{refusing, away}, true},
		{[]*fencing.Error{away, away, refusing}, false},
		{[]*fencing.Error{away, away}, false},
		{nil, false},
	} {
		votes := make([]vote, 5)
		for i, err := range c.errs {
			votes[i] = vote{standing: against, err: err}
		}
		if got := refusedAt(votes); (got != nil) != c.fault || c.fault && fencing.FaultOf(got) == nil {
			t.Errorf("%v: %v", c.errs, got)
		}
	}
}

// Neither a renewal nor a release is answered quarantined, which says that nothing was done:
// in quarantine they go on.
func TestOwnLeaseIsNotQuarantined(t *testing.T) {
	unknown := fencing.LostError(fencing.ReasonUnknown)
	for _, release := range []bool{false, true} {
		y := newTally(3, 0, release)
		y.notDone(0, unknown, true, 0)
		y.notDone(1, unknown, true, 0)
		y.notDone(2, unavailable("no answer"), false, 0)
		if !y.decided || y.refusal == nil || y.refusal.Code != fencing.CodeUnavailable {
			t.Errorf("release: %t: decided %t, %v", release, y.decided, y.refusal)
		}
	}
}
