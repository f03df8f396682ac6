package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"fencepost/client"
)

func renewFlags(s *settings, f *flag.FlagSet) {
	f.DurationVar(&s.ttl, "ttl", 0, "new TTL of the lease; 0: as it was granted")
	f.IntVar(&s.limit, "limit", 0, "for a permit: set the number of permits to `N` (each holder has to do so); ends no lease; 0: unchanged")
	f.IntVar(&s.permits, "permits", 0, "keep `COUNT` of its permits and give the others back; 0: keep all")
	f.StringVar(&s.owner, "owner", "", "a new label for people; default: unchanged")
	f.Var(&s.metadata, "meta", "new metadata, `KEY=VALUE`, replacing the old; may be given several times")
}

// leaseFlags say what is acquired.
func leaseFlags(s *settings, f *flag.FlagSet) {
	f.DurationVar(&s.ttl, "ttl", 30*time.Second, "how long the lease lives without a renewal")
	f.DurationVar(&s.wait, "wait", 0, "how long to wait for the lock; 0: not at all")
	f.DurationVar(&s.lockDelay, "lock-delay", 0, "if the lease expires or is broken, grant the lock to nobody for this long afterwards; at most 1m")
	f.DurationVar(&s.maxHold, "max-hold", 0, "the lease ends this long after its grant even if it is renewed; 0: never")
	f.BoolVar(&s.shared, "shared", false, "a shared lease, together with any number of others")
	f.IntVar(&s.permit, "permit", 0, "one of `N` shared leases; 0: no permit")
	f.IntVar(&s.permits, "permits", 0, "take `COUNT` of the N permits of -permit at once; 0: one")
	f.StringVar(&s.owner, "owner", "", "a label for people; default: host name and process id, of acquire that of who started it, such as the shell")
	f.Var(&s.metadata, "meta", "metadata for people, `KEY=VALUE`; may be given several times")
	f.Var(&s.also, "also", "a further `NAME` to acquire under the same lease; may be given several times")
	f.BoolVar(&s.quiet, "q", false, "print nothing about a lock that somebody else has: neither the queue while waiting nor the holder")
	f.IntVar(&s.conflictExit, "conflict-exit", exitNotAcquired, "exit status `N`, 0 to 255, if the lock was not acquired: somebody else has it, or no leases are granted now")
}

func runFlags(s *settings, f *flag.FlagSet) {
	leaseFlags(s, f)
	f.DurationVar(&s.grace, "grace", 0, "how long before the deadline the command gets SIGTERM, at most half the TTL; 0: a quarter of the TTL, at most 10s")
	f.StringVar(&s.noticeSignal, "notice-signal", "", "send the command this `SIGNAL`, such as TERM or USR1, on notice that the lease will be broken; default: none")
	f.DurationVar(&s.atLeast, "at-least", 0, "keep the lock for this long after its grant, even if the command ends with status 0 before; at most 24h")
	f.BoolVar(&s.atLeastOnFailure, "at-least-on-failure", false, "-at-least also applies if the command fails; otherwise the lock is then released at once")
	f.BoolVar(&s.withParent, "with-parent", false, "end the command or the wait when the process that started lockctl ends, even by SIGKILL")
	f.BoolVar(&s.passKey, "with-key", false, "leave FENCEPOST_KEY, FENCEPOST_KEY_FILE, FENCEPOST_CERT_FILE and FENCEPOST_CERT_KEY_FILE in the command's environment, as for lockctl in it")
	f.BoolVar(&s.passLeaseID, "lease-id", false, "put the lease id in the command's environment as LEASE_ID; with it the command can release the lock")
}

// options are what leaseFlags have said.
func (c *call) options() (options []client.Option) {
	options = append(options, client.TTL(c.ttl), client.MaxHold(c.maxHold), client.LockDelay(c.lockDelay), client.Also(c.also...))
	if c.shared {
		options = append(options, client.Shared())
	}
	if c.metadata != nil {
		options = append(options, client.Metadata(c.metadata))
	}
	switch {
	case c.permits != 0:
		options = append(options, client.Permits(c.permits, c.permit))
	case c.permit != 0:
		options = append(options, client.Permit(c.permit))
	}
	return options
}

// obtain acquires a lease, and shows the queue meanwhile.
func (c *call) obtain(ctx context.Context, options ...client.Option) (*client.Lease, error) {
	options = append(c.options(), options...)
	if c.wait < 0 {
		return nil, usage("-wait is %s; it must not be negative", c.wait)
	}
	if c.conflictExit < 0 || c.conflictExit > 255 {
		return nil, usage("-conflict-exit is %d; it must be from 0 to 255", c.conflictExit)
	}
	if c.permits != 0 && c.permit == 0 {
		return nil, usage("-permits needs -permit, which says how many there are")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.longest(), errTimeIsUp)
	defer cancel()
	var l *client.Lease
	var err error
	if c.wait == 0 {
		l, err = c.client.TryAcquire(ctx, c.args[0], options...)
	} else {
		shown := c.showQueue(ctx, c.args[0])
		l, err = c.client.Acquire(ctx, c.args[0], append(options, client.Wait(c.wait), client.OnLeaseID(shown.as))...)
		shown.stop()
	}
	if errors.Is(err, errTimeIsUp) && statusOf(err) != exitNotAcquired { // with what it had been told before
		err = fmt.Errorf("%w: %w", client.ErrUnreachable, err)
	}
	return l, err
}

// errTimeIsUp ends an acquire to which no gateway has said anything in time.
var errTimeIsUp = errors.New("no answer came in time")

// lateAnswer is how long after the end of a wait the gateway's answer to it may come, and
// lastWord how long it may take after that to give up what may have been acquired.
const (
	lateAnswer = 500 * time.Millisecond
	lastWord   = 400 * time.Millisecond
)

// longest bounds an acquire, whatever gateways do, so that it ends within a second of what was said.
func (c *call) longest() time.Duration {
	if c.wait == 0 {
		return patience
	}
	return c.wait + lateAnswer
}

// acquire prints a lease. One that can't be told to anybody is released, or not asked for.
func acquire(ctx context.Context, c *call) error {
	if wasClosed(c.out) {
		return errors.New("standard output is closed: nobody would learn the lease id")
	}
	if err := c.shell.begin(); err != nil {
		return err
	}
	l, err := c.obtain(ctx, client.NotRenewed())
	if err != nil {
		return c.refused(err)
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	} else {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // else it would end this process
		err = c.printLease(l)
	}
	if err != nil {
		err = errors.Join(err, l.Release(context.WithoutCancel(ctx)))
	}
	return err
}

// printLease prints what was acquired, for a shell or as JSON.
func (c *call) printLease(l *client.Lease) error {
	left := l.Remaining()
	if c.output == "json" {
		type grant struct {
			Name  string `json:"name"`
			Token int64  `json:"fencing_token"`
			Slot  *int   `json:"slot,omitempty"`
			Slots []int  `json:"slots,omitempty"`
		}
		answer := struct {
			LeaseID   string  `json:"lease_id"`
			ExpiresIn int64   `json:"expires_in_ms"`
			Locks     []grant `json:"locks"`
		}{l.ID(), left.Milliseconds(), nil}
		for _, g := range l.Grants() {
			one := grant{Name: g.Name, Token: g.Token}
			if g.Slot != client.NoSlot {
				one.Slot = &g.Slot
			}
			if len(g.Slots) > 1 {
				one.Slots = g.Slots
			}
			answer.Locks = append(answer.Locks, one)
		}
		return c.json(answer)
	}
	text := "export LEASE_ID=" + shellQuoted(l.ID()) + "\n"
	for _, v := range c.variables(l) {
		name, value, _ := strings.Cut(v, "=")
		text += "export " + name + "=" + shellQuoted(value) + "\n"
	}
	return c.shell.succeed(text + fmt.Sprintf("# expires in %s unless it is renewed\n", left.Round(time.Millisecond)))
}

// variables are what a lease's user needs to know, for the environment. All of it may be
// shown. The names are those that were asked for.
func (c *call) variables(l *client.Lease) []string {
	all := []string{"LOCK_NAME=" + c.args[0], "LEASE=" + l.Public(), "FENCING_TOKEN=" + strconv.FormatInt(l.Token(), 10)}
	if l.Slot() != client.NoSlot {
		all = append(all, "LOCK_SLOT="+strconv.Itoa(l.Slot()))
	}
	if slots := l.Slots(); len(slots) > 1 {
		all = append(all, "LOCK_SLOTS="+strings.Trim(fmt.Sprint(slots), "[]"))
	}
	for i, g := range l.Grants()[1:] { // they are as many as were asked for
		all = append(all, fmt.Sprintf("LOCK_NAME_%d=%s", i+2, c.also[i]), fmt.Sprintf("FENCING_TOKEN_%d=%d", i+2, g.Token))
	}
	return all
}

var plainInShell = regexp.MustCompile(`^[A-Za-z0-9_@%+:,./-]+$`)

// shellQuoted returns a word that a POSIX shell reads as s.
func shellQuoted(s string) string {
	if plainInShell.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// keyVariables are those that let in who has them.
var keyVariables = regexp.MustCompile(`^FENCEPOST_(KEY|KEY_FILE|CERT_FILE|CERT_KEY_FILE)=`)

// ourVariables are those that call.variables returns, and the lease id.
var ourVariables = regexp.MustCompile(`^(LOCK_NAME|FENCING_TOKEN)(_[0-9]+)?=|^(LEASE|LEASE_ID|LOCK_SLOTS?)=`)

// withoutVariables returns an environment without what is said of another lease. Of two
// variables of the same name many programs read the first.
func withoutVariables(env []string) []string {
	return slices.DeleteFunc(env, ourVariables.MatchString)
}

// leaseID is that of the environment: an argument would be seen by ps.
func leaseID() (string, error) {
	if id := os.Getenv("LEASE_ID"); id != "" {
		return id, nil
	}
	return "", usage(`the variable LEASE_ID is empty; eval "$(lockctl acquire NAME)" sets it`)
}

func renew(ctx context.Context, c *call) error {
	id, err := leaseID()
	if err != nil {
		return err
	}
	left, err := c.client.Change(ctx, id, client.Change{TTL: c.ttl, Limit: c.limit, Permits: c.permits, Labels: client.Labels{Owner: c.owner, Metadata: c.metadata}}, c.args...)
	if err != nil {
		return err
	}
	if c.output == "json" {
		return c.json(map[string]any{"lease": client.PublicPart(id), "expires_in_ms": left.Milliseconds()})
	}
	_, err = fmt.Fprintf(c.out, "expires in %s unless it is renewed\n", left.Round(time.Millisecond))
	return err
}

func release(ctx context.Context, c *call) error {
	id, err := leaseID()
	if err != nil {
		return err
	}
	return c.client.Release(ctx, id, c.args...)
}

func breakFlags(s *settings, f *flag.FlagSet) {
	f.DurationVar(&s.notice, "notice", 0, "give the holder this long to finish, 100ms to 24h, and never less than its current expiry; 0: break at once")
	f.StringVar(&s.reason, "reason", "", "`text` shown to the holder, in the history and in the audit; at most 256 bytes")
	f.StringVar(&s.owner, "owner", "", "instead of NAME and TOKEN: break all leases of this `OWNER`, such as a dead host")
	f.StringVar(&s.filter.Prefix, "prefix", "", "with -owner: only those on names with this `PREFIX`")
	f.BoolVar(&s.yes, "yes", false, "with -owner: break them without asking")
}

func breakLease(ctx context.Context, c *call) error {
	if c.notice < 0 || c.notice%time.Millisecond != 0 {
		return usage("-notice is %s; it must be whole milliseconds, from 100ms to 24h", c.notice)
	}
	if c.owner != "" && len(c.args) == 0 {
		return breakOwned(ctx, c)
	}
	if len(c.args) != 2 || c.owner != "" || c.filter.Prefix != "" || c.yes {
		return usage("usage: lockctl break [flags] NAME TOKEN, or lockctl break -owner OWNER [-prefix PREFIX] [-yes] [flags]")
	}
	token, err := strconv.ParseInt(c.args[1], 10, 64)
	if err != nil || token < 1 {
		return usage("%q is not a fencing token; lockctl get %s shows those of its holders", c.args[1], c.args[0])
	}
	if c.notice == 0 {
		return c.client.Break(ctx, c.args[0], token, c.reason)
	}
	h, held, err := c.client.BreakWithNotice(ctx, c.args[0], token, c.notice, c.reason)
	switch {
	case err != nil:
		return err
	case c.output == "json" && held:
		return c.json(h)
	case held && h.BreaksIn != nil:
		_, err = fmt.Fprintf(c.out, "%s gets notice and keeps the lock for at most %s\n", printable(h.Owner), short(time.Duration(*h.BreaksIn)*time.Millisecond))
	}
	return err
}

func evictFlags(s *settings, f *flag.FlagSet) {
	f.StringVar(&s.reason, "reason", "", "`text` shown to the waiter, in the events and in the audit; at most 256 bytes")
}

func evict(ctx context.Context, c *call) error {
	return c.client.Evict(ctx, c.args[0], c.args[1], c.reason)
}

// refused adds who holds the lock to a refusal, and gives it its exit status.
func (c *call) refused(err error) error {
	if statusOf(err) != exitNotAcquired {
		return err
	}
	refusal := exit{status: c.conflictExit, err: err}
	switch e := new(client.Error); {
	case !errors.As(err, &e):
	case c.quiet && (e.Code == client.CodeLocked || e.Code == client.CodeWaitTimeout):
		refusal.err = nil
	case len(e.Holders) > 0 || e.Delayed > 0:
		refusal.err = fmt.Errorf("%s is not acquired: %s", cmp.Or(e.Name, c.args[0]), textOfRefusal(e))
	}
	return refusal
}

// textOfRefusal says who holds a lock, and who waits for it.
func textOfRefusal(e *client.Error) string {
	text := permitsTaken(e.Holders, e.HolderCount) + heldBy(e.Holders, e.HolderCount, e.Delayed)
	if e.Position > 0 {
		text += fmt.Sprintf("; you were number %d in the queue", e.Position)
	} else if e.Waiting > 0 {
		text += fmt.Sprintf("; %d wait", e.Waiting)
	}
	if e.EstimatedWait > 0 {
		text += "; to wait for it would take " + estimate(e.EstimatedWait.Milliseconds())
	}
	return text
}

// permitsTaken says how many permits are taken, where all who hold the lock have some.
func permitsTaken(holders []client.Holder, count int) string {
	taken, limit := 0, 0
	for _, h := range holders {
		if h.Mode != "shared" || h.Limit == 0 {
			return ""
		}
		taken += max(1, h.Permits)
		if limit == 0 || h.Limit < limit {
			limit = h.Limit
		}
	}
	if count > len(holders) || count == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d permits are taken: ", taken, limit)
}

func (c *call) json(v any) error { return json.NewEncoder(c.out).Encode(v) }
