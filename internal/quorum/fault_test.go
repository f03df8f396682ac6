package quorum

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// ledger is what clients were told, and holds it against what is promised.
type ledger struct {
	t  *testing.T
	mu sync.Mutex
	// of each name
	highest map[fencing.Name]fencing.Token
	until   map[fencing.Name]time.Time // while the present holder may believe in its lease
	grants  atomic.Int64
}

// granted notes a lease that a client was told of.
func (l *ledger) granted(name fencing.Name, out *fencing.Outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if highest := l.highest[name]; out.Holder.Token <= highest {
		l.t.Errorf("%s: token %d after %d", name, out.Holder.Token, highest)
	}
	if until := l.until[name]; now.Before(until) {
		l.t.Errorf("%s: granted while another holder may believe in its lease for %s", name, until.Sub(now))
	}
	l.highest[name] = out.Holder.Token
	l.until[name] = believedUntil(out)
	l.grants.Add(1)
}

// believedUntil returns when a holder stops believing in its lease.
func believedUntil(out *fencing.Outcome) time.Time {
	return out.Asked.Add(out.Holder.ExpiresAt.Sub(out.Now))
}

// over notes that the holder does not believe in its lease any more.
func (l *ledger) over(name fencing.Name) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.until, name)
}

// load has workers at gateways acquire and release until stop is called.
func load(t *testing.T, gateways []*Store) (l *ledger, stop func()) {
	l = &ledger{t: t, highest: map[fencing.Name]fencing.Token{}, until: map[fencing.Name]time.Time{}}
	ctx, cancel := context.WithCancel(context.Background())
	var workers sync.WaitGroup
	for i := range 8 {
		workers.Go(func() {
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for n := 0; ctx.Err() == nil; n++ {
				<-tick.C
				l.turn(gateways[i%len(gateways)], fencing.Name(fmt.Sprintf("load/%d", (i+n)%4)))
			}
		})
	}
	return l, sync.OnceFunc(func() { cancel(); workers.Wait() })
}

// turn is one acquire and release. Some holders renew, and some let their lease run
// out.
func (l *ledger) turn(s *Store, name fencing.Name) {
	r := request(name)
	r.TTL = time.Second
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	out, err := s.Do(ctx, r)
	if err != nil {
		if e := asError(err); e.Code != fencing.CodeLocked && !uncertain(e.Code) {
			l.t.Errorf("%s: %v", name, err)
		}
		pause := time.NewTimer(time.Duration(1+rand.IntN(20)) * time.Millisecond)
		<-pause.C
		return
	}
	l.granted(name, &out)
	if rand.IntN(50) == 0 {
		return
	}
	if rand.IntN(4) == 0 {
		again, err := s.Do(ctx, fencing.RenewRequest{Name: name, Lease: r.Lease})
		if err == nil && again.Holder.Token != out.Holder.Token {
			l.t.Errorf("%s: renewed with token %d, granted with %d", name, again.Holder.Token, out.Holder.Token)
		}
		within := time.Now().Before(believedUntil(&out)) // on a busy machine the answer may come later
		if e := asError(err); e != nil && !uncertain(e.Code) && within {
			l.t.Errorf("%s: a lease within its time: %v", name, err)
		}
	}
	l.over(name)
	if _, err := s.Do(ctx, fencing.ReleaseRequest{Name: name, Lease: r.Lease}); err != nil {
		if e := asError(err); e.Code != fencing.CodeLeaseLost && !uncertain(e.Code) {
			l.t.Errorf("%s: %v", name, err)
		}
	}
}

// goesOn waits for so many more grants.
func (l *ledger) goesOn(t *testing.T, what string, more int64) {
	t.Helper()
	goal := l.grants.Load() + more
	await(t, what, func(context.Context) error {
		if have := l.grants.Load(); have < goal {
			return fmt.Errorf("%d grants of %d", have, goal)
		}
		return nil
	})
}

// harm is what a node may come to.
type harm struct {
	name     string
	do, heal func(f *servers, i int)

	what string                        // it does, in the plural
	seen func(f *servers, i int) int64 // how much of that there was; another number than before: it has bitten
}

// harms begin with those that TestMinorityFailsUnderLoad does.
var harms = []harm{
	{
		"killed", func(f *servers, i int) { f.must(f.server[i].Kill()) }, func(f *servers, i int) { f.must(f.server[i].Restart()) },
		"processes ended", func(f *servers, i int) int64 {
			if syscall.Kill(f.server[i].Pid(), 0) != nil {
				return 1
			}
			return 0
		},
	},
	{
		"its answers lost", func(f *servers, i int) { f.proxies[i].Delay(time.Hour / 2000) }, func(f *servers, i int) { f.proxies[i].Delay(0); f.proxies[i].Cut(false) },
		"answers delayed", func(f *servers, i int) int64 { return int64(f.proxies[i].Late()) },
	},
	{
		"stopped", func(f *servers, i int) { f.must(f.server[i].Pause()) }, func(f *servers, i int) { f.must(f.server[i].Resume()) },
		"processes standing still", func(f *servers, i int) int64 {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", f.server[i].Pid()))
			f.must(err)
			return int64(strings.Count(string(stat), ") T "))
		},
	},
	{
		"restarted empty", func(f *servers, i int) { f.must(f.server[i].Restart()) }, func(*servers, int) {},
		"processes replaced", func(f *servers, i int) int64 { return int64(f.server[i].Pid()) },
	},
	{
		"cut off", func(f *servers, i int) { f.proxies[i].Cut(true) }, func(f *servers, i int) { f.proxies[i].Cut(false) },
		"connections closed or refused", func(f *servers, i int) int64 { return int64(f.proxies[i].Broken()) },
	},
	{
		"late", func(f *servers, i int) { f.proxies[i].Lag(80*time.Millisecond, false) }, func(f *servers, i int) { f.proxies[i].Lag(0, false) },
		"requests delayed", func(f *servers, i int) int64 { return int64(f.proxies[i].Lagged()) },
	},
}

// Any minority may fail, in any way, under load: nothing wrong is told, acquisition
// goes on, and what comes back is taken in without help. FENCEPOST_LONG has all harms, and
// five nodes beside three.
func TestMinorityFailsUnderLoad(t *testing.T) {
	if os.Getenv("FENCEPOST_LONG") == "" {
		testMinorityFails(t, 3, harms[:2])
		return
	}
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) { testMinorityFails(t, n, harms) })
	}
}

func TestSystemMinorityFailsUnderLoad(t *testing.T) { testMinorityFails(t, 3, harms) }

func testMinorityFails(t *testing.T, n int, harms []harm) {
	f := startServers(t, n)
	gateways := []*Store{f.gateway(250 * time.Millisecond), f.gateway(250 * time.Millisecond)}
	await(t, "a new quorum", acquires(gateways[0]))
	l, stop := load(t, gateways)
	defer stop()
	for round, h := range harms {
		l.goesOn(t, "before: "+h.name, 20)
		var hit []int
		for i := range (n - 1) / 2 {
			hit = append(hit, (round+i)%n)
		}
		before := make([]int64, n)
		for _, i := range hit {
			before[i] = h.seen(f, i)
			h.do(f, i)
		}
		l.goesOn(t, "with a minority "+h.name, 30)
		for _, i := range hit {
			did := h.seen(f, i) - before[i]
			if did == 0 {
				t.Errorf("%s: it did nothing: no %s of node %d", h.name, h.what, i)
			}
			if strings.HasPrefix(h.what, "processes") {
				did = min(1, did*did)
			}
			t.Logf("fault %s: %d %s", h.name, did, h.what)
		}
		for _, i := range hit {
			h.heal(f, i)
		}
		await(t, "all votes after: "+h.name, func(ctx context.Context) error { return f.allVote(ctx, gateways[0]) })
	}
	l.goesOn(t, "in the end", 50)
	stop()
	t.Logf("%d grants", l.grants.Load())
}

func (f *servers) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// allVote fails while a node is out of reach, blank or in quarantine.
func (f *servers) allVote(ctx context.Context, s *Store) error {
	for _, node := range s.nodes {
		m, err := node.Memory(ctx)
		switch {
		case err != nil:
			return err
		case !m.InService:
			return errors.New("not in service")
		case m.Quarantine > 0:
			return fmt.Errorf("in quarantine for %s", m.Quarantine)
		}
	}
	return nil
}

// Without a majority nothing is granted, and said so soon; with one again, all goes
// on without help.
func TestMajorityLost(t *testing.T) {
	f := startServers(t, 3)
	s := f.gateway(250 * time.Millisecond)
	await(t, "a new quorum", acquires(s))
	r := request("a")
	r.TTL = time.Minute
	first, err := s.Do(bg, r)
	if err != nil {
		t.Fatal(err)
	}
	f.must(f.server[0].Pause())
	f.proxies[1].Cut(true)
	start := time.Now()
	if _, err := s.Do(bg, request("b")); asError(err) == nil || asError(err).Code != fencing.CodeUnavailable {
		t.Errorf("got %v", err)
	}
	if _, err := s.Do(bg, fencing.RenewRequest{Name: "a", Lease: r.Lease}); asError(err) == nil || asError(err).Code != fencing.CodeUnavailable {
		t.Errorf("got %v", err)
	}
	if took := time.Since(start); took > 30*time.Second { // half of the TTL
		t.Errorf("it took %s", took)
	}
	f.must(f.server[0].Resume())
	f.proxies[1].Cut(false)
	await(t, "a renewal", func(ctx context.Context) error {
		out, err := s.Do(ctx, fencing.RenewRequest{Name: "a", Lease: r.Lease})
		if err == nil && out.Holder.Token != first.Holder.Token {
			t.Errorf("token %d, was %d", out.Holder.Token, first.Holder.Token)
		}
		return err
	})
	await(t, "a grant", acquires(s))
}

// A node that hangs slows nobody down.
func TestStoppedNodeSlowsNobody(t *testing.T) {
	f := startServers(t, 3)
	const nodeTimeout = 4 * time.Second
	s := f.gateway(nodeTimeout)
	await(t, "a new quorum", acquires(s))
	median := func() time.Duration {
		var took []time.Duration
		for i := range 41 {
			r := request(fencing.Name(fmt.Sprintf("m/%d", i)))
			start := time.Now()
			if _, err := s.Do(bg, r); err != nil {
				t.Fatal(err)
			}
			took = append(took, time.Since(start))
			if _, err := s.Do(bg, fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease}); err != nil {
				t.Fatal(err)
			}
		}
		slices.Sort(took)
		return took[len(took)/2]
	}
	before := median()
	f.must(f.server[2].Pause())
	defer func() { f.must(f.server[2].Resume()) }()
	after := median()
	t.Logf("median %s with all nodes, %s with one that hangs", before, after)
	if after > nodeTimeout/4 {
		t.Errorf("the median is %s; somebody waits for the node that hangs", after)
	}
}
