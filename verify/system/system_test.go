package system

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fencepost/verify/check"
)

// served waits until a lock can be had through a gateway, and gives it back.
func served(t *testing.T, s *System, g *Gateway) {
	t.Helper()
	c := NewClient(1)
	defer c.Close()
	var last Answer
	var err error
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		last, err = c.Acquire(ctx, g, "a/name", "", `{"ttl_ms":500,"wait_ms":1000}`)
		cancel()
		if err == nil && last.Status == http.StatusCreated {
			left := time.Until(last.Deadline())
			if left <= 0 {
				continue // a busy machine has taken longer than the lease lasts
			}
			if left > 500*time.Millisecond {
				t.Errorf("the deadline is %s away", left)
			}
			if _, err := c.Release(t.Context(), g, "a/name", last.Lease.ID); err != nil {
				t.Error(err)
			}
			return
		}
	}
	t.Fatalf("no lock can be had: %s, %v", last, err)
}

// quick keeps the quarantine after a loss short.
var quick = []string{"FENCEPOST_DEFAULT_TTL=500ms", "FENCEPOST_MAX_TTL=1s", "FENCEPOST_QUARANTINE=1s"}

// Every fault does its harm to who is used by clients, and what it did is undone.
func TestFaults(t *testing.T) { onAllFaults(t, Embedded, Redis, Raft, Postgres, MariaDB) }

func TestSystemFaults(t *testing.T) { onAllFaults(t, Sentinel, Cluster, Quorum) }

func onAllFaults(t *testing.T, kinds ...Kind) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			env := quick
			if kind == Quorum {
				env = append(env[:len(env):len(env)], "FENCEPOST_MAX_CLOCK_SKEW=100ms")
			}
			s := StartTest(t, Options{Store: kind, Env: env, Clocks: true, Gateways: gatewaysOf(kind)})
			random := rand.New(rand.NewPCG(1, 1))
			use(t, s)
			var harms check.Harms
			for _, fault := range Faults(kind) {
				did, err := fault.Do(t.Context(), s, random, func() {})
				if err != nil {
					t.Fatal(err)
				}
				harms.Add(fault.Name, did)
				if err := s.AwaitReady(startTimeout); err != nil {
					t.Fatalf("after %s: %v", fault.Name, err)
				}
				for _, g := range s.Gateways {
					served(t, s, g)
				}
			}
			for _, idle := range harms.Idle() {
				t.Error(idle)
			}
			t.Log(strings.Join(harms.Lines(), "\n"))
		})
	}
}

// gatewaysOf returns how many gateways there are: two that tell each other, where one store has several.
func gatewaysOf(kind Kind) int {
	switch kind {
	case Embedded:
		return 1
	case Raft:
		return 3
	}
	return 2
}

// use has clients take and release locks, and wait for each other, until the test ends.
func use(t *testing.T, s *System) {
	ctx, stop := context.WithCancel(t.Context())
	c, unwatch := NewClient(8), s.Watch(ctx)
	var clients sync.WaitGroup
	t.Cleanup(func() {
		stop()
		clients.Wait()
		unwatch()
		c.Close()
	})
	for i := range 8 {
		clients.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				asking, cancel := context.WithTimeout(ctx, 2*time.Second)
				a, err := c.Acquire(asking, s.Gateways[n%len(s.Gateways)], fmt.Sprint("used/", n%3), "", `{"ttl_ms":1000,"wait_ms":500}`)
				if err == nil && a.Status == http.StatusCreated {
					_, _ = c.Release(asking, s.Gateways[n%len(s.Gateways)], fmt.Sprint("used/", n%3), a.Lease.ID)
				}
				cancel()
				Pause(5 * time.Millisecond)
			}
		})
	}
}

// A fault that does nothing to what clients use is told apart from one that does: here the delay of a call that no gateway makes.
func TestAFaultThatDoesNothing(t *testing.T) {
	s := StartTest(t, Options{Store: Embedded, Env: quick})
	use(t, s)
	end := func(calls string) check.Harm {
		harm, err := s.Gateways[0].tamper(calls, "delay_enter=1", "calls delayed")
		if err != nil {
			t.Fatal(err)
		}
		served(t, s, s.Gateways[0]) // the log is written
		did, err := harm.end(t.Context(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return did
	}
	r := check.NewResult(1)
	r.Harms.Add("disk-slow", end(logWrites))
	if n, violations := r.Violations(); n != 0 {
		t.Errorf("of a disk that was slow: %q", violations)
	}
	r.Harms.Add("planted", end("fdatasync"))
	if n, violations := r.Violations(); n != 1 || !strings.Contains(violations[0], "planted did nothing, 1 times: no calls delayed of gateway 1") {
		t.Errorf("of a call that is never made: %q", violations)
	}
}

// A gateway keeps its address and its store over a kill, and is gone after Close.
func TestRestart(t *testing.T) {
	s, err := Start(Options{Store: Embedded})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	g, c := s.Gateways[0], NewClient(1)
	defer c.Close()
	addr, pid := g.Addr(), g.PID()
	held, err := c.Acquire(t.Context(), g, "a", "", "")
	if err != nil || held.Status != http.StatusCreated {
		t.Fatalf("%s, %v", held, err)
	}
	if err := g.Kill(); err != nil || g.Running() {
		t.Fatalf("running after a kill: %t, %v", g.Running(), err)
	}
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	if g.Addr() != addr || g.PID() == pid {
		t.Errorf("started again at %s as %d, was at %s as %d", g.Addr(), g.PID(), addr, pid)
	}
	if again, err := c.Acquire(t.Context(), g, "a", "", ""); err != nil || again.Code != "locked" {
		t.Errorf("the lease is gone: %s, %v", again, err)
	}
	if err := g.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(g.PID(), 0); err == nil || g.Running() {
		t.Errorf("the gateway is alive after Close: %v", err)
	}
	if _, err := os.Stat(s.DataDir()); !os.IsNotExist(err) {
		t.Errorf("the data is there after Close: %v", err)
	}
}

// await asks for locks until something is so: a disk that nobody writes to is neither slow nor quick.
func await(t *testing.T, g *Gateway, what string, is func() (so bool, saw string)) {
	t.Helper()
	c := NewClient(1)
	defer c.Close()
	for deadline := time.Now().Add(startTimeout); ; {
		so, saw := is()
		if so {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s never comes; at last:\n%s", what, saw)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if a, err := c.Acquire(ctx, g, "a/name", "", `{"ttl_ms":60000}`); err == nil && a.Status == http.StatusCreated {
			_, _ = c.Release(ctx, g, "a/name", a.Lease.ID)
		}
		cancel()
	}
}

// A leader each of whose writes takes 1.5 s is a finding at every gateway, and gateway cluster status does not exit with 0, as long
// as that lasts.
func TestSystemASlowDiskIsAFinding(t *testing.T) {
	s := StartTest(t, Options{Store: Raft})
	whole := func() (bool, string) {
		out, err := s.Gateways[0].Command("status")
		return err == nil, out
	}
	await(t, s.Gateways[0], "a whole cluster", whole)
	leader, err := s.Leader(startTimeout)
	if err != nil {
		t.Fatal(err)
	}
	slow, err := leader.tamper(logWrites, "delay_enter=1500000", "calls delayed")
	if err != nil {
		t.Fatal(err)
	}
	release := sync.OnceValue(slow.heal)
	defer func() { _ = release() }()
	await(t, leader, "a slow disk in cluster status", func() (bool, string) {
		out, err := s.Gateways[0].Command("status")
		return err != nil && strings.Contains(out, "the disk of "+leader.Node()+" is slow"), out
	})
	for _, g := range s.Gateways {
		await(t, leader, "a finding of "+g.Node(), func() (bool, string) {
			response, err := http.Get(g.URL() + "/readyz?verbose")
			if err != nil {
				return false, err.Error()
			}
			defer response.Body.Close()
			body, _ := io.ReadAll(response.Body)
			return strings.Contains(string(body), `{"name":"disk","ok":false,"node":"`+leader.Node()+`"`), string(body)
		})
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	await(t, leader, "a whole cluster again", whole)
}

// A program that can't serve is an error that says why, not a wait.
func TestStartThatFails(t *testing.T) {
	begun := time.Now()
	s, err := Start(Options{Env: []string{"FENCEPOST_MIN_TTL=never"}})
	if err == nil {
		t.Fatal(s.Close())
	}
	if time.Since(begun) > 30*time.Second {
		t.Errorf("it took %s", time.Since(begun))
	}
}

// What a gateway must never log is an error of Close.
func TestFlaws(t *testing.T) {
	g := &Gateway{}
	g.keep("{\"msg\":\"serving\"}\n")
	if err := g.Flaws(); err != nil {
		t.Fatal(err)
	}
	g.keep("panic: runtime error\n")
	if g.Flaws() == nil {
		t.Error("a panic is no flaw")
	}
}
