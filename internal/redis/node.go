package redis

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

var (
	errNoMaster = errors.New("redis: no master is known that has this partition")
	errRetired  = errors.New("redis: another node has become the master of this partition")
)

// node is a Redis master as this gateway talks to it. Connections and batchers are
// its own, so that one that is dead holds up no command for another.
type node struct {
	addr         string
	client       *goredis.Client        // nil of the node that stands for none
	batchers     [2 * batchers]*batcher // the second half is for what waits for replicas
	scriptsUntil atomic.Int64           // it has no Functions, as far as is known until then (ns of the gateway's clock)
	tidied       time.Time              // of the one who looks after all nodes
	indexesSeen  atomic.Int64           // when the marks of the indexes were last looked at, ns since 1970
	indexing     atomic.Bool            // indexes are being made anew
	gone         chan struct{}          // closed when it is not known as a master any more

	changes        atomic.Int64           // what gives reason to check, besides partitions that came: another server or none that is a master, an arrival that failed
	checkedReasons atomic.Int64           // reasons(), when its partitions were last checked
	server         string                 // whose partitions these were; of who is arriving
	checked        atomic.Pointer[string] // the same, for those who are not
	last           check                  // of who is entering
	entering       contextMutex           // of who needs a connection to arrive by
	arriving       contextMutex           // of who has one
	topology       *topology
}

// isChecked reports whether its partitions were checked, and what may be lost is in quarantine.
func (n *node) isChecked() bool { return n.checkedReasons.Load() == n.reasons(n.topology.table.Load()) }

// serves returns the server whose partitions were checked; empty: they have to be, first.
func (n *node) serves() string {
	if !n.isChecked() {
		return ""
	}
	return *n.checked.Load()
}

// reasons returns how many reasons to check there were until a table was made: a partition
// comes with the table that says so, so that no command finds it checked.
func (n *node) reasons(t *partitionTable) int64 { return n.changes.Load() + t.gained[n] }

// ready has the partitions checked if they were not yet: what is sent to them would be
// refused otherwise, for what may be lost is not known before that.
func (n *node) ready() error {
	if n.isChecked() {
		return nil
	}
	t := n.topology
	if err := t.store.arriveAt(context.Background(), n, t.options.Clock(), reconcile); !errors.Is(err, errSkewed) {
		return err
	}
	return nil // what grants nothing may go on
}

// check is what the last check of the partitions of a node came to.
type check struct {
	at  time.Time // when it began, or failed
	err error
}

// retired reports whether the node is not known as a master any more.
func (n *node) retired() bool {
	select {
	case <-n.gone:
		return true
	default:
		return false
	}
}

// close ends the node. With errRetired commands that are on their way fail, and
// those that come later as well: they may try again elsewhere. It waits for all of
// them.
func (n *node) close(reason error) error {
	var err error
	if n.client != nil && reason == errRetired { // what it would still answer is of no use
		err = n.client.Close()
	}
	for _, b := range n.batchers {
		b.close(reason)
	}
	if n.client != nil && reason != errRetired {
		err = n.client.Close()
	}
	return err
}

// newNode returns a node that has not been connected to yet.
func (t *topology) newNode(addr string) *node {
	n := &node{addr: addr, topology: t, gone: make(chan struct{}), entering: make(contextMutex, 1), arriving: make(contextMutex, 1)}
	n.changes.Store(1)
	if addr != "" {
		o := t.clientOptions(addr)
		o.OnConnect = func(ctx context.Context, conn *goredis.Conn) error { return t.store.onConnect(ctx, n, conn) }
		n.client = goredis.NewClient(o)
	}
	for i := range n.batchers {
		n.batchers[i] = &batcher{sender: t.sender, node: n, maxInFlight: 1, idle: make(chan struct{}), orphaned: t.store.orphaned}
		if t.options.Uncoalesced {
			n.batchers[i].maxInFlight = math.MaxInt // nothing ever queues
		}
	}
	return n
}

// movedAnswers are first words of answers that say that something has moved.
var movedAnswers = []string{"MOVED", "CLUSTERDOWN", "READONLY", "MASTERDOWN", "LOADING"}

// mayHaveMoved reports whether an error suggests that somebody else is the master: by
// what Redis says, or because it says nothing.
func mayHaveMoved(err error) bool {
	var answer goredis.Error
	if errors.As(err, &answer) && !errors.Is(err, goredis.Nil) {
		word, _, _ := strings.Cut(answer.Error(), " ")
		return slices.Contains(movedAnswers, word)
	}
	return err != nil && !errors.Is(err, goredis.Nil)
}

// at says of which node an error is.
func (n *node) at(err error) error {
	if err == nil || n.addr == "" {
		return err
	}
	return fmt.Errorf("the Redis at %s: %w", n.addr, err)
}
