package system

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// patience bounds how long a test waits for what does not depend on the machine's speed alone: the gateways of a database take a minute to
// forget one that has gone.
const patience = 3 * time.Minute

// undeclared takes the place of internal/fencing/version_newest.go: it decides as the next version for tests does, and says that it is the newest.
var undeclared = fmt.Sprintf(`package fencing

import "time"

const newest = %d

func (t *step) trial(op AcquireRequest) *Error {
	if op.TTL > 5*time.Minute {
		return invalid("ttl_ms", "is more than 5 minutes")
	}
	return nil
}
`, fencing.NewestRules)

// versions returns how three versions of the gateway are built: this one; one that knows the next version of the rules, which refuses a TTL above
// 5 minutes; and one that refuses that too and does not declare it.
func versions(t *testing.T) (v1, v2, v3 Build) {
	path, err := filepath.Abs("../../internal/fencing/version_newest.go")
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	return Build{LDFlags: "-X main.version=v1"}, Build{LDFlags: "-X main.version=v2", Tags: "rules2"},
		Build{LDFlags: "-X main.version=v3", Overlay: overlaid(t, path, undeclared)}
}

// upgrade is a system that goes over from one version to another, and what it has promised before.
type upgrade struct {
	*System
	t      *testing.T
	client *Client
	from   Build
	names  atomic.Int64 // how many were used

	granting sync.Mutex // of whoever asks for a name that nobody has

	mu    sync.Mutex
	held  []Answer // all leases that were granted, for 10 minutes each; the first is of "job"
	mayV2 bool     // the next version of the rules may be in force
}

// startUpgrade starts a system of a version. "job" is held, and the log goes on behind that.
func startUpgrade(t *testing.T, kind Kind, gateways int, from Build) *upgrade {
	t.Parallel()
	u := &upgrade{System: StartTest(t, Options{Store: kind, Gateways: gateways, Build: from}), t: t, client: NewClient(8), from: from}
	t.Cleanup(u.client.Close)
	t.Cleanup(func() {
		for _, g := range u.Gateways {
			if t.Failed() {
				t.Logf("%s:\n%s", g.Name, g.Log())
			}
		}
	})
	u.eventually("job is granted", func() (bool, string) { return u.grant(u.Gateways[0], "job") })
	u.eventually("another is granted", func() (bool, string) { return u.grant(u.Gateways[0], u.fresh()) })
	return u
}

func (u *upgrade) eventually(what string, is func() (so bool, saw string)) {
	u.t.Helper()
	for deadline := time.Now().Add(patience); ; Pause(20 * time.Millisecond) {
		so, saw := is()
		if so {
			return
		}
		if time.Now().After(deadline) {
			u.t.Fatalf("it never came to this: %s; at last: %s", what, saw)
		}
	}
}

func (u *upgrade) fresh() string { return fmt.Sprint("fresh/", u.names.Add(1)) }

// may has the next version of the rules be what may be in force from now on.
func (u *upgrade) may() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mayV2 = true
}

// ask sends a request that is to be answered with one of some statuses, or by nobody, for nobody can just now.
func (u *upgrade) ask(g *Gateway, method, name, lease, body string, statuses ...int) Answer {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	a, err := u.client.Do(ctx, method, g.URL()+"/locks/"+name, lease, body)
	if err != nil {
		return Answer{Body: []byte(err.Error())}
	}
	if a.Status != http.StatusServiceUnavailable && !slices.Contains(statuses, a.Status) {
		u.t.Errorf("%s %s at %s: %s, want one of %v", method, name, g.Name, a, statuses)
	}
	return a
}

const tenMinutes = `{"ttl_ms":600000}`

// grant asks for a name that nobody has, and reports whether it was granted. The next version of the rules, which refuses that, must not be in
// force before may.
func (u *upgrade) grant(g *Gateway, name string) (bool, string) {
	u.granting.Lock()
	defer u.granting.Unlock()
	u.mu.Lock()
	statuses, before := []int{http.StatusCreated}, int64(0)
	if u.mayV2 {
		statuses = append(statuses, http.StatusBadRequest)
	}
	if len(u.held) > 0 {
		before = u.held[len(u.held)-1].Lease.Token
	}
	u.mu.Unlock()
	a := u.ask(g, http.MethodPost, name, "", tenMinutes, statuses...)
	if a.Status != http.StatusCreated {
		return false, a.String()
	}
	if a.Lease.Token <= before {
		u.t.Errorf("%s has token %d, and %d was granted before", name, a.Lease.Token, before)
	}
	u.mu.Lock()
	u.held = append(u.held, a)
	u.mu.Unlock()
	return true, ""
}

// holds has a lease be renewed, and asks for its name as another: nobody may be granted it. It reports whether both were answered.
func (u *upgrade) holds(g *Gateway, of Answer) (bool, string) {
	if other := u.ask(g, http.MethodPost, of.Lease.Name, "", `{"ttl_ms":60000}`, http.StatusLocked); other.Status != http.StatusLocked {
		return false, other.String()
	}
	renewed := u.ask(g, http.MethodPut, of.Lease.Name, of.Lease.ID, "", http.StatusOK)
	if renewed.Status == http.StatusOK && renewed.Lease.Token != of.Lease.Token {
		u.t.Errorf("%s has token %d, had %d", of.Lease.Name, renewed.Lease.Token, of.Lease.Token)
	}
	return renewed.Status == http.StatusOK, renewed.String()
}

// kept fails the test unless all leases are held that were granted, through any gateway, and a newer one has a greater token.
func (u *upgrade) kept() {
	u.t.Helper()
	u.mu.Lock()
	held := slices.Clone(u.held)
	u.mu.Unlock()
	for i, of := range held {
		g := u.Gateways[i%len(u.Gateways)]
		u.eventually(of.Lease.Name+" is held", func() (bool, string) { return u.holds(g, of) })
	}
	u.eventually("a newer lease", func() (bool, string) {
		a := u.ask(u.Gateways[0], http.MethodPost, u.fresh(), "", `{"ttl_ms":60000}`, http.StatusCreated)
		if a.Status == http.StatusCreated && a.Lease.Token <= held[len(held)-1].Lease.Token {
			u.t.Errorf("token %d after %d", a.Lease.Token, held[len(held)-1].Lease.Token)
		}
		return a.Status == http.StatusCreated, a.String()
	})
}

// load has one client take names, and another renew and ask for what is held, until stop. more waits until so many leases more were granted.
func (u *upgrade) load() (more func(n int), stop func()) {
	ctx, cancel := context.WithCancel(u.t.Context())
	var clients sync.WaitGroup
	each := func(do func(g *Gateway, n int)) {
		clients.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				do(u.Gateways[n%len(u.Gateways)], n)
				Pause(50 * time.Millisecond)
			}
		})
	}
	each(func(g *Gateway, _ int) { u.grant(g, u.fresh()) })
	each(func(g *Gateway, n int) {
		u.mu.Lock()
		of := u.held[n/len(u.Gateways)%2*(len(u.held)-1)] // the oldest and the newest in turn
		u.mu.Unlock()
		u.holds(g, of)
	})
	granted := func() int { u.mu.Lock(); defer u.mu.Unlock(); return len(u.held) }
	stop = sync.OnceFunc(func() { cancel(); clients.Wait() })
	u.t.Cleanup(stop)
	return func(n int) {
		u.t.Helper()
		before := granted()
		u.eventually("leases are granted", func() (bool, string) { return granted() >= before+n, fmt.Sprint(granted() - before) })
	}, stop
}

// known has something be done while nothing is granted, and behind all that was granted there is another entry. Only that says what
// came of the one before, in a database: a version that decides the last one otherwise does not know that it does.
func (u *upgrade) known(by *Gateway, do func()) {
	u.t.Helper()
	u.granting.Lock()
	defer u.granting.Unlock()
	u.mu.Lock()
	last := u.held[len(u.held)-1]
	u.mu.Unlock()
	u.eventually("a renewal stands behind what was granted", func() (bool, string) { return u.holds(by, last) })
	do()
}

// all does something with all gateways at once.
func (u *upgrade) all(do func(*Gateway) error) {
	u.t.Helper()
	errs := make([]error, len(u.Gateways))
	var doing sync.WaitGroup
	for i, g := range u.Gateways {
		doing.Go(func() { errs[i] = do(g) })
	}
	doing.Wait()
	if err := errors.Join(errs...); err != nil {
		u.t.Fatal(err)
	}
}

// replace starts a gateway as another version, which has to become ready.
func (u *upgrade) replace(g *Gateway, with Build) {
	u.t.Helper()
	if err := g.Stop(); err != nil {
		u.t.Fatal(err)
	}
	g.Use(with)
	if err := g.Start(); err != nil {
		u.t.Fatal(err)
	}
	u.whole()
}

// whole waits until gateway cluster status exits with 0, where there is a cluster.
func (u *upgrade) whole() {
	u.t.Helper()
	if u.Kind == Raft {
		u.eventually("the cluster is whole", func() (bool, string) {
			out, err := u.Gateways[0].Command("status")
			return err == nil, out
		})
	}
}

// settled waits until all nodes of a cluster have carried out all of the log.
func (u *upgrade) settled() {
	u.t.Helper()
	if u.Kind == Raft {
		u.eventually("all have carried out the same", func() (bool, string) {
			status, err := u.Gateways[0].ClusterStatus()
			return err == nil && !slices.ContainsFunc(status.Members, func(m Member) bool { return m.Behind != 0 }), fmt.Sprintf("%+v, %v", status, err)
		})
	}
}

// leads has a node of a cluster lead it.
func (u *upgrade) leads(g *Gateway) {
	u.t.Helper()
	if u.Kind == Raft {
		u.eventually("it leads", func() (bool, string) {
			_, err := g.Command("transfer", g.Node())
			status, _ := g.ClusterStatus()
			return status.Leader == g.Node(), fmt.Sprint(status.Leader, err)
		})
		u.heldBack(u.Gateways[len(u.Gateways)-1])
	}
}

// heldBack waits until gateway cluster status says that the newest version of the rules is in force as long as a gateway does not know the next one.
func (u *upgrade) heldBack(by *Gateway) {
	u.t.Helper()
	if u.Kind != Raft {
		return
	}
	u.eventually("who holds the rules back is named", func() (bool, string) {
		status, err := u.Gateways[0].ClusterStatus()
		return err == nil && status.Rules == fencing.NewestRules && slices.Contains(status.HeldBack, by.Node()), fmt.Sprintf("%+v, %v", status, err)
	})
}

// inForce waits until the next version of the rules is in force.
func (u *upgrade) inForce() {
	u.t.Helper()
	u.eventually("the next version of the rules is in force", func() (bool, string) {
		a := u.ask(u.Gateways[0], http.MethodPost, u.fresh(), "", tenMinutes, http.StatusCreated, http.StatusBadRequest)
		return a.Status == http.StatusBadRequest, a.String()
	})
	if u.Kind == Raft {
		u.eventually("all members say so", func() (bool, string) {
			status, err := u.Gateways[0].ClusterStatus()
			return err == nil && status.Rules == fencing.NewestRules+1 && len(status.HeldBack) == 0, fmt.Sprintf("%+v, %v", status, err)
		})
	}
}

// refuses starts a gateway as a version that can't go on, and waits until it has ended and said so.
func (u *upgrade) refuses(g *Gateway, with Build, says ...string) {
	u.t.Helper()
	if err := g.Stop(); err != nil {
		u.t.Fatal(err)
	}
	g.Use(with)
	if err := g.Launch(); err == nil {
		u.eventually("it ends", func() (bool, string) { return !g.Running(), g.Log() })
	}
	for _, text := range says {
		if g.Running() || !g.said(text) {
			u.t.Errorf("it does not say %q:\n%s", text, g.Log())
		}
	}
}

// namesVersion finds which version a message says to start.
var namesVersion = regexp.MustCompile(`computes other results than .*start version (v\d)`)

// obey does what the messages of gateways say that have ended, until all are there: it starts the versions that they name.
func (u *upgrade) obey(builds map[string]Build) {
	u.t.Helper()
	u.eventually("all gateways serve", func() (bool, string) {
		for _, g := range u.Gateways {
			if g.Running() {
				continue
			}
			lines := g.last()
			named := namesVersion.FindStringSubmatch(lines)
			if named == nil {
				u.t.Fatalf("%s has ended and names no version:\n%s", g.Name, lines)
			}
			g.Use(builds[named[1]])
			_ = g.Launch() // else it says why
		}
		for _, g := range u.Gateways {
			if err := g.AwaitReady(time.Second); err != nil {
				return false, err.Error()
			}
		}
		if u.Kind != Raft {
			return true, ""
		}
		out, err := u.Gateways[0].Command("status")
		return err == nil, out
	})
}

// last returns what the process that was started last has logged.
func (g *Gateway) last() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Join(g.log[g.begun:], "")
}

var upgraded = []struct {
	kind     Kind
	gateways int
}{{Embedded, 1}, {Raft, 1}, {Raft, 3}, {Postgres, 2}}

// Two versions that differ in a rule, and say so: all that the earlier one has granted is kept however the later one takes its place, the rules
// are raised only once all know them, and who does not know them can't come back.
func TestSystemRuleVersions(t *testing.T) {
	v1, v2, _ := versions(t)
	ended := func(t *testing.T, u *upgrade) {
		u.inForce()
		u.kept()
		u.refuses(u.Gateways[len(u.Gateways)-1], v1, "does not know the rules", "start version v2 of the gateway, or a later one")
	}
	for _, of := range upgraded {
		t.Run(fmt.Sprintf("%s of %d", of.kind, of.gateways), func(t *testing.T) {
			for how, end := range map[string]func(*Gateway) error{"stopped": (*Gateway).Stop, "killed": (*Gateway).Kill} {
				t.Run(how, func(t *testing.T) {
					u := startUpgrade(t, of.kind, of.gateways, v1)
					u.all(end)
					u.may()
					u.all(func(g *Gateway) error { g.Use(v2); return g.Start() })
					ended(t, u)
				})
			}
			if of.gateways == 1 {
				return
			}
			t.Run("one by one", func(t *testing.T) {
				u := startUpgrade(t, of.kind, of.gateways, v1)
				more, stop := u.load()
				more(3)
				first, last := u.Gateways[0], u.Gateways[of.gateways-1]
				for _, with := range []Build{v2, v1} { // and back
					u.replace(first, with)
					more(3)
				}
				for _, g := range u.Gateways[:of.gateways-1] {
					u.replace(g, v2)
					u.heldBack(last)
					u.leads(g) // who does not know the later rules would never raise them
					more(3)
				}
				u.may()
				u.replace(last, v2)
				u.inForce()
				stop()
				ended(t, u)
			})
		})
	}
}

// Two versions that differ in a rule, and do not say so: what the earlier one has granted is kept, or the later one does not start, and
// doing what it says leads to where it does. Nobody is granted what another holds.
func TestSystemRuleVersionsThatAreNotDeclared(t *testing.T) {
	v1, _, v3 := versions(t)
	builds := map[string]Build{"v1": v1, "v3": v3}
	over := func(u *upgrade) { // by the book
		u.all((*Gateway).Stop)
		u.all(func(g *Gateway) error { g.Use(v3); return g.Start() })
		u.kept()
	}
	for _, of := range upgraded {
		t.Run(fmt.Sprintf("%s of %d", of.kind, of.gateways), func(t *testing.T) {
			t.Run("stopped", func(t *testing.T) {
				u := startUpgrade(t, of.kind, of.gateways, v1)
				over(u)
			})
			t.Run("killed", func(t *testing.T) {
				u := startUpgrade(t, of.kind, of.gateways, v1)
				u.all((*Gateway).Kill)
				u.all(func(g *Gateway) error { g.Use(v3); _ = g.Launch(); return nil })
				u.eventually("one ends", func() (bool, string) {
					return slices.ContainsFunc(u.Gateways, func(g *Gateway) bool { return !g.Running() }), ""
				})
				u.obey(builds)
				u.kept()
				over(u)
			})
			if of.gateways == 1 {
				return
			}
			t.Run("one by one", func(t *testing.T) {
				u := startUpgrade(t, of.kind, of.gateways, v1)
				u.may() // where it leads
				more, stop := u.load()
				more(3)
				for _, g := range u.Gateways {
					end := func() {
						if err := g.end(syscall.SIGTERM); err != nil {
							t.Fatal(err)
						}
						g.Use(v3)
					}
					launch := func() {
						_ = g.Launch()
						u.eventually("it is ready, or has ended, or too few are left", func() (bool, string) {
							running := 0
							for _, of := range u.Gateways {
								if of.Running() {
									running++
								}
							}
							return !g.Running() || u.Kind == Raft && running < 2 || g.AwaitReady(time.Second) == nil, g.Log()
						})
					}
					switch other := u.Gateways[of.gateways-1]; {
					case u.Kind == Raft:
						end()
						launch()
					case g != other:
						u.known(g, end)
						more(3)
						u.known(other, launch)
					default:
						u.known(g, func() { end(); launch() })
					}
					if !g.Running() { // as a service manager does
						_ = g.Launch()
					}
				}
				stop()
				if !slices.ContainsFunc(u.Gateways, func(g *Gateway) bool { return namesVersion.MatchString(g.Log()) }) {
					t.Error("no gateway noticed")
				}
				if u.Kind == Raft {
					return // a node whose log has parts of both is followed by neither: it takes an empty directory
				}
				u.obey(builds)
				u.kept()
				over(u)
			})
		})
	}
}
