package system

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
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

// Every fault of one Redis, of databases and of the embedded store does its harm, and what it did is
// undone: those of the others take longer, and are done in soaks: go run ./verify -only soak-cluster.
func TestFaults(t *testing.T) {
	for _, kind := range []Kind{Embedded, Redis, Raft, Postgres, MariaDB} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := StartTest(t, Options{Store: kind, Env: quick, Clocks: true})
			random := rand.New(rand.NewPCG(1, 1))
			for _, fault := range Faults(kind) {
				heal, err := fault.Inject(s, random)
				if err != nil {
					t.Fatalf("%s: %v", fault.Name, err)
				}
				if err := heal(); err != nil {
					t.Fatalf("heal of %s: %v", fault.Name, err)
				}
				if err := s.AwaitReady(startTimeout); err != nil {
					t.Fatalf("after %s: %v", fault.Name, err)
				}
				for _, g := range s.Gateways {
					served(t, s, g)
				}
			}
		})
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
	release, err := leader.tamper(logWrites, "delay_enter=1500000")
	if err != nil {
		t.Fatal(err)
	}
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
