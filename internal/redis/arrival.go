package redis

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"fencepost/internal/fencing"

	goredis "github.com/redis/go-redis/v9"
)

var (
	// errSkewed says that an arrival is to be tried again when the clocks agree: until
	// then nothing is granted anyway.
	errSkewed = errors.New("redis: the clocks differ too much to say how long a quarantine has to last")

	// errOvertaken says that the guard is another than the one that was asked for.
	errOvertaken = errors.New("redis: the guard has changed meanwhile")
)

// decision is reconcile, or what stands for it.
type decision func(*remembered, *reported) verdict

// contextMutex lets one in at a time.
type contextMutex chan struct{}

func (t contextMutex) lock(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t contextMutex) unlock() { <-t }

// onConnect checks who serves on a new connection, before anything else is sent
// there. What may have been lost is in quarantine when it returns.
func (s *Store) onConnect(ctx context.Context, n *node, conn *goredis.Conn) error {
	err := s.arrive(ctx, conn, n, false, reconcile)
	if errors.Is(err, errSkewed) || errors.Is(err, errOvertaken) {
		return nil // leases can be ended and renewed; none is granted before this is made good
	}
	return err
}

// arriveAt arrives at the partitions of a node, unless somebody has begun to since then:
// because it is time, because it got more partitions, or because an operation found something
// missing. With the zero time it always does.
func (s *Store) arriveAt(caller context.Context, n *node, since time.Time, decide decision) error {
	if n.client == nil {
		return errNoMaster
	}
	ctx, cancel := context.WithTimeoutCause(caller, s.options.OperationTimeout, errBudget)
	defer cancel()
	if err := n.entering.lock(ctx); err != nil { // who waits has no connection yet: others need them
		return err
	}
	defer n.entering.unlock()
	if !since.IsZero() && since.Before(n.last.at) {
		return n.last.err
	}
	conn := n.client.Conn()
	defer conn.Close()
	err, at := conn.Ping(ctx).Err(), s.options.Clock() // a new connection has had its onConnect then
	if err == nil {
		err = s.arrive(ctx, conn, n, true, decide)
	}
	if err != nil {
		at = s.options.Clock() // those who wait don't each try in vain
	}
	if caller.Err() == nil {
		n.last = check{at, err}
	}
	return err
}

// arrive compares what a server has of its partitions with what this gateway remembers of
// them, and has the server note what follows. One whose partitions were checked is left
// alone unless it is to be done again. One that was not checked may have any partition.
func (s *Store) arrive(ctx context.Context, conn *goredis.Conn, n *node, again bool, decide decision) error {
	if err := n.arriving.lock(ctx); err != nil {
		return err
	}
	defer n.arriving.unlock()
	id, err := s.askIdentity(ctx, conn)
	if id.run != "" && (err != nil || n.server != id.server()) { // or it has not answered
		n.changes.Add(1)
	}
	if err != nil || n.isChecked() && !again {
		return err
	}
	table := s.topology.table.Load()
	reasons, mine := n.reasons(table), table.partitionsOf(n)
	partitions := mine
	if !n.isChecked() {
		partitions = s.everyPartition()
	}
	found, err := s.askGuards(ctx, conn, n, &id, partitions, mine)
	if err != nil {
		return err
	}
	var arrivals []*command
	var of []*partitionCheck
	for i := range found {
		f := &found[i]
		f.was.longest = s.guards.longest()
		switch f.verdict = decide(&f.was, &f.reported); f.verdict {
		case unchanged:
			s.guards.remember(f.partition, f.guard, id.asked, false)
		case withheld:
		default:
			arrivals, of = append(arrivals, s.newArriveCommand(f)), append(of, f)
		}
	}
	s.sender.exec(ctx, conn, n, s.sender.calls(n, arrivals), false)
	for i, c := range arrivals {
		err = cmp.Or(err, s.arrived(c, of[i]))
		s.free(c)
	}
	if err != nil {
		n.changes.Add(1)
		return err
	}
	s.guards.noteServer(&id, n.addr)
	server := id.server()
	n.server = server
	n.checked.Store(&server)
	n.checkedReasons.Store(reasons)
	return nil
}

// partitionCheck is what there is to know of a partition.
type partitionCheck struct {
	reported
	was       remembered
	partition int
	verdict   verdict
}

// askGuards asks a server what it has of some partitions. Those are left out that are
// elsewhere, those that it refuses and is not known to have, and those whose guard can't be
// read: nothing is granted there.
func (s *Store) askGuards(ctx context.Context, conn *goredis.Conn, n *node, id *identity, partitions, mine []int) ([]partitionCheck, error) {
	pipe := conn.Pipeline()
	guards := make([]*goredis.StringCmd, len(partitions))
	for i, p := range partitions {
		guards[i] = pipe.Get(ctx, s.keys[p].guard)
	}
	_, _ = pipe.Exec(ctx) // the commands hold their errors
	var found []partitionCheck
	foreign := map[int]error{}
	missing, readable := false, false
	for i, cmd := range guards {
		f := partitionCheck{reported: reported{identity: *id}, was: s.guards.recall(partitions[i], id.run), partition: partitions[i]}
		var refusal goredis.Error
		text, err := cmd.Result()
		var g guard
		if err == nil {
			g, err = decodeGuard(text, s.partitions)
		}
		switch {
		case err == nil:
			s.guards.noteTTL(g.Longest(fencing.InstantOf(id.asked))) // what was lost elsewhere may have been as long
			f.guard, readable = &g, true
		case errors.Is(err, goredis.Nil):
			missing = true
		case errors.Is(err, errUnreadable), isMetaError(err), goredis.HasErrorPrefix(err, "WRONGTYPE"):
			foreign[partitions[i]] = err
			continue
		case errors.As(err, &refusal) && !slices.Contains(mine, partitions[i]):
			continue
		case moving(err): // else it would count as checked without it, should it come back
			s.topology.refresh()
			continue
		default:
			return nil, err
		}
		found = append(found, f)
	}
	for p, err := range foreign {
		if isMetaError(err) && !readable { // it is not one partition: these are another's data
			return nil, err
		}
		s.guards.unreadable(p)
		s.logDamage(s.keys[p].guard, err)
	}
	if missing {
		used, err := s.inUse(ctx, conn, found)
		if err != nil {
			return nil, err
		}
		for i := range found {
			found[i].used = used
		}
	}
	s.askFormerServers(ctx, n, found)
	return found, nil
}

// inUse reports whether a store is known to be in use where a guard is missing, which is no
// new one then: another partition has an old guard, or other gateways listen, at this server
// or any master of its Cluster, or may, for one does not answer. Data of before there were
// guards, which said so in a key of its own, is refused.
func (s *Store) inUse(ctx context.Context, conn *goredis.Conn, found []partitionCheck) (bool, error) {
	old, err := conn.HGet(ctx, "fencepost:{meta}", "format").Result()
	switch {
	case err == nil:
		return false, &metaError{field: "the layout", got: old, want: layoutVersion}
	case !errors.Is(err, goredis.Nil) && !moving(err) && !goredis.HasErrorPrefix(err, "CLUSTERDOWN"): // its slot may be nobody's
		return false, err
	}
	if slices.ContainsFunc(found, func(f partitionCheck) bool { return f.guard != nil && f.guard.old(f.asked) }) {
		return true, nil
	}
	here, err := s.othersListen(ctx, conn)
	if here || err != nil || s.topology.location.kind != kindCluster {
		return here, err
	}
	table := s.topology.table.Load()
	there := make([]bool, len(table.nodes))
	_ = inParallel(len(table.nodes), func(i int) error {
		n := table.nodes[i]
		client := s.topology.discoveryClient(n.addr)
		listen, err := s.othersListen(ctx, client) // each knows of its own subscribers alone
		there[i] = listen || err != nil || s.hasOldGuard(ctx, client, table.partitionsOf(n)[0])
		return nil
	})
	return slices.Contains(there, true), nil
}

// hasOldGuard reports whether a master has a guard of a partition that is old, or may, for it
// does not answer.
func (s *Store) hasOldGuard(ctx context.Context, at *goredis.Client, partition int) bool {
	text, err := at.Get(ctx, s.keys[partition].guard).Result()
	var refusal goredis.Error // also of a guard that there is not
	if err != nil {
		return !errors.As(err, &refusal)
	}
	g, err := decodeGuard(text, s.partitions)
	return err == nil && g.old(s.options.Clock())
}

// othersListen reports whether other gateways listen at one server. Where this user may not
// ask that, none does.
func (s *Store) othersListen(ctx context.Context, at interface {
	PubSubChannels(ctx context.Context, pattern string) *goredis.StringSliceCmd
}) (bool, error) {
	channels, err := at.PubSubChannels(ctx, gatewayChannel("*")).Result()
	if goredis.HasErrorPrefix(err, "NOPERM") {
		return false, nil
	}
	return slices.ContainsFunc(channels, func(c string) bool { return c != gatewayChannel(fencing.Gateway(s.handle)) }), err
}

// askFormerServers asks those who served partitions of a Cluster before whether they gave them to
// a node: each is the same master that it was, and says itself that the partition is
// elsewhere. Who serves by a restart or a promotion is not believed to have them from there.
func (s *Store) askFormerServers(ctx context.Context, n *node, found []partitionCheck) {
	if s.topology.location.kind != kindCluster {
		return
	}
	of := map[string][]*partitionCheck{}
	for i := range found {
		f := &found[i]
		if !f.stayed(&f.was) {
			continue
		}
		for _, former := range f.formerServers(&f.was) {
			f.given = true // unless one of them does not say so
			of[former] = append(of[former], f)
		}
	}
	formers := slices.Collect(maps.Keys(of))
	gave := make([][]bool, len(formers))
	_ = inParallel(len(formers), func(i int) error { // one that hangs is waited for once
		gave[i] = s.askFormerServer(ctx, n, formers[i], of[formers[i]])
		return nil
	})
	for i, former := range formers {
		for j, f := range of[former] {
			f.given = f.given && gave[i][j]
		}
	}
}

// askFormerServer returns which of some partitions who served them before has given to a node. One
// that has given its last slot away is a replica at once (cluster-allow-replica-migration),
// and names the node that has the partition; after a fail-over it names who was promoted.
func (s *Store) askFormerServer(ctx context.Context, n *node, former string, some []*partitionCheck) []bool {
	gave := make([]bool, len(some))
	was := s.guards.server(runOf(former))
	if was.addr == "" {
		return gave
	}
	pipe := s.topology.discoveryClient(was.addr).Pipeline()
	info, guards := pipe.Info(ctx, identityInfo...), make([]*goredis.StringCmd, len(some))
	for i, f := range some {
		guards[i] = pipe.Get(ctx, s.keys[f.partition].guard)
	}
	_, _ = pipe.Exec(ctx) // the commands hold their errors
	id, _ := identify(info.Val())
	if id.evicted > was.evicted { // it may have been of these, before they were moved
		return gave
	}
	for i := range gave {
		err := guards[i].Err()
		gave[i] = id.master && id.same(former) && moving(err) ||
			!id.master && id.run == runOf(former) && movedTo(err, was.addr) == n.addr
	}
	return gave
}

// newArriveCommand prepares an arrival at a partition.
func (s *Store) newArriveCommand(f *partitionCheck) *command {
	v := f.verdict
	a := arrivalRequest{
		layout: layoutVersion, partitions: s.partitions, server: f.server(),
		lossless: v == moved || v == unused, lost: v == lost, late: v == changed, longest: s.guards.longest(), until: f.was.until,
	}
	if f.guard != nil {
		a.born = f.guard.born
	}
	a.least, a.most = s.options.Quarantine.bounds()
	return s.newPartitionCommand(f.partition, operation{verb: arriveVerb}, func(c *codec) { c.arrival(&a) })
}

// arrived takes down what an arrival has come to. That the partition is elsewhere by now is
// no error.
func (s *Store) arrived(c *command, f *partitionCheck) error {
	r, err := s.result(c)
	switch {
	case moving(err):
		s.topology.refresh()
		return nil
	case err != nil:
		return err
	case r.code == fencing.CodeClockSkew:
		return errSkewed
	case r.code == fencing.CodeConflict:
		return errOvertaken
	case r.code != fencing.CodeOK:
		return errReply
	}
	if r.guard.Until > max(f.was.until, r.now) || s.options.Quarantine.Off && (f.verdict == lost || f.verdict == changed && f.guard.Server != f.server()) {
		s.guards.losses.Add(1)
	}
	s.guards.remember(c.partition, &r.guard, c.sentAt, true)
	return nil
}

// recoverFromLoss deals with a refusal for something that was found to be missing, until the time of
// the operation ends, and reports whether the command is worth sending again.
func (s *Store) recoverFromLoss(ctx context.Context, ends time.Time, c *command, r *reply) bool {
	if r.code != fencing.CodeQuarantined || s.options.Member && !r.behind {
		return false
	}
	since, missing := s.guards.misses(c, r)
	if !missing {
		return false
	}
	ctx, cancel := context.WithDeadlineCause(ctx, ends, errBudget)
	defer cancel()
	err := s.arriveAt(ctx, s.topology.node(c.partition), since, reconcile)
	return err == nil || errors.Is(err, errOvertaken)
}
