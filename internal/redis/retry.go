package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"fencepost/internal/fencing"

	goredis "github.com/redis/go-redis/v9"
)

const (
	firstBackoff = 4 * time.Millisecond
	lastBackoff  = 100 * time.Millisecond

	// maxRecoveries is how often a command is sent again because something was found
	// to be missing, and dealt with.
	maxRecoveries = 3
)

var (
	errClosed  = errors.New("redis: the store is closed")
	errBudget  = errors.New("redis: no answer within the time for one operation")
	errStalled = errors.New("redis: the command was on its way for too long")
)

// do runs a command until it has an answer that counts, the time for one
// operation is over, or ctx ends. The error is an *fencing.Error with
// CodeUnavailable. A caller that leaves lets its command go on; c must not be
// used again after an error.
func (s *Store) do(ctx context.Context, c *command) (*reply, error) {
	if ctx.Err() != nil {
		return nil, fencing.Unavailable(context.Cause(ctx))
	}
	ends := time.Now().Add(s.options.OperationTimeout)
	c.timer.Reset(s.options.OperationTimeout)
	defer c.timer.Stop()
	var before error // of the attempt before
	fail := func(err error) (*reply, error) {
		if before != nil && !errors.Is(err, before) {
			err = fmt.Errorf("%w; before: %w", err, before)
		}
		if c.uncertain {
			s.gap(c)
		}
		return nil, s.unavailable(err)
	}
	for attempt := 0; ; attempt++ {
		if !s.batcherOf(c).submit(c) {
			return fail(errClosed)
		}
		var gone error
		select {
		case <-c.done:
		case <-ctx.Done():
			gone = context.Cause(ctx)
		case <-c.timer.C:
			gone = errBudget
		}
		if gone != nil {
			if c.awaited.CompareAndSwap(true, false) { // s.orphaned takes the answer
				return fail(gone)
			}
			<-c.done // it came at the same time
		}
		r, err := s.result(c)
		if err == nil && attempt < maxRecoveries && s.recoverFromLoss(ctx, ends, c, r) {
			continue
		}
		if err == nil {
			s.announce(c, r)
			if c.uncertain {
				s.gap(c)
			}
			return r, unreplicated(c, r)
		}
		c.uncertain = c.uncertain || !notExecuted(err)
		if gone != nil || !retryable(err) {
			return fail(err)
		}
		before = err
		if err := pause(ctx, c.timer.C, attempt); err != nil {
			return fail(err)
		}
	}
}

// batcherOf returns the batcher by which a command goes now. What waits for replicas has
// batchers of its own: no renewal is held up by it.
func (s *Store) batcherOf(c *command) *batcher {
	n := int(hashOf(c.name) % batchers)
	if s.sender.waits(c) {
		n += batchers
	}
	return s.topology.node(c.partition).batchers[n]
}

// result reads the answer of a command that was sent.
func (s *Store) result(c *command) (*reply, error) {
	if c.err != nil {
		return nil, c.err
	}
	r, err := decodeReply(c)
	if err != nil {
		if aboutRecord(err) {
			s.logDamage(s.keys[c.partition].lock(c.name), err)
		}
		return nil, err
	}
	for i := range r.grants {
		if g := &r.grants[i]; g.Gateway == "" { // nothing hangs on it: only who asks is granted so
			g.Gateway = fencing.Gateway(s.handle)
		}
	}
	if r.forgot || r.lost {
		s.logMended(c.name, r)
	}
	if r.code == fencing.CodeClockSkew && r.skewed && s.stalled(c, r.now) {
		return nil, errStalled
	}
	return r, nil
}

// stalled reports whether what looked like skew was a command that took long:
// the store's clock then lies between sending and receiving.
func (s *Store) stalled(c *command, now fencing.Instant) bool {
	return now >= c.sent.Add(-s.options.MaxSkew) && now <= c.received.Add(s.options.MaxSkew)
}

// pause waits before the next attempt. Jitter keeps callers that failed
// together from coming back together.
func pause(ctx context.Context, budget <-chan time.Time, attempt int) error {
	backoff := min(firstBackoff<<min(attempt, 10), lastBackoff)
	wait := time.NewTimer(backoff/2 + rand.N(backoff/2))
	defer wait.Stop()
	select {
	case <-wait.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-budget:
		return errBudget
	}
}

// firstError returns the first error that is not the absence of a value.
func firstError(cmds []goredis.Cmder, err error) error {
	for _, cmd := range cmds {
		if e := cmd.Err(); e != nil && !errors.Is(e, goredis.Nil) {
			return e
		}
	}
	if errors.Is(err, goredis.Nil) {
		return nil
	}
	return err
}

// doAll runs the commands in batches of their own, those of each node beside those
// of the others, and passes each answer that can be read to got, one after the
// other, those of a node in order. What can't be answered in passing is sent
// again. A node that fails keeps no other from its work: the error comes after
// that. A command whose record can't be read is logged and left out.
func (s *Store) doAll(ctx context.Context, all []*command, got func(*command, *reply) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.options.OperationTimeout, errBudget)
	defer cancel()
	groups := groupByNode(all, func(c *command) *node { return s.topology.node(c.partition) })
	if len(groups) == 1 {
		return s.doSome(ctx, groups[0].of, got)
	}
	var mu sync.Mutex
	oneByOne := func(c *command, r *reply) error {
		mu.Lock()
		defer mu.Unlock()
		return got(c, r)
	}
	return inParallel(len(groups), func(i int) error { return s.doSome(ctx, groups[i].of, oneByOne) })
}

// doSome is doAll for commands that, when it begins, all go to one node.
func (s *Store) doSome(ctx context.Context, all []*command, got func(*command, *reply) error) error {
	var refused error // by got: told when the replies of its batch are through
	for attempt := 0; len(all) > 0; attempt++ {
		if ctx.Err() != nil {
			return fencing.Unavailable(context.Cause(ctx))
		}
		batch := all[:min(len(all), maxBatch)]
		for _, group := range groupByNode(batch, func(c *command) *node { return s.topology.node(c.partition) }) {
			s.sender.send(group.node, group.of)
		}
		var again []*command
		var failed, fatal error
		for _, c := range batch {
			r, err := s.result(c)
			if err == nil {
				err = got(c, r)
			}
			var refusal *fencing.Error
			switch {
			case err == nil:
				s.free(c)
			case errors.As(err, &refusal):
				refused = cmp.Or(refused, err)
			case aboutRecord(err): // result has told it
			case retryable(err):
				if failed, again = err, append(again, c); !notExecuted(err) {
					c.uncertain = true
					s.gap(c)
				}
			default:
				fatal = cmp.Or(fatal, err)
			}
		}
		switch {
		case fatal != nil:
			return s.unavailable(fatal)
		case refused != nil:
			return refused
		case failed == nil:
			attempt, all = -1, all[len(batch):]
			continue
		}
		all = append(again, all[len(batch):]...)
		if pause(ctx, nil, attempt) != nil {
			return s.unavailable(failed)
		}
	}
	return nil
}

// aboutRecord reports whether an error concerns one record alone: an operation broke off
// for data that is not what it expects, or has an answer that can't be read.
func aboutRecord(err error) bool {
	var broken operationError
	return errors.Is(err, errReply) || errors.Is(err, errUnreadable) ||
		errors.As(err, &broken) && !strings.Contains(string(broken), "ser executing the script")
}

// logDamage tells of a key that can't be read, once.
func (s *Store) logDamage(key string, err error) {
	if text := err.Error(); strings.HasPrefix(text, "fencepost:") { // the library knows which one it is
		key, _, _ = strings.Cut(text, " ")
	}
	if _, told := s.damageLogged.LoadOrStore(key, true); !told {
		s.options.Logger.Error("a key can't be decoded: requests for its name fail, lists omit it, and ends of its leases are not reported; if it is a guard or a token counter, no new leases are granted in its partition", "key", key, "error", err,
			"remedy", "delete the key and the guard of its partition together, as docs/failures.md says: no new leases are granted until the lost ones have expired")
	}
}

// logMended tells of what was lost with keys that were evicted or deleted.
func (s *Store) logMended(name fencing.Name, r *reply) {
	if r.lost {
		s.guards.losses.Add(1)
	}
	s.options.Logger.Error("keys of a name were evicted, deleted or damaged: its waiting requests queue again at the end; if leases were lost, no new ones are granted until those have expired",
		"name", name, "places_lost", r.forgot, "leases_lost", r.lost)
}

// transientAnswers are the first words of answers which say that the command did not run
// and might run soon.
var transientAnswers = []string{
	"MOVED", "ASK", "NOSCRIPT", "READONLY", "LOADING", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS", "MISCONF", "OOM", "BUSY",
}

// retryable reports whether sending again may help: it is safe always.
func retryable(err error) bool {
	var answer goredis.Error
	switch {
	case errors.Is(err, goredis.ErrClosed), errors.Is(err, errReply), errors.Is(err, errUnreadable), errors.Is(err, errText):
		return false
	case notExecuted(err):
		return true
	case errors.As(err, &answer), isMetaError(err):
		return false
	}
	return true // the network
}

// notExecuted reports whether a command is known to have done nothing, and might soon:
// Redis says that it did not run it, or it took so long that it was refused.
func notExecuted(err error) bool {
	if errors.Is(err, errText) || errors.Is(err, errStalled) || errors.Is(err, errNoMaster) || errors.Is(err, errRetired) || errors.Is(err, errReplica) {
		return true
	}
	var answer goredis.Error
	if !errors.As(err, &answer) {
		return false
	}
	word, _, _ := strings.Cut(answer.Error(), " ")
	return slices.Contains(transientAnswers, word) || rulesUnknown(err)
}

// metaError says that the data in Redis is not laid out as this program expects.
type metaError struct{ field, got, want string }

func (e *metaError) Error() string {
	return fmt.Sprintf("the data in this Redis has %s %s, and this program works with %s %s; use another database or the matching version",
		e.field, e.got, e.field, e.want)
}

func isMetaError(err error) bool {
	var meta *metaError
	return errors.As(err, &meta)
}
