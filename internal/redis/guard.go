package redis

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"fencepost/internal/fencing"

	goredis "github.com/redis/go-redis/v9"
)

// QuarantinePolicy says for how long nothing new is granted when a Redis may have
// forgotten leases.
type QuarantinePolicy struct {
	Off bool          // never: loss is only logged and counted
	For time.Duration // 0: as long as the longest TTL in use, at most fencing.LongestQuarantine

	// Least is the shortest quarantine if For is 0: the TTL of leases that name
	// none. Default 30 s.
	Least time.Duration
}

// bounds returns how long a quarantine takes at least and at most; 0 and 0 is none.
func (p *QuarantinePolicy) bounds() (least, most time.Duration) {
	switch {
	case p.Off:
		return 0, 0
	case p.For > 0:
		return p.For, p.For
	}
	return min(p.Least, fencing.LongestQuarantine), fencing.LongestQuarantine
}

// guard is what a partition remembers in order to be careful.
type guard struct {
	fencing.Quarantine
	layout     string
	partitions int
	born       fencing.Instant
}

// defaultLeast is QuarantinePolicy.Least where it is not said.
const defaultLeast = 30 * time.Second

// decodeGuard reads a guard of this layout, with so many partitions.
func decodeGuard(text string, partitions int) (guard, error) {
	g := guard{}
	in := codec{rest: text}
	in.guard(&g)
	switch {
	case strings.IndexByte(text, 0) < 0: // the layout before had no such byte
		return g, &metaError{field: "the layout", got: "3 or an older one", want: layoutVersion}
	case in.bad:
		return g, errUnreadable
	case g.layout != layoutVersion:
		return g, &metaError{field: "the layout", got: g.layout, want: layoutVersion}
	case g.partitions != partitions:
		return g, &metaError{field: "the partition count", got: strconv.Itoa(g.partitions), want: strconv.Itoa(partitions)}
	}
	return g, nil
}

// How an arrival takes a partition: see verbs.arrive.
const (
	arriveCareful  = "-" // another server than before may have lost something
	arriveLossless = "l" // the guard was seen: without one, the partition stays as it is
	arriveNew      = "n" // where there is no guard, there was nothing to lose
	arriveNever    = "?" // as arriveCareful, but a partition without a guard stays as it is
	arriveLost     = "x" // the guard was seen, as with arriveLossless
	arriveLate     = "m" // as arriveCareful, of a gateway that was served elsewhere until now
)

// newArriveCommand prepares an arrival at a partition.
func (s *Store) newArriveCommand(partition int, server, how string, longest time.Duration) *command {
	w := &s.sentry
	if how == arriveCareful && w.servedElsewhere(partition, server) {
		how = arriveLate
	}
	a := arrivalRequest{
		layout: layoutVersion, partitions: s.partitions, server: server, how: how, longest: max(longest, w.longest()),
		until: fencing.Instant(w.until[partition].Load()), born: fencing.Instant(w.born[partition].Load()),
	}
	a.least, a.most = s.options.Quarantine.bounds()
	return s.newPartitionCommand(partition, operation{verb: arriveVerb}, func(c *codec) { c.arrival(&a) })
}

// arrived takes down what an arrival has found and done.
func (s *Store) arrived(c *command, r *reply) error {
	switch r.code {
	case fencing.CodeOK:
	case fencing.CodeNotFound:
		return nil // and grants are refused
	case fencing.CodeClockSkew:
		return errSkewed
	default:
		return errReply
	}
	g := r.guard
	if till := s.sentry.until[c.partition].Load(); int64(g.Until) > till && g.Until > r.now || s.options.Quarantine.Off && r.text != g.Server {
		s.sentry.losses.Add(1)
	}
	s.sentry.learn(c.partition, &g)
	return nil
}

// identity is who serves, as INFO says.
type identity struct {
	run      string // of the process
	promoted string // the replication id that it had as a replica; empty if it was none
	master   bool
	sentinel bool // it is none of Redis at all
	evicted  int64
}

// server names who serves: another name means that what was there may be behind.
// A server that is promoted again, which may have missed what others granted
// meanwhile, has another one too.
func (i *identity) server() string {
	if i.promoted == "" {
		return i.run
	}
	return i.run + ":" + i.promoted
}

// same reports whether a server of an earlier name has lost nothing since: the
// memory of a promotion goes when there have been no replicas for long.
func (i *identity) same(server string) bool {
	run, _, _ := strings.Cut(server, ":")
	return server == i.server() || i.promoted == "" && run == i.run
}

// identityInfo are the sections of INFO that identify reads.
var identityInfo = []string{"server", "replication", "stats"}

// identify reads INFO.
func identify(info string) (identity, error) {
	var i identity
	for line := range strings.Lines(info) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch key {
		case "run_id":
			i.run = value
		case "redis_mode":
			i.sentinel = value == "sentinel"
		case "role":
			i.master = value == "master"
		case "master_replid2":
			if strings.Trim(value, "0") != "" {
				i.promoted = value
			}
		case "evicted_keys":
			i.evicted, _ = strconv.ParseInt(value, 10, 64)
		}
	}
	if i.run == "" {
		return i, errReply
	}
	return i, nil
}

// errSkewed says that an arrival is to be tried again when the clocks agree: until
// then nothing is granted anyway.
var errSkewed = errors.New("redis: the clocks differ too much to say until when nothing is to be granted")

// errReplica says that a server is no master (any more): nothing has been run.
var errReplica = errors.New("redis: the server is a replica")

// errSentinel says that a server is a Sentinel.
var errSentinel = errors.New("redis: the server is a Sentinel")

// greet looks at who serves on a new connection, before anything else is sent
// there. What may have been lost is in quarantine when it returns.
func (s *Store) greet(ctx context.Context, n *node, conn *goredis.Conn) error {
	info, err := conn.Info(ctx, identityInfo...).Result()
	if err != nil {
		return err
	}
	id, err := identify(info)
	if err != nil {
		return err
	}
	s.topology.spoken.Store(true)
	switch {
	case id.sentinel:
		return errSentinel
	case !id.master:
		return errReplica
	}
	w := &s.sentry
	greeting := w.greeting(id.server())
	greeting.Lock()
	defer greeting.Unlock()
	if w.knows(id.server()) {
		n.settled.Store(true)
		return nil
	}
	n.settled.Store(false)
	if err := checkLayout(ctx, conn); err != nil {
		return err
	}
	unbroken, err := s.readGuards(ctx, conn, &id)
	if err != nil || s.options.Passive {
		return err
	}
	inUse, err := s.othersThere(ctx, conn)
	if err != nil {
		return err
	}
	commands := make([]*command, s.partitions)
	for p := range commands {
		how := w.manner(p)
		switch {
		case unbroken[p]:
			how = arriveLossless
		case how == arriveNew && inUse:
			how = arriveCareful
		}
		commands[p] = s.newArriveCommand(p, id.server(), how, 0)
	}
	s.sender.exec(ctx, conn, n, s.sender.calls(n, commands), false)
	switch err := s.allArrived(commands); {
	case errors.Is(err, errSkewed): // leases can be ended and renewed; none is granted before this is made good
		return nil
	case err != nil:
		return err
	}
	w.settle(&id, n.addr)
	n.settled.Store(true)
	return nil
}

// checkLayout refuses data of before there were guards, which said so in a key of
// its own.
func checkLayout(ctx context.Context, conn *goredis.Conn) error {
	old, err := conn.HGet(ctx, "fencepost:{meta}", "format").Result()
	switch {
	case err == nil:
		return &metaError{field: "the layout", got: old, want: layoutVersion}
	case errors.Is(err, goredis.Nil), elsewhere(err):
		return nil
	}
	return err
}

// othersThere reports whether other gateways listen at this server: one that
// remembers nothing is not new then.
func (s *Store) othersThere(ctx context.Context, conn *goredis.Conn) (bool, error) {
	channels, err := conn.PubSubChannels(ctx, gatewayChannel("*")).Result()
	if goredis.HasErrorPrefix(err, "NOPERM") {
		return false, nil
	}
	return slices.ContainsFunc(channels, func(c string) bool { return c != gatewayChannel(fencing.Gateway(s.handle)) }), err
}

// allArrived takes down what arrivals have come to, and returns the first error.
// That a partition is elsewhere is none.
func (s *Store) allArrived(commands []*command) error {
	var failed error
	for _, c := range commands {
		r, err := s.result(c)
		if err == nil {
			err = s.arrived(c, r)
		}
		if err != nil && !elsewhere(err) {
			failed = cmp.Or(failed, err)
			continue
		}
		s.free(c)
	}
	return failed
}

// readGuards reads the guards of all partitions for the longest TTL in use: what
// was lost in one may have been as long as what is known of another. It returns which
// of them this server has served without a break, although by another name.
func (s *Store) readGuards(ctx context.Context, conn *goredis.Conn, id *identity) (unbroken []bool, err error) {
	pipe := conn.Pipeline()
	guards := make([]*goredis.StringCmd, s.partitions)
	unbroken = make([]bool, s.partitions)
	for p := range guards {
		guards[p] = pipe.Get(ctx, s.keys[p].guard)
	}
	_, _ = pipe.Exec(ctx) // the commands hold their errors
	for p, cmd := range guards {
		text, err := cmd.Result()
		if errors.Is(err, goredis.Nil) || err != nil && elsewhere(err) {
			continue
		} else if err != nil {
			return unbroken, err
		}
		g, err := decodeGuard(text, s.partitions)
		if err != nil {
			return unbroken, err
		}
		unbroken[p] = g.Server != id.server() && id.same(g.Server)
		if s.sentry.uses(g.Longest(fencing.InstantOf(s.options.Clock()))); s.options.Passive {
			s.sentry.learn(p, &g)
		}
	}
	return unbroken, nil
}

// elsewhere reports whether a node of a Cluster does not have a partition, or not
// yet: it will be looked at where it is.
func elsewhere(err error) bool {
	for _, word := range []string{"MOVED", "ASK", "TRYAGAIN"} {
		if goredis.HasErrorPrefix(err, word) {
			return true
		}
	}
	return false
}
