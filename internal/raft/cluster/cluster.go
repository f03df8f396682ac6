package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/datadir"
	"fencepost/internal/disk"
	"fencepost/internal/raft/peer"
	"fencepost/internal/wal"
)

const (
	// tendInterval is how often a node looks after the cluster.
	tendInterval = 300 * time.Millisecond

	// askTimeout bounds how long another node is waited for.
	askTimeout = time.Second

	// changeTimeout bounds how long a change of the configuration may take.
	changeTimeout = 5 * time.Second

	// lostAfter is how long a node with data hears of no leader until it asks others whether
	// it was removed.
	lostAfter = 3 * time.Second

	// doubtFor is how long the node that begins a cluster must have had its address for itself.
	doubtFor = 3 * time.Second

	// nearlyAll is how many entries a node may be behind that is given a vote.
	nearlyAll = 256

	// aloneAfter is for how long a node whose data has no other member waits at its start for the others
	// of its list, and how often it asks them afterwards.
	aloneAfter = 3 * time.Second

	// tellAgain is how often at most it is logged that the reason has changed why a node has no part in a cluster.
	tellAgain = 10 * time.Second

	// MaxNodes is how many nodes a cluster may have: each more makes every write slower.
	MaxNodes = 9
)

// Options say which node this is.
type Options struct {
	Dir    string   // where the id is kept, beside Raft's data
	Expect bool     // a cluster is expected: this node forms none, and a node that has no others does not start without data
	Nodes  []string // the addresses of a new cluster, the same at each of its nodes
	Addr   string   // this node's, as others reach it
	Listen string   // host:port to listen on; empty: Addr

	Credentials *peer.Credentials // see peer.Options
	Version     string            // of the program, which others show
	Format      int               // of the log: see peer.Options
	Logger      *slog.Logger      // default: none
	Audit       *slog.Logger      // is told of changes of the cluster; default: none
}

// Cluster is a node's part in it.
type Cluster struct {
	options Options
	log     *slog.Logger
	peer    *peer.Peer
	calls   *Calls
	lock    *datadir.Lock
	self    peer.Node
	nodes   []string // sorted

	raft    *raft.Raft  // set by Start
	fail    func(error) // set by Start
	ctx     context.Context
	end     context.CancelFunc
	running sync.WaitGroup
	leaves  atomic.Bool // see StepDown
	founds  atomic.Bool // see Alone

	mu        sync.Mutex
	condition string // why this node is not in a cluster; empty if it is
	told      time.Time
	led       time.Time
	alone     time.Time                    // when it was looked last who else is in the list
	members   []raft.Server                // of the last look
	changed   func()                       // see OnChange
	rules     func() (inForce, known int)  // see TellRules; nil: nobody tells
	seal      func(context.Context)        // the same
	disk      func() (time.Duration, bool) // how long a write to this node's log takes; nil: see TellDiskTime
	logging   func() (uint64, bool)        // how this node's log is; nil: see TellLog
	first     map[string]time.Time         // who was found at the address that begins the cluster, by id, and when last
	changing  sync.Mutex                   // held for a change of the configuration
}

// ErrDirectory is wrapped by an error of Open about Options.Dir.
var ErrDirectory = errors.New("the data directory of this node can't be used")

// lockPatience is how long a predecessor may take that is just shutting down.
const lockPatience = time.Second

// Open has the directory for this process alone, finds out who this node is, and listens. The Raft that uses Network and
// Calls belongs to Start.
func Open(o Options) (*Cluster, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Expect && len(o.Nodes) == 1 {
		if there, err := disk.There(o.Dir, wal.FilesOr(nil)); err != nil || !there {
			return nil, fmt.Errorf("%w: %w", ErrDirectory, cmp.Or(err, disk.Expected(o.Dir)))
		}
	}
	lock, id, fresh, err := openID(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDirectory, datadir.Explained(o.Dir, err))
	}
	c := &Cluster{
		options: o, log: o.Logger, lock: lock, calls: &Calls{}, self: peer.Node{ID: id, Addr: o.Addr},
		nodes: slices.Sorted(slices.Values(o.Nodes)), condition: "the node is starting", led: time.Now(), first: map[string]time.Time{},
	}
	c.ctx, c.end = context.WithCancel(context.Background())
	c.peer, err = peer.Open(peer.Options{
		Self: c.self, Listen: o.Listen, Format: o.Format, Credentials: o.Credentials, Handler: c.handle, Logger: o.Logger,
	})
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	c.calls.peer = c.peer
	if fresh { // once it listens: who has the address already may be this node, at another directory
		if err := writeID(o.Dir, id, lock.Held); err != nil {
			return nil, errors.Join(fmt.Errorf("%w: %w", ErrDirectory, datadir.Explained(o.Dir, err)), c.Close())
		}
	}
	return c, nil
}

// openID locks a directory, makes it where there is none, and returns what loadID does.
func openID(dir string) (lock *datadir.Lock, id string, fresh bool, err error) {
	if err := datadir.Make(dir, datadir.Sync); err != nil {
		return nil, "", false, err
	}
	if lock, err = datadir.Take(dir, lockPatience); err != nil {
		return nil, "", false, err
	}
	if id, fresh, err = loadID(dir); err != nil {
		return nil, "", false, errors.Join(err, lock.Close())
	}
	return lock, id, fresh, nil
}

// Lock returns the lock on the directory, which the cluster has until Close.
func (c *Cluster) Lock() *datadir.Lock { return c.lock }

// Self returns who this node is: its address in Raft's configuration is what String returns.
func (c *Cluster) Self() peer.Node { return c.self }

// Network returns what carries Raft's messages.
func (c *Cluster) Network() *peer.StreamLayer { return c.peer.StreamLayer() }

// Calls returns what carries the store's requests between nodes.
func (c *Cluster) Calls() *Calls { return c.calls }

// Start has this node's Raft take part: it forms a cluster with the others, or joins theirs. It calls fail,
// once or more, if the node must not go on.
func (c *Cluster) Start(r *raft.Raft, fail func(error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raft, c.fail = r, fail
	c.running.Go(c.tend)
}

// Stop ends what Start began. Raft may be shut down after it; then comes Close. It may be
// called twice, and before Start.
func (c *Cluster) Stop() {
	c.end()
	c.running.Wait()
}

// Close ends all connections with other nodes, and lets go of the directory.
func (c *Cluster) Close() error {
	c.Stop()
	return errors.Join(c.peer.Close(), c.lock.Close())
}

// started returns Raft, nil before Start.
func (c *Cluster) started() *raft.Raft {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.raft
}

// tend looks after the cluster until Stop.
func (c *Cluster) tend() {
	ticker := time.NewTicker(tendInterval)
	defer ticker.Stop()
	for {
		c.look()
		select {
		case <-ticker.C:
		case <-c.ctx.Done():
			return
		}
	}
}

// OnChange has a function called whenever the members have changed, soon after this node has heard of it; once at
// the start too. It is to return at once.
func (c *Cluster) OnChange(changed func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed = changed
	if len(c.members) > 0 {
		changed()
	}
}

// TellDiskTime has all who ask this node told how long its disk takes for a write, as took says; it returns false where that is
// not known.
func (c *Cluster) TellDiskTime(took func() (time.Duration, bool)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.disk = took
}

// TellLog has all who ask this node told how many lines of its log were lost since its start, and whether they can't be
// written now, as condition says.
func (c *Cluster) TellLog(condition func() (lost uint64, hangs bool)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.logging = condition
}

// logState returns it; nothing where nobody has said.
func (c *Cluster) logState() (lost uint64, hangs bool) {
	c.mu.Lock()
	logging := c.logging
	c.mu.Unlock()
	if logging == nil {
		return 0, false
	}
	return logging()
}

// TellRules has all who ask this node told which rules are in force, and the newest that it knows. seal is called before this node hands
// over the lead.
func (c *Cluster) TellRules(rules func() (inForce, known int), seal func(context.Context)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rules, c.seal = rules, seal
}

// rulesOf returns what TellRules tells; 0 where nobody does.
func (c *Cluster) rulesOf() (inForce, known int) {
	c.mu.Lock()
	rules := c.rules
	c.mu.Unlock()
	if rules == nil {
		return 0, 0
	}
	return rules()
}

// diskTime returns it in ms, -1 if it is not known.
func (c *Cluster) diskTime() int64 {
	c.mu.Lock()
	disk := c.disk
	c.mu.Unlock()
	if disk != nil {
		if took, known := disk(); known {
			return took.Milliseconds()
		}
	}
	return -1
}

// noteMembers tells of the members if they are others than before. hashicorp/raft tells nobody but its leader, and
// gives its configurations no index.
func (c *Cluster) noteMembers(members []raft.Server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Equal(members, c.members) {
		return
	}
	c.members = slices.Clone(members)
	if c.changed != nil {
		c.changed()
	}
}

// look does what is to be done now.
func (c *Cluster) look() {
	r := c.started()
	if config := r.GetConfiguration(); config.Error() == nil {
		c.noteMembers(config.Configuration().Servers)
	}
	if address, leader := r.LeaderWithID(); leader != "" {
		c.mu.Lock()
		c.led = time.Now()
		c.mu.Unlock()
		if c.removedBy(r, addrOf(string(address))) {
			c.note(c.noMember())
			return
		}
		c.note("")
		if r.State() == raft.Leader {
			c.promote(r)
			c.lookAround(r)
		}
		return
	}
	switch blank, err := isBlank(r); {
	case err != nil:
		c.note(err.Error())
	case blank:
		c.note(c.form(r))
	case c.lost():
		c.note(c.removed(r))
	}
}

// lost reports whether no leader was heard of for long.
func (c *Cluster) lost() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.led) > lostAfter
}

// note keeps, and logs once, why this node takes no part in a cluster; details that change, now and then.
func (c *Cluster) note(condition string) {
	c.mu.Lock()
	before, now := c.condition, time.Now()
	c.condition = condition
	news := headline(before) != headline(condition) || before != condition && now.Sub(c.told) > tellAgain
	if news {
		c.told = now
	}
	c.mu.Unlock()
	switch {
	case !news:
	case condition == "":
		leader, _ := c.started().LeaderWithID()
		c.log.Info("this node takes part in the cluster", "node", c.self.Addr, "id", c.self.ID, "leader", addrOf(string(leader)))
	default:
		c.log.Warn("this node takes no part in a cluster", "node", c.self.Addr, "id", c.self.ID, "reason", condition)
	}
}

// headline is a condition without its details.
func headline(condition string) string {
	before, _, _ := strings.Cut(condition, "; ")
	return before
}

// Condition says why this node takes no part in a cluster; empty if it has.
func (c *Cluster) Condition() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.condition
}

// isBlank reports whether a node knows nothing: its log is empty, and it has no snapshot. It may
// have voted, which promises nothing to anybody once its candidate is gone.
func isBlank(r *raft.Raft) (bool, error) {
	config := r.GetConfiguration()
	if err := config.Error(); err != nil {
		return false, err
	}
	return r.LastIndex() == 0 && len(config.Configuration().Servers) == 0, nil
}

// addrOf returns host and port of an address in Raft's configuration.
func addrOf(address string) string {
	if node, err := peer.ParseNode(address); err == nil {
		return node.Addr
	}
	return address
}

// form begins a cluster, or asks one that there is to be taken in. It returns what is missing.
func (c *Cluster) form(r *raft.Raft) (missing string) {
	infos := c.askAll(c.others())
	if c.leaves.Load() {
		return leaving
	}
	for _, of := range infos {
		if of.err == nil && !of.info.Blank && of.info.State != starting {
			return c.join(of.info)
		}
	}
	members := []raft.Server{server(c.self, raft.Voter)}
	for _, of := range infos {
		switch {
		case of.err != nil:
			return fmt.Sprintf("a new cluster is formed when all nodes of FENCEPOST_STORE have been reached, and %s was not: %s", of.addr, reason(of.err))
		case of.info.State == starting:
			return fmt.Sprintf("a new cluster is formed when all nodes of FENCEPOST_STORE have been reached; %s is starting", of.addr)
		case !slices.Equal(of.info.Nodes, c.nodes):
			return fmt.Sprintf("the nodes have different lists in FENCEPOST_STORE: here %v, at %s %v", c.nodes, of.addr, of.info.Nodes)
		case of.info.Addr != of.addr:
			return fmt.Sprintf("the node at %s has another address in its own settings (FENCEPOST_CLUSTER_ADDR): %s", of.addr, of.info.Addr)
		case slices.ContainsFunc(members, func(s raft.Server) bool { return string(s.ID) == of.info.ID }):
			return fmt.Sprintf("two nodes have the same id, that of %s: the data of one was copied to the other", of.addr)
		}
		members = append(members, server(peer.Node{ID: of.info.ID, Addr: of.addr}, raft.Voter))
	}
	if c.self.Addr != c.nodes[0] {
		return "the cluster is formed when " + c.nodes[0] + ", which has the lowest address, has written its first entry"
	}
	if c.options.Expect {
		return disk.Expected(c.options.Dir).Error()
	}
	if missing := c.vouched(); missing != "" {
		return missing
	}
	if c.leaves.Load() {
		return leaving
	}
	c.log.Warn("a new, empty cluster is formed: no node has data", "nodes", c.nodes, "directory", disk.Absolute(c.options.Dir))
	if err := r.BootstrapCluster(raft.Configuration{Servers: members}).Error(); err != nil && !errors.Is(err, raft.ErrCantBootstrap) {
		return "the cluster can't be formed: " + err.Error()
	}
	return ""
}

func server(node peer.Node, suffrage raft.ServerSuffrage) raft.Server {
	return raft.Server{Suffrage: suffrage, ID: raft.ServerID(node.ID), Address: raft.ServerAddress(node.String())}
}

// others returns the addresses of the list but for this node's.
func (c *Cluster) others() []string {
	return slices.DeleteFunc(slices.Clone(c.nodes), func(addr string) bool { return addr == c.self.Addr })
}

// vouched makes sure that the address of this node, which is to begin the cluster, leads all others
// to this node: a copy of it on another machine, with the same settings, would begin a second
// cluster of the same nodes. It returns who says otherwise.
func (c *Cluster) vouched() (missing string) {
	ctx, cancel := context.WithTimeout(c.ctx, 2*askTimeout)
	defer cancel()
	if there, _ := c.peer.Identify(ctx, c.self.Addr); there.ID != "" && there.ID != c.self.ID { // it may not reach itself
		return fmt.Sprintf("the address of this node, %s, leads to another node: give each node its own address", c.self.Addr)
	}
	for _, addr := range c.others() {
		if _, err := ask(ctx, c.peer, addr, request{Do: doVouch, Node: c.self.String()}); err != nil {
			return fmt.Sprintf("%s does not confirm this node: %v", addr, err)
		}
	}
	return ""
}

// vouch finds out whether the address of a node that is to begin the cluster leads to that one, and
// for a while has led to no other.
func (c *Cluster) vouch(ctx context.Context, node string) error {
	asks, err := peer.ParseNode(node)
	if err != nil {
		return err
	}
	if r := c.started(); r == nil {
		return errors.New("the node is starting")
	} else if blank, err := isBlank(r); err != nil || !blank {
		return errors.Join(err, errors.New("it has data: a cluster was already formed"))
	}
	if c.leaves.Load() {
		return errors.New(leaving)
	}
	if asks.Addr != c.nodes[0] {
		return fmt.Errorf("in its list the lowest address is %s, not %s", c.nodes[0], asks.Addr)
	}
	there, err := c.peer.Identify(ctx, asks.Addr)
	if there.ID == "" {
		return fmt.Errorf("it can't reach %s: %w", asks.Addr, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.first[there.ID] = now
	maps.DeleteFunc(c.first, func(_ string, at time.Time) bool { return now.Sub(at) > doubtFor })
	if there.ID != asks.ID || len(c.first) > 1 {
		return fmt.Errorf("from there, %s leads (or a moment ago led) to another node than the one that forms the cluster: give each node its own address", asks.Addr)
	}
	return nil
}

// join asks a cluster, of which one node is known, to be taken in.
func (c *Cluster) join(known Info) (missing string) {
	if slices.ContainsFunc(known.Members, func(m Seat) bool { return m.ID == c.self.ID }) {
		return "the cluster is being formed, and this node waits to hear of its leader"
	}
	missing = "a cluster is running, and this node has no data"
	if known.Leader == "" {
		return missing + "; it waits until the cluster has a leader"
	}
	ctx, cancel := context.WithTimeout(c.ctx, askTimeout+changeTimeout)
	defer cancel()
	_, err := ask(ctx, c.peer, known.Leader, request{Do: doJoin, Node: c.self.String()})
	if err != nil {
		return missing + ": " + err.Error()
	}
	return missing + "; it is being taken in"
}
