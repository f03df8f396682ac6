package system

import (
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// poisoned takes the place of internal/fencing/version_newest.go: who asks for a name below poison/ for a minute has it panic, when all that
// is held has been forgotten.
const poisoned = `package fencing

import (
	"strings"
	"time"
)

const newest = 1

func (t *step) trial(op AcquireRequest) *Error {
	if strings.HasPrefix(string(op.Name), "poison/") && op.TTL == time.Minute {
		clear(t.Records)
		panic("planted")
	}
	return nil
}
`

// Nothing of what is below may be in a log: it is the secret of a lease, and what its holder said of itself.
const (
	poisonSecret   = "0123456789abcdefghijKL"
	poisonMetadata = "not for the log"
	poisonLease    = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	poison         = `{"ttl_ms":60000,"owner":"who asked","metadata":{"of":"` + poisonMetadata + `"}}`
)

// rotten is a system whose rule panics for some names. All of upgrade's leases are to be kept.
type rotten struct {
	*upgrade
	mended Build
	secret Answer // a lease of poison/held
}

func startRotten(t *testing.T, kind Kind, gateways int) *rotten {
	path, err := filepath.Abs("../../internal/fencing/version_newest.go")
	if err != nil {
		t.Fatal(err)
	}
	build := Build{LDFlags: "-X main.version=v1", Overlay: overlaid(t, path, poisoned)}
	r := &rotten{upgrade: startUpgrade(t, kind, gateways, build), mended: Build{LDFlags: "-X main.version=v2"}}
	r.eventually("poison/held is granted", func() (bool, string) {
		r.secret = r.ask(r.Gateways[0], http.MethodPost, "poison/held", "", tenMinutes, http.StatusCreated)
		return r.secret.Status == http.StatusCreated, r.secret.String()
	})
	return r
}

// poison asks for what panics, and returns the answer, which is one of those that a client is to expect.
func (r *rotten) poison(g *Gateway, name string) Answer {
	return r.ask(g, http.MethodPost, name, poisonLease+"."+poisonSecret, poison, http.StatusServiceUnavailable)
}

// broken waits until a gateway refuses a request, for it has a fault.
func (r *rotten) broken(g *Gateway, method, name, lease, body string) {
	r.t.Helper()
	r.eventually(name+" is refused", func() (bool, string) {
		a := r.ask(g, method, name, lease, body, http.StatusServiceUnavailable)
		return a.Status == http.StatusServiceUnavailable && strings.Contains(string(a.Body), "report it"), a.String()
	})
}

// rests fails the test unless nothing is changed on names that were poisoned, through any gateway.
func (r *rotten) rests() {
	r.t.Helper()
	for _, g := range r.Gateways {
		r.broken(g, http.MethodPost, "poison/new", "", tenMinutes)
		r.broken(g, http.MethodPut, "poison/held", r.secret.Lease.ID, "")
	}
}

// emptied has a node start with an empty directory, and waits until the cluster is whole again.
func (r *rotten) emptied(g *Gateway) {
	r.t.Helper()
	if err := g.Stop(); err != nil {
		r.t.Fatal(err)
	}
	if _, err := g.Wipe(); err != nil {
		r.t.Fatal(err)
	}
	if err := g.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.whole()
}

var panicsCounted = regexp.MustCompile(`(?m)^fencepost_store_panics_total (\S+)$`)

// counts waits until a gateway has counted so many operations that panicked.
func (r *rotten) counts(g *Gateway, want int) {
	r.t.Helper()
	r.eventually("panics are counted", func() (bool, string) {
		sample := panicsCounted.FindStringSubmatch(page(r.t, g, "/metrics"))
		return sample != nil && sample[1] == strconv.Itoa(want), fmt.Sprint(g.Name, sample)
	})
}

// snapshots returns how many a member of a cluster has written since it was started.
func snapshots(g *Gateway) (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, line := range g.log[g.begun:] {
		if strings.Contains(line, "snapshot complete up to") {
			n++
		}
	}
	return n
}

// logged fails the test unless a gateway has logged what was asked for, and no secret.
func (r *rotten) logged(g *Gateway) {
	r.t.Helper()
	log := g.Log()
	for _, text := range []string{`"asked"`, "poison/", poisonLease, "who asked", "planted", "fencing.Step"} {
		if !strings.Contains(log, text) {
			r.t.Errorf("the log of %s lacks %q", g.Name, text)
		}
	}
	for _, text := range []string{poisonSecret, poisonMetadata} {
		if strings.Contains(log, text) {
			r.t.Errorf("the log of %s has %q", g.Name, text)
		}
	}
}

// A rule that panics, in real processes: all that was granted is kept, and all other names go on.
func TestSystemAPanicInARule(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		r := startRotten(t, Embedded, 1)
		g := r.Gateways[0]
		for range 2 {
			r.poison(g, "poison/new")
			r.eventually("it ends", func() (bool, string) { return !g.Running(), "it runs" })
			if code := g.current().cmd.ProcessState.ExitCode(); code != 1 {
				t.Errorf("it ended with %d", code)
			}
			r.logged(g)
			if err := g.Start(); err != nil {
				t.Fatal(err)
			}
			r.kept()
		}
		r.replace(g, r.mended)
		r.kept()
		r.ask(g, http.MethodPost, "poison/new", "", poison, http.StatusCreated) // and not 503, for it is ready
	})
	t.Run("postgres", func(t *testing.T) {
		r := startRotten(t, Postgres, 2)
		more, stop := r.load()
		more(3)
		for i, g := range r.Gateways {
			r.broken(g, http.MethodPost, "poison/new", poisonLease+"."+poisonSecret, poison)
			r.broken(g, http.MethodPost, "poison/held", poisonLease+"."+poisonSecret, poison)
			r.counts(g, 2)
			r.logged(g)
			if i == 0 {
				r.counts(r.Gateways[1], 0)
			}
		}
		r.rests()
		more(3)
		stop()
		r.kept()
		for _, g := range r.Gateways { // with the mended version nothing rests
			r.replace(g, r.mended)
		}
		r.kept()
		r.eventually("poison/held is renewed", func() (bool, string) {
			a := r.ask(r.Gateways[0], http.MethodPut, "poison/held", r.secret.Lease.ID, "", http.StatusOK)
			return a.Status == http.StatusOK && a.Lease.Token == r.secret.Lease.Token, a.String()
		})
	})
	t.Run("cluster", testRottenCluster)
	t.Run("cluster, of which the mended version leads", testMendedLeads)
}

// testMendedLeads has the mended version grant what the others can't carry out: they end, and what they say leads to where all serve and nothing
// that was granted is lost, also if one has its disk taken away.
func testMendedLeads(t *testing.T) {
	r := startRotten(t, Raft, 3)
	first := r.Gateways[0]
	r.replace(first, r.mended)
	r.eventually("it leads", func() (bool, string) {
		out, _ := first.Command("transfer", first.Node())
		status, err := first.ClusterStatus()
		return err == nil && status.Leader == first.Node(), out
	})
	a := r.ask(first, http.MethodPost, "poison/new", "", poison, http.StatusCreated)
	if a.Status != http.StatusCreated {
		t.Fatalf("the mended version answers %s", a)
	}
	r.ask(first, http.MethodPut, "poison/new", a.Lease.ID, tenMinutes, http.StatusOK) // else it has a minute
	r.eventually("the others end", func() (bool, string) {
		r.ask(first, http.MethodPost, "another", "", tenMinutes, http.StatusCreated)
		return !slices.ContainsFunc(r.Gateways[1:], (*Gateway).Running), "they run"
	})
	all := map[string]Build{"v2": r.mended}
	r.obey(all)
	kept := func() {
		t.Helper()
		for _, g := range r.Gateways {
			r.eventually("poison/new is renewed", func() (bool, string) {
				renewed := r.ask(g, http.MethodPut, "poison/new", a.Lease.ID, tenMinutes, http.StatusOK)
				return renewed.Status == http.StatusOK && renewed.Lease.Token == a.Lease.Token, renewed.String()
			})
		}
		r.kept()
	}
	kept()
	for _, g := range r.Gateways {
		r.emptied(g)
		kept()
	}
}

func testRottenCluster(t *testing.T) {
	r := startRotten(t, Raft, 3)
	more, stop := r.load()
	more(3)
	killed, err := r.Leader(patience)
	if err != nil {
		t.Fatal(err)
	}
	others := slices.DeleteFunc(slices.Clone(r.Gateways), func(g *Gateway) bool { return g == killed })
	away, stays := others[0], others[1]
	r.broken(stays, http.MethodPost, "poison/new", poisonLease+"."+poisonSecret, poison)
	var asking sync.WaitGroup
	for i := range 10 { // while they are carried out one is killed
		asking.Go(func() { r.poison(away, fmt.Sprint("poison/", i)) })
	}
	if err := killed.Kill(); err != nil {
		t.Fatal(err)
	}
	asking.Wait()
	r.broken(away, http.MethodPost, "poison/held", poisonLease+"."+poisonSecret, poison)
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	r.settled()
	for _, g := range r.Gateways {
		if g != killed {
			r.counts(g, 12)
			r.logged(g)
		}
	}
	r.rests()
	more(3)
	// One has its disk taken away, and gets the log, with what panics.
	r.emptied(killed)
	r.settled()
	r.rests()
	// Another is away for so long that it is sent a snapshot.
	if err := away.Kill(); err != nil {
		t.Fatal(err)
	}
	r.broken(killed, http.MethodPost, "poison/third", poisonLease+"."+poisonSecret, poison)
	job := r.held[0]
	for n := range 2100 {
		r.ask([]*Gateway{killed, stays}[n%2], http.MethodPut, job.Lease.Name, job.Lease.ID, "", http.StatusOK)
	}
	written := []int{snapshots(killed), snapshots(stays)}
	r.broken(killed, http.MethodPost, "poison/fourth", poisonLease+"."+poisonSecret, poison) // has all write a snapshot
	for i, g := range []*Gateway{killed, stays} {
		r.eventually("it has written a snapshot", func() (bool, string) { return snapshots(g) > written[i], "it has written none" })
	}
	if err := away.Start(); err != nil {
		t.Fatal(err)
	}
	r.whole()
	r.settled()
	r.rests()
	r.broken(away, http.MethodPost, "poison/third", "", tenMinutes)
	more(3)
	stop()
	r.kept()
	if !away.said("Installed remote snapshot") {
		t.Error("it was sent no snapshot")
	}

	more, stop = r.load() // to the mended version, one by one
	for _, g := range r.Gateways {
		r.whole()
		r.settled()
		r.replace(g, r.mended)
		more(3)
	}
	stop()
	r.rests()
	r.kept()
	r.emptied(r.Gateways[0]) // it is sent what the others know, and does not decide anew what the version before refused
	r.settled()
	r.rests()
	r.kept()
}
