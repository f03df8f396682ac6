package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"

	"fencepost/internal/embedded"
	"fencepost/internal/fencing"
	"fencepost/internal/sql"
	"fencepost/internal/watchdog"
)

const doctorHelp = `Usage: gateway doctor

Examines the store of these settings, and says what endangers a promise and what to change. It neither
acquires nor ends leases, and may run beside gateways.

It exits with
  0  if everything was examined and is fine, and the store serves
  1  if something is in DANGER or trouble, or the store can't be examined or can't serve
  2  if the command line or the settings are wrong
  3  if nothing wrong was found but something could not be examined, such as the files of an embedded
     store while a gateway has them open
`

// errNotSeen is of an examination that has found nothing wrong, and could not look at everything.
var errNotSeen = errors.New("could not be examined: its state is unknown")

// doctor examines the store of the settings and tells a person what it means. It
// takes no lease and ends none; at a Redis it says that it has arrived, as every
// gateway does. An error: a check is not passed, or the store can't be examined or can't serve.
func doctor(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("doctor", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		_, err := fmt.Fprint(out, doctorHelp)
		return err
	}
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("%q is an unexpected argument", flags.Arg(0))
	}
	if err != nil {
		return usageError{fmt.Errorf("doctor: %w; see gateway doctor -help", err)}
	}
	cfg, err := loadConfig()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 4*examineTimeout)
	defer cancel()
	fmt.Fprintln(out, "The store:", where(cfg))
	c, err := examineStore(ctx, cfg)
	if err != nil {
		return err
	}
	c.print(out, cfg)
	if c.unable != nil {
		return fmt.Errorf("the store can't serve now: %w", c.unable)
	}
	return c.verdict()
}

// verdict is nil if every check is passed.
func (c *condition) verdict() error {
	dangers, troubles := len(watchdog.Endangering(c.findings)), 0
	var unknown []string
	for _, f := range c.findings {
		switch {
		case f.Unknown:
			unknown = append(unknown, f.Check)
		case !f.OK && f.Promise == "":
			troubles++
		}
	}
	var parts []string
	if dangers > 0 {
		parts = append(parts, plural(dangers, "finding endangers a promise", "findings endanger a promise"))
	}
	if troubles > 0 {
		parts = append(parts, plural(troubles, "finding is trouble", "findings are trouble"))
	}
	switch {
	case parts != nil:
		return errors.New(strings.Join(parts, ", "))
	case unknown != nil:
		return fmt.Errorf("%s %w", strings.Join(unknown, ", "), errNotSeen)
	}
	return nil
}

// condition is what doctor has found out.
type condition struct {
	findings []fencing.Finding
	stats    *fencing.Stats // nil where it is of no interest, or can't be had
	unable   error          // why it could not serve now
}

// expected returns an error if a start would refuse a data directory for there is no store in it.
func expected(cfg config) error {
	if !cfg.ExpectStore {
		return nil
	}
	return embedded.Expected(cfg.DataDir)
}

// examineStore examines the store of the settings. An embedded one is only examined from outside: to open
// it would keep a gateway from it.
func examineStore(ctx context.Context, cfg config) (condition, error) {
	if cfg.storeKind() == kindEmbedded {
		findings, err := embedded.Examine(cfg.DataDir)
		if err == nil {
			err = expected(cfg)
		}
		switch {
		case errors.Is(err, fs.ErrPermission):
			return condition{}, fmt.Errorf("this user can't read the store, so a gateway of this user could not open it; if the gateway runs as another user, run this as that user: %w", err)
		case err != nil:
			return condition{}, fmt.Errorf("no gateway can open the store: %w", err)
		}
		return condition{findings: findings}, nil
	}
	if cfg.storeKind() == kindRaft {
		return examineCluster(ctx, cfg)
	}
	noted := newRemarks()
	if cfg.onDatabase() {
		c, err := sql.Examine(ctx, sqlOptions(cfg, slog.New(noted)))
		if err != nil {
			return condition{}, fmt.Errorf("the store can't be examined: %w", explain(err, noted, cfg))
		}
		if c.Unable != nil {
			return condition{findings: c.Findings, unable: explain(c.Unable, noted, cfg)}, nil
		}
		return condition{findings: c.Findings, stats: &c.Stats}, nil
	}
	secured, err := watchRedisTLS(cfg, &files{log: slog.New(noted)}, slog.New(noted))
	if err != nil {
		return condition{}, err
	}
	store, err := openStore(ctx, cfg, security{redis: secured}, slog.New(noted), true)
	if err != nil {
		return condition{}, err
	}
	defer store.Close()
	findings, err := store.Examine(ctx)
	if err != nil {
		return condition{}, fmt.Errorf("the store can't be examined: %w", explain(err, noted, cfg))
	}
	c := condition{findings: findings}
	var asking sync.WaitGroup // both at once: each takes examineTimeout where nothing answers
	asking.Go(func() {
		if stats, err := store.Stats(ctx); err == nil {
			c.stats = &stats
		}
	})
	unable := store.Check(ctx)
	asking.Wait()
	if unable != nil {
		c.unable = explain(unable, noted, cfg)
	}
	return c, nil
}

// cause returns what is behind an answer for clients, if anything is.
func cause(err error) error {
	if e, ok := errors.AsType[*fencing.Error](err); ok && e.Err != nil {
		return e.Err
	}
	return err
}

// explain returns what is behind a failure, with what the store had to say
// meanwhile, and what to change if that can be told.
func explain(err error, noted *remarks, cfg config) error {
	err = cause(err)
	if f := fencing.FaultOf(err); f != nil {
		return fmt.Errorf("%s\n  %w\n  change: %s", f.Detail, f.Err, f.Remedy)
	}
	text := noted.beside(err)
	kind, ping := "Redis", "redis-cli ping"
	switch cfg.storeKind() {
	case kindPostgres:
		kind, ping = "PostgreSQL", "pg_isready"
	case kindMySQL:
		kind, ping = "the database", "mysqladmin ping"
	}
	var unknown *net.DNSError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		text += "\n  change: start " + kind + " there, or name in FENCEPOST_STORE where it listens"
	case errors.As(err, &unknown):
		text += "\n  change: correct the host in FENCEPOST_STORE, or the name service of this machine"
	case errors.Is(err, context.DeadlineExceeded), os.IsTimeout(err):
		text += "\n  change: check whether " + kind + " answers there (" + ping + "), and whether a firewall blocks it"
	default:
		if o := fencing.OutageOf(err); o != nil {
			text += "\n  " + o.Detail
		}
	}
	return fmt.Errorf("%w%s", err, text)
}

// where says what the store is and where, without a password.
func where(cfg config) string {
	kind := map[string]string{
		kindPostgres: "a PostgreSQL", kindMySQL: "a MariaDB or MySQL",
		kindRedis: "one Redis", kindSentinel: "a Redis that Sentinels watch", kindCluster: "a Redis Cluster", kindQuorum: "a quorum of independent Redis masters",
	}[cfg.storeKind()]
	switch cfg.storeKind() {
	case kindEmbedded:
		return "embedded, in " + cfg.DataDir
	case kindRaft:
		return cfg.Store + " (a cluster of gateways; this node's data in " + cfg.DataDir + ")"
	}
	if cfg.RedisUsername != "" {
		kind += ", as user " + cfg.RedisUsername
	}
	return location(cfg.Store) + " (" + kind + ")"
}

func (c *condition) print(out io.Writer, cfg config) {
	node := ""
	fmt.Fprintln(out, "\nWhat was examined:")
	for _, f := range c.findings {
		if f.Node != node {
			node = f.Node
			fmt.Fprintf(out, "  %s\n", cmp.Or(node, "all together"))
		}
		printFinding(out, f)
	}
	if c.stats != nil {
		quarantine := "none"
		if left := c.stats.Quarantine; left > 0 {
			quarantine = fmt.Sprintf("for up to another %s no new leases are granted, because some may have been lost; leases that the store still has can be renewed", left.Round(100_000_000))
			if cfg.storeKind() == kindQuorum {
				quarantine = fmt.Sprintf("for up to another %s not every node votes, because leases may have been lost; don't take down another node before that", left.Round(100_000_000))
			}
		}
		fmt.Fprintf(out, "\nQuarantine now: %s\nLocks held now: %d\n", quarantine, c.stats.Held)
	}
	heading := "What is promised:"
	if len(watchdog.Endangering(c.findings)) > 0 {
		heading = "What is promised once nothing is in danger:"
	}
	fmt.Fprintf(out, "\n%s\n", heading)
	for _, line := range promises(cfg) {
		fmt.Fprintf(out, "  %s\n", line)
	}
}

func printFinding(out io.Writer, f fencing.Finding) {
	const indent = "                        "
	verdict := "ok"
	switch {
	case f.Promise != "":
		verdict = "DANGER"
	case f.Unknown:
		verdict = "unknown"
	case !f.OK:
		verdict = "trouble"
	}
	fmt.Fprintf(out, "  %-8s %-12s %s\n", verdict, f.Check, f.Detail)
	if f.Promise != "" {
		fmt.Fprintf(out, "%sendangers: %s\n", indent, f.Promise)
	}
	if f.Remedy != "" {
		fmt.Fprintf(out, "%schange:    %s\n", indent, f.Remedy)
	}
}

// promises says what P1 and P2 come to with these settings if nothing is in
// danger.
func promises(cfg config) []string {
	const tokens = "always, unless all three happen: Redis loses data, its clock goes back by more than the outage took, and no gateway runs that knows better."
	kind := cfg.storeKind()
	switch kind {
	case kindEmbedded:
		return []string{
			"P1 (one live lease): holds through crashes and power losses, on this one machine.",
			"P2 (tokens only grow): the same.",
		}
	case kindRaft:
		return []string{
			"P1 (one live lease): holds through the loss of any minority of the nodes and their disks; of the clocks, only the rates must agree.",
			"P2 (tokens only grow): the same.",
		}
	case kindQuorum:
		return []string{
			"P1 (one live lease): holds while clocks differ by less than " + cfg.MaxClockSkew.String() + " and less than a majority of the nodes lose data at a time.",
			"P2 (tokens only grow): every token is claimed on a majority of the nodes.",
			quarantineLine(cfg),
		}
	case kindPostgres, kindMySQL:
		return []string{
			"P1 (one live lease): holds through crashes of the database; a fail-over to a standby that lacks commits, or a restored backup, loses grants.",
			"P2 (tokens only grow): the same, and also after such a loss if a gateway runs that knows better, or the database's clock was not set back.",
			quarantineLine(cfg),
		}
	}
	first := "P1 (one live lease): holds as long as Redis loses nothing; see persistence above."
	if kind == kindSentinel || kind == kindCluster {
		first = replicaPromise(cfg.RedisReplicaAcks)
	}
	return []string{first, "P2 (tokens only grow): " + tokens, quarantineLine(cfg)}
}

// replicaPromise says what a Redis with replicas promises if so many of them have a grant before it is answered.
func replicaPromise(acks int) string {
	if acks == 0 {
		return "P1 (one live lease): a fail-over loses the grants that no replica had yet, because FENCEPOST_REDIS_REPLICA_ACKS is 0."
	}
	return "P1 (one live lease): a grant is answered when " + plural(acks, "replica has", "replicas have") +
		" it; a fail-over loses it only if another replica is promoted."
}

// quarantineLine says what is done about what may have been forgotten.
func quarantineLine(cfg config) string {
	policy, _ := cfg.quarantine() // validated before
	const start = "If leases may have been lost, "
	switch {
	case policy.Off:
		return start + "new ones are granted at once: FENCEPOST_QUARANTINE is off."
	case policy.For > 0:
		return start + "no new ones are granted for " + policy.For.String() + "; lost leases with a longer TTL are the exception to P1."
	}
	return start + "no new ones are granted for the longest TTL in use, at least " + min(policy.Least, fencing.LongestQuarantine).String() +
		"; lost leases with a TTL above " + fencing.LongestQuarantine.String() + " are the exception to P1."
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, strings.TrimSpace(many))
}
