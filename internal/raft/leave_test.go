package raft

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/fencing"
	"fencepost/internal/snapshots"
	"fencepost/internal/wal"
)

// behind returns which entry the newest snapshot of a node that was stopped ends with, and the commands that its log has behind that.
func (n *node) behind(t *testing.T) (covered uint64, commands []uint64) {
	t.Helper()
	store, err := snapshots.Open(snapshotsIn(n.options.Dir), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	head, _, err := readNewest(store, n.options.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if head != nil {
		covered = head.Index
	}
	log, err := wal.Open(logsIn(n.options.Dir), wal.Options{FileSize: testSegment})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	last, err := log.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	for at := covered + 1; at <= last; at++ {
		var entry raft.Log
		if err := log.GetLog(at, &entry); err != nil {
			t.Fatal(err)
		}
		if entry.Type == raft.LogCommand {
			commands = append(commands, at)
		}
	}
	return covered, commands
}

// leaveRounds is how often nodes are stopped right behind grants: what they had not carried out then differed.
const leaveRounds = 2

// However the nodes of a cluster are stopped right behind a grant, with clients or without, none has a command behind its last snapshot that
// one of them has carried out: another version would decide anew what somebody may have had an answer to.
func TestNodesThatStopLeaveNothingUndecided(t *testing.T) {
	t.Parallel()
	together := func(c *cluster, nodes ...int) {
		var closing sync.WaitGroup
		for _, i := range nodes {
			closing.Go(func() { closes(c.t, c.nodes[i]) })
		}
		closing.Wait()
	}
	for how, stop := range map[string]func(*cluster){
		"all at once":                 func(c *cluster) { together(c, 0, 1, 2) },
		"followers, then the leader":  func(c *cluster) { together(c, 1, 2); together(c, 0) },
		"the leader, then the others": func(c *cluster) { together(c, 0); together(c, 1, 2) },
		"one by one":                  func(c *cluster) { together(c, 1); together(c, 0); together(c, 2) },
	} {
		for _, clients := range []int{0, 4} {
			t.Run(fmt.Sprintf("%s, beside %d clients of each", how, clients), func(t *testing.T) {
				t.Parallel()
				for range leaveRounds {
					c := newCluster(t, 3, func(_ int, o *Options) { o.Election, o.leaveTime = 2*time.Second, time.Minute })
					var asking sync.WaitGroup
					for i, n := range c.nodes {
						s := n.Store
						for range clients {
							asking.Go(func() {
								for j := 0; s.ctx.Err() == nil; j++ {
									_, _ = s.Do(t.Context(), acquire(fencing.Name(fmt.Sprint(i, "/", j)), time.Minute))
								}
							})
						}
					}
					for i, n := range c.nodes {
						if _, err := n.Do(t.Context(), acquire(fencing.Name(fmt.Sprint("last ", i)), time.Minute)); err != nil {
							t.Fatal(err)
						}
					}
					began := time.Now()
					stop(c)
					t.Log("stopped after", time.Since(began))
					asking.Wait()
					var most uint64
					for _, n := range c.nodes {
						covered, _ := n.behind(t)
						most = max(most, covered)
					}
					for i, n := range c.nodes {
						covered, commands := n.behind(t)
						for _, at := range commands {
							if at <= most {
								t.Errorf("node %d has the command %d behind its snapshot, which ends with %d; another has carried it out", i, at, covered)
							}
						}
					}
				}
			})
		}
	}
}
