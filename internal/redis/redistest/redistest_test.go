package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The write that only the master had is gone after a fail-over, and one that the
// replicas had is not.
func TestSystemSentinelFailover(t *testing.T) {
	t.Parallel()
	s := StartSentinel(t, 2, 3)
	first := s.Master()
	first.do(t, "set", "kept", "x")
	first.do(t, "wait", 2, 5000)
	s.CutReplication()
	first.do(t, "set", "lost", "x")
	if s.KillMaster() != first {
		t.Error("another was killed")
	}
	second := s.NextMaster(first)
	s.HealReplication()
	if n, _ := second.do(t, "exists", "kept", "lost").Int(); n != 1 {
		t.Errorf("%d of the two keys are there", n)
	}
	s.Connected(1)
	if third := s.Failover(); third == first || third == second {
		t.Error("the master did not change")
	}
	wait(t, "the old master follows the new one", func() bool { return len(s.Replicas()) == 1 })
}

func TestClusterFailover(t *testing.T) {
	t.Parallel()
	const slot = 12182 // of "foo"
	c := StartCluster(t, 3, 3)
	if len(c.Masters()) != 3 || len(c.Replicas()) != 3 {
		t.Fatalf("%d masters and %d replicas", len(c.Masters()), len(c.Replicas()))
	}
	first := c.Owner(slot)
	first.do(t, "set", "foo", "x")
	first.do(t, "wait", 1, 5000)
	c.CutReplication(first)
	first.do(t, "set", "foo", "y")
	if err := first.Kill(); err != nil {
		t.Fatal(err)
	}
	second := c.NextOwner(slot, first)
	c.HealReplication()
	if got, _ := second.do(t, "get", "foo").Text(); got != "x" {
		t.Errorf("got %q", got)
	}
	if err := first.Restart(); err != nil {
		t.Fatal(err)
	}
	wait(t, "the old master follows the new one", func() bool { return len(c.ReplicasOf(second)) == 1 })
	c.Failover(first)
	if got := c.NextOwner(slot, second); got != first {
		t.Error("it did not take over")
	}
	steps := 0
	var to *Server
	for _, one := range c.Masters() {
		if one != first {
			to = one
		}
	}
	c.MoveSlot(slot, to, func() { steps++ })
	if got, _ := to.do(t, "get", "foo").Text(); got != "x" || steps != 2 {
		t.Errorf("got %q after %d steps", got, steps)
	}
}

// A server that is busy stands still, all of it, when Pause returns, and goes on after Resume.
func TestPause(t *testing.T) {
	t.Parallel()
	s := Start(t, "--busy-reply-threshold", "20")
	client := s.Client()
	defer client.Close()
	endless := make(chan error, 1)
	go func() { endless <- client.Eval(t.Context(), "while true do end", nil).Err() }()
	other := s.Client()
	defer other.Close()
	wait(t, "the server is busy", func() bool {
		err := other.Ping(t.Context()).Err()
		return err != nil && strings.HasPrefix(err.Error(), "BUSY")
	})
	for range 100 {
		if err := s.Pause(); err != nil {
			t.Fatal(err)
		}
		if states := threadStates(t, s.Pid()); strings.Trim(states, "T") != "" {
			t.Fatalf("threads of a server that was stopped are in the states %s, want all T", states)
		}
		if err := s.Resume(); err != nil {
			t.Fatal(err)
		}
	}
	if err := other.ScriptKill(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if err := <-endless; err == nil {
		t.Error("a script was not killed")
	}
}

// threadStates returns the letter of each thread of a process, as Linux has them.
func threadStates(t *testing.T, pid int) (states string) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(files) == 0 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, after, _ := strings.Cut(string(text), ") ")
		states += after[:1]
	}
	return states
}
