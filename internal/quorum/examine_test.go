package quorum

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis"
	"fencepost/internal/redis/redistest"
)

// stands returns the finding on how a quorum stands, and all others.
func stands(t *testing.T, s *Store) (fencing.Finding, []fencing.Finding) {
	t.Helper()
	found, err := s.Examine(bg)
	if err != nil {
		t.Fatal(err)
	}
	last := len(found) - 1
	for _, f := range found {
		if (f.Check == "quorum" || f.Check == "access") && f.Promise != "" {
			t.Errorf("nothing is granted there, and it endangers %s: %+v", f.Promise, f)
		}
	}
	if found[last].Check != "quorum" {
		t.Fatalf("%+v", found)
	}
	return found[last], found[:last]
}

func says(t *testing.T, f fencing.Finding, ok bool, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(f.Detail, w) {
			t.Errorf("%q does not say %q", f.Detail, w)
		}
	}
	if f.OK != ok || f.OK == (f.Remedy != "") {
		t.Errorf("%+v", f)
	}
}

// A node that has forgotten counts as voting no sooner than it does.
func TestNodeInQuarantineDoesNotVote(t *testing.T) {
	play(t, func(s *scene) {
		f, _ := stands(t, s.Store)
		says(t, f, true, "3 of 3 nodes vote")
		s.nodes[1].forget()
		f, _ = stands(t, s.Store)
		says(t, f, false, "2 of 3 nodes vote", "empty: 2", "no more may fail")
		stats, err := s.Stats(bg)
		if err != nil || stats.Quarantine < 30*time.Second {
			t.Errorf("a blank node, and %+v, %v", stats, err)
		}
		s.pass(5 * time.Second)
		f, _ = stands(t, s.Store)
		says(t, f, false, "2 of 3 nodes vote", "in quarantine: 2 for 2", "no more may fail")
		stats, err = s.Stats(bg)
		if err != nil || stats.Quarantine < 20*time.Second || stats.Quarantine > 30*time.Second {
			t.Errorf("a node in quarantine, and %+v, %v", stats, err)
		}
		s.pass(stats.Quarantine)
		f, _ = stands(t, s.Store)
		says(t, f, true, "3 of 3 nodes vote", "1 more may fail")
		if stats, err := s.Stats(bg); err != nil || stats.Quarantine != 0 {
			t.Errorf("%+v, %v", stats, err)
		}
	})
}

// messages is a log.
type messages struct {
	slog.Handler
	mu  sync.Mutex
	had []string
}

func (m *messages) Handle(_ context.Context, r slog.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "node" {
			m.had = append(m.had, r.Level.String()+" "+a.Value.String())
		}
		return true
	})
	return nil
}

func (m *messages) WithAttrs([]slog.Attr) slog.Handler { return m }

func TestNodeOutOfReachIsTold(t *testing.T) {
	play(t, func(s *scene) {
		log := &messages{Handler: quiet.Handler()}
		s.Store = s.openWith(func(o *Options) { o.Logger = slog.New(log) })
		synctest.Wait()
		for range 2 {
			s.nodes[1].set(func(n *node) { n.cut = true })
			s.pass(10 * time.Second)
			f, others := stands(t, s.Store)
			says(t, f, false, "2 of 3 nodes vote", "out of reach: 2", "no more may fail")
			if len(others) != 1 || others[0].Node != "2" || others[0].OK || !strings.Contains(others[0].Detail, errCut.Error()) {
				t.Errorf("%+v", others)
			}
			s.nodes[1].set(func(n *node) { n.cut = false })
			s.pass(10 * time.Second)
		}
		log.mu.Lock()
		defer log.mu.Unlock()
		if got, want := fmt.Sprint(log.had), "[WARN 2 INFO 2 WARN 2 INFO 2]"; got != want {
			t.Errorf("the log has %s, want %s", got, want)
		}
	})
}

// Whoever examines a quorum as soon as it is open finds it in service.
func TestExamineAwaitsAdmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newNodes(t, 3)
		for _, n := range s.nodes {
			n.before = func(op string) {
				if op == "enroll" {
					advance(300 * time.Millisecond)
				}
			}
		}
		passive := s.openWith(func(o *Options) { o.Passive = true })
		f, _ := stands(t, passive)
		says(t, f, true, "a new quorum")
		s.Store = s.open()
		f, _ = stands(t, s.Store)
		says(t, f, true, "3 of 3 nodes vote")
		f, _ = stands(t, passive)
		says(t, f, true, "3 of 3 nodes vote")
	})
}

// An examination does not wait for long.
func TestExamineAwaitsAdmissionBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newNodes(t, 3)
		for _, n := range s.nodes {
			n.before = func(op string) {
				if op == "enroll" {
					advance(time.Hour)
				}
			}
		}
		start := time.Now()
		s.Store = s.open()
		f, _ := stands(t, s.Store)
		says(t, f, false, "0 of 3 nodes vote", "empty: 1, 2, 3", "nothing is granted")
		if took := time.Since(start); took > admissionTime {
			t.Errorf("it took %s", took)
		}
	})
}

// A node that can't be used says why.
func TestExamineTellsCauses(t *testing.T) {
	causes := []string{"NOREPLICAS", "NOAUTH", "replica", syscall.ECONNREFUSED.Error(), "i/o timeout"}
	f := &servers{t: t}
	var nodes []fencing.Node
	for _, args := range [][]string{nil, {"--requirepass", "another"}, {"--replicaof", "127.0.0.1 1"}, nil, nil} {
		server := redistest.Start(t, args...)
		node, err := redis.Open(t.Context(), redis.Options{URL: server.URL(), Member: true, Logger: quiet, MaxSkew: realSkew})
		if err != nil {
			t.Fatal(err)
		}
		f.server, nodes = append(f.server, server), append(nodes, node)
	}
	s, err := Open(nodes, Options{MaxSkew: realSkew, Logger: quiet, tick: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	client := f.server[0].Client()
	f.must(client.ConfigSet(bg, "min-replicas-to-write", "1").Err())
	f.must(client.Close())
	f.must(f.server[3].Kill())
	f.must(f.server[4].Pause())
	stand, others := stands(t, s)
	f.must(f.server[4].Resume())
	f.must(f.server[3].Restart())
	await(t, "the node that was killed", func(ctx context.Context) error {
		_, err := s.nodes[3].Memory(ctx)
		return err
	}) // or its pool goes on trying for a while after it was closed
	f.must(s.Close())
	says(t, stand, false, "0 of 5 nodes vote", "out of reach: 1, 4, 5", "refusing: 2, 3", "nothing is granted")
	told := 0
	for _, f := range others {
		if f.Check != "access" {
			continue
		}
		if told++; f.Node != fmt.Sprint(told) || !strings.Contains(f.Detail, causes[told-1]) {
			t.Errorf("%s does not say %q: %s", f.Node, causes[told-1], f.Detail)
		}
	}
	if told != len(causes) {
		t.Errorf("%d nodes say why", told)
	}
}
