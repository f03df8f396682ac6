package raft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/datadir"
	"fencepost/internal/machine"
)

// Network carries the connections of hashicorp/raft between nodes. Whoever gets through
// it may change everything: it must know the nodes on both ends.
type Network interface {
	net.Listener // Accept returns connections of other nodes; Addr is what other nodes dial

	// Dial connects to the node at an address, a Member's.
	Dial(address string, timeout time.Duration) (net.Conn, error)
}

// Calls carries requests between nodes, in any order. Requests and answers have at most
// MaxMessage bytes.
type Calls interface {
	// Call has the node at an address, a Member's, handle a request, and returns its
	// answer. After an error other than ErrNotSent the request may have been handled, or be
	// handled later.
	Call(ctx context.Context, address string, request []byte) (answer []byte, err error)

	// Handle says who handles the requests of other nodes from now on; nil is nobody any
	// more, and it returns when none is being handled. The handler is called from many
	// goroutines. An error is the caller's as well, whatever it says.
	Handle(handler func(ctx context.Context, request []byte) (answer []byte, err error))
}

// ErrNotSent is what an error of Calls.Call is if the request was certainly not handled, nor will be.
var ErrNotSent = errors.New("the node was not asked")

// MaxMessage is the size of the largest request or answer between nodes, in bytes: a page
// of a list with as many holders as are shown.
const MaxMessage = 64 << 20

// Member is a node of a cluster.
type Member struct {
	ID      string // of a node for all time: a node that has lost its data comes back under another one
	Address string // host:port, as other nodes dial it
}

// DefaultElection is how long a node hears nothing of a leader before it stands for election, or
// votes for another one: hashicorp/raft looks once in one to two of these, so it notices
// after three at most. An election waits for as many to notice as are a majority: from the death of a leader
// to the next grant it is about a second. A pause of the leader that is shorter changes nothing.
const DefaultElection = 500 * time.Millisecond

// Format is that of the log and of messages between nodes: see machine.Format.
const Format = machine.Format

// Options says what a node of a cluster is. Network and Calls belong to the store from
// Open on, which closes Network.
type Options struct {
	Dir     string        // of this node alone: made with mode 0700 if missing
	Lock    *datadir.Lock // on Dir, if whoever opens the store has it already and keeps it until the store is closed; else nil
	Self    Member
	Network Network
	Calls   Calls

	// Members are those of a new cluster, Self among them, and the same at each of its
	// nodes. They count where Dir is empty; empty there: the node waits until a cluster
	// takes it in.
	Members []Member

	// Alone is asked before a node starts whose data has no other member, or is that of a store without peers, with which
	// it is to found a cluster: after an error it does not start. nil: it may.
	Alone func(founds bool) error

	Logger     *slog.Logger  // nil discards
	Election   time.Duration // 0 is DefaultElection; at least 10 ms
	MaxHolders int           // of one name: see fencing.Guard; 0 is any number
	Version    string        // of the gateway: the log says which one wrote it

	wall      func() time.Time        // for tests: the wall clock
	monotonic func() time.Duration    // for tests: the clock that goes on; since whenever
	rules     int                     // for tests: the newest that the node knows; 0 is fencing.NewestRules
	closeTime time.Duration           // for tests: how long the last snapshot may take
	leaveTime time.Duration           // for tests: how long it may take to have carried out what the log has, at a stop
	stopTime  time.Duration           // for tests: how long the goroutines of hashicorp/raft may take to end
	stepLimit int                     // for tests: see fencing.Guard; only Expire and Heartbeat go on then
	segment   int                     // for tests: the size of a file of the log; 0 is segmentSize
	wrapLog   func(walStore) walStore // for tests: a disk that fails

	// free is for tests: how many bytes are free in a directory, if that is known. Nil is datadir.Free.
	free func(dir string) (bytes int64, known bool)

	sync func(dir string) error // for tests; nil is datadir.Sync
}

// commitTimeout is how long after an entry a follower hears that it is committed, twice as
// long at most, if no other entry follows: so late are its events. What its waiters are
// granted it hears from the leader before that.
const commitTimeout = 25 * time.Millisecond

// ioTimeout is how long a connection between nodes may stand still.
const ioTimeout = 5 * time.Second

// trailingLogs is how many entries stay behind a snapshot: who is behind by less need not
// be sent all of the state.
const trailingLogs = 2048

// complete puts in what was left out, and reports what can't be.
func (o *Options) complete() error {
	switch {
	case o.Self.ID == "" || o.Self.Address == "":
		return errors.New("a node needs an ID and an address")
	case o.Dir == "":
		return errors.New("a node needs a directory")
	case o.Network == nil || o.Calls == nil:
		return errors.New("a node needs connections to others")
	}
	o.Election = cmp.Or(o.Election, DefaultElection)
	if o.Election < leastElection {
		return fmt.Errorf("the time without a leader before an election is %s; it is at least %s", o.Election, leastElection)
	}
	if len(o.Members) > 0 && !slices.Contains(o.Members, o.Self) {
		return fmt.Errorf("the members of the new cluster do not have %s at %s, which is this node", o.Self.ID, o.Self.Address)
	}
	o.segment = cmp.Or(o.segment, segmentSize)
	if o.free == nil {
		o.free = datadir.Free
	}
	if o.sync == nil {
		o.sync = datadir.Sync
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// clocks returns how the wall clock and the one that goes on are read at one moment.
func (o *Options) clocks() func() (wall time.Time, monotonic time.Duration) {
	start := time.Now()
	return func() (time.Time, time.Duration) {
		now := time.Now()
		wall, monotonic := now, now.Sub(start)
		if o.wall != nil {
			wall = o.wall()
		}
		if o.monotonic != nil {
			monotonic = o.monotonic()
		}
		return wall, monotonic
	}
}

// leastElection is the least Options.Election: hashicorp/raft beats ten times as often.
const leastElection = 10 * time.Millisecond

// config returns the options of hashicorp/raft.
func (o *Options) config(notify chan<- bool) *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(o.Self.ID)
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = o.Election, o.Election, o.Election
	c.CommitTimeout = commitTimeout
	c.TrailingLogs = trailingLogs
	c.ShutdownOnRemove = false
	c.NoLegacyTelemetry = true
	c.NotifyCh = notify
	c.Logger = newLogger(o.Logger, "raft")
	return c
}

func configurationOf(members []Member) (c raft.Configuration) {
	for _, m := range members {
		c.Servers = append(c.Servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(m.ID), Address: raft.ServerAddress(m.Address)})
	}
	return c
}
