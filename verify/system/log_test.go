package system

import (
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// page returns what a gateway answers to a GET.
func page(t *testing.T, g *Gateway, path string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, g.URL()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

var lostLines = regexp.MustCompile(`(?m)^fencepost_log_lines_lost_total (\S+)$`)

// lost returns how many lines of its log a gateway has lost.
func lost(t *testing.T, g *Gateway) int {
	t.Helper()
	sample := lostLines.FindStringSubmatch(page(t, g, "/metrics"))
	if sample == nil {
		t.Fatal("fencepost_log_lines_lost_total has no sample")
	}
	n, err := strconv.ParseFloat(sample[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}

// hang lets a gateway's log hang, and has it log until lines are lost. Each request is answered.
func hang(t *testing.T, g *Gateway) {
	t.Helper()
	g.HangLog()
	c := NewClient(1)
	defer c.Close()
	for n := 0; lost(t, g) == 0; n++ {
		if n == 200 {
			t.Fatal("no line was lost: the log can't hang")
		}
		for range 200 {
			late(t, c, g)
		}
	}
}

// late has a gateway answer a renewal of a lease that is gone, which it logs.
func late(t *testing.T, c *Client, g *Gateway) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	if a, err := c.Renew(ctx, g, "late", "01"+strings.Repeat("A", 24)+"."+strings.Repeat("A", 22), "{}"); err != nil || a.Status != http.StatusPreconditionFailed {
		t.Fatalf("a renewal of a lease that is gone: %s, %v", a, err)
	}
}

// logIs waits until /readyz?verbose says of a gateway's log whether it is well.
func logIs(t *testing.T, g *Gateway, well bool) {
	t.Helper()
	want := `{"name":"log","ok":` + strconv.FormatBool(well)
	var said string
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if said = page(t, g, "/readyz?verbose"); strings.Contains(said, want) {
			return
		}
	}
	t.Fatalf("/readyz?verbose never has %s: %s", want, said)
}

// recovers has a gateway's log be read again, which says how many lines were lost.
func recovers(t *testing.T, g *Gateway) {
	t.Helper()
	if n := lost(t, g); n == 0 {
		t.Fatal("no line was lost")
	}
	g.ReadLog()
	logIs(t, g, true)
	for deadline := time.Now().Add(startTimeout); !g.said(`"msg":"lines of the log were lost`); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the log does not say that lines were lost:\n%s", g.Log())
		}
	}
	var gap struct{ Lines int }
	for line := range strings.Lines(g.Log()) {
		if strings.Contains(line, `"msg":"lines of the log were lost`) {
			if err := json.Unmarshal([]byte(line), &gap); err != nil {
				t.Error(err)
			}
		}
	}
	if n := lost(t, g); gap.Lines == 0 || gap.Lines > n {
		t.Errorf("the log says that %d lines were lost, the metric %d", gap.Lines, n)
	}
}

// A gateway whose log nobody reads answers everything, and ends when it is told to.
func TestSystemALogThatHangs(t *testing.T) {
	s := StartTest(t, Options{Store: Embedded})
	g, c := s.Gateways[0], NewClient(1)
	defer c.Close()
	logIs(t, g, true)
	hang(t, g)
	logIs(t, g, false)
	held, err := c.Acquire(t.Context(), g, "a", "", "")
	if err != nil || held.Status != http.StatusCreated {
		t.Fatalf("%s, %v", held, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	if a, err := c.Break(ctx, g, "a", uint64(held.Lease.Token)); err != nil || a.Status != http.StatusNoContent {
		t.Errorf("a break: %s, %v", a, err)
	}
	recovers(t, g)
	late(t, c, g)
	hang(t, g)
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
	g.ReadLog()
}

// Where the audit is required, nothing is broken while its line could not be written.
func TestSystemTheAuditIsRequired(t *testing.T) {
	s := StartTest(t, Options{Store: Embedded, Env: []string{"FENCEPOST_AUDIT_REQUIRED=true"}})
	g, c := s.Gateways[0], NewClient(1)
	defer c.Close()
	held, err := c.Acquire(t.Context(), g, "a", "", `{"ttl_ms":600000}`)
	if err != nil || held.Status != http.StatusCreated {
		t.Fatalf("%s, %v", held, err)
	}
	hang(t, g)
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	if a, err := c.Break(ctx, g, "a", uint64(held.Lease.Token)); err != nil || a.Code != "unavailable" || !strings.Contains(string(a.Body), "nothing was done") {
		t.Errorf("a break without its audit: %s, %v", a, err)
	}
	if a, err := c.Renew(ctx, g, "a", held.Lease.ID, "{}"); err != nil || a.Status != http.StatusOK {
		t.Errorf("a renewal: %s, %v", a, err)
	}
	recovers(t, g)
	if a, err := c.Break(ctx, g, "a", uint64(held.Lease.Token)); err != nil || a.Status != http.StatusNoContent {
		t.Errorf("a break: %s, %v", a, err)
	}
	if err := g.Stop(); err != nil {
		t.Fatal(err)
	}
	if !g.said(`"event":"break"`) {
		t.Errorf("the audit has no break:\n%s", g.Log())
	}
}

// What ends a gateway is in its log, though that was slow to be read.
func TestSystemTheLastWords(t *testing.T) {
	s := StartTest(t, Options{Store: Embedded})
	g := s.Gateways[0]
	if err := g.Stop(); err != nil {
		t.Fatal(err)
	}
	taken := &Gateway{build: g.build, env: append(append([]string(nil), g.env...), "FENCEPOST_DATA_DIR=/dev/null/none")}
	if err := taken.Launch(); err == nil || !strings.Contains(taken.Log(), "gateway: FENCEPOST_DATA_DIR: ") {
		t.Errorf("%v; the log is %q", err, taken.Log())
	}
}

// A cluster goes on without its leader while logs hang: that of one node that stays, or all.
func TestSystemLogsOfAClusterHang(t *testing.T) {
	for _, which := range []string{"one", "all"} {
		t.Run(which, func(t *testing.T) {
			s := StartTest(t, Options{Store: Raft})
			leader, err := s.Leader(startTimeout)
			if err != nil {
				t.Fatal(err)
			}
			var hung []*Gateway
			for _, g := range s.Gateways {
				if which == "all" || g != leader && len(hung) == 0 {
					hang(t, g)
					hung = append(hung, g)
				}
			}
			for _, g := range s.Gateways {
				for _, of := range hung {
					await(t, g, "a finding at "+g.Node(), func() (bool, string) {
						said := page(t, g, "/readyz?verbose")
						return strings.Contains(said, `{"name":"log","ok":false,"node":"`+of.Node()+`"`), said
					})
				}
			}
			out, err := s.Gateways[0].Command("status")
			for _, g := range hung {
				if err != nil || !strings.Contains(out, "the log of "+g.Node()+" can't be written: ") {
					t.Errorf("gateway cluster status: %s, %v", out, err)
				}
			}
			if out, err := s.Gateways[0].Command("status", "-json"); err != nil || strings.Count(out, `"log_hangs": true`) != len(hung) {
				t.Errorf("gateway cluster status -json: %s, %v", out, err)
			}
			if err := leader.Kill(); err != nil {
				t.Fatal(err)
			}
			for _, g := range s.Gateways {
				if g != leader {
					served(t, s, g)
				}
			}
			for _, g := range hung {
				if g != leader {
					recovers(t, g)
				}
			}
			leader.ReadLog()
			if err := leader.Start(); err != nil {
				t.Fatal(err)
			}
			await(t, leader, "a cluster without a word of logs", func() (bool, string) {
				out, err := s.Gateways[0].Command("status")
				return err == nil && !strings.Contains(out, "the log of"), out
			})
			for _, g := range s.Gateways {
				if err := g.Stop(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A gateway whose log hangs is back when its store is.
func TestSystemAStoreRestartsWhileALogHangs(t *testing.T) {
	for kind, name := range map[Kind]string{Redis: "node-kill", Postgres: "database-restart"} {
		t.Run(string(kind), func(t *testing.T) {
			s := StartTest(t, Options{Store: kind, Env: quick})
			restart, err := FaultNamed(kind, name)
			if err != nil {
				t.Fatal(err)
			}
			g := s.Gateways[0]
			hang(t, g)
			for range 2 {
				if did, err := restart.Do(t.Context(), s, rand.New(rand.NewPCG(1, 1)), func() {}); err != nil || did.N == 0 {
					t.Fatalf("%+v, %v", did, err)
				}
				if err := g.AwaitReady(startTimeout); err != nil {
					t.Fatal(err)
				}
				served(t, s, g)
			}
			recovers(t, g)
			if err := g.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
}
