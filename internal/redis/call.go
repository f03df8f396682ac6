package redis

import (
	"context"
	"errors"
	"strings"
	"time"

	"fencepost/internal/fencing"

	goredis "github.com/redis/go-redis/v9"
)

// callOperations bounds how many operations one call carries, and with it how long Redis
// serves nobody else: of what has come due they all together do no more than one step.
const callOperations = 16

// once is a command that the client library never sends again by itself, not
// even where its retries can't be switched off.
type once struct{ *goredis.Cmd }

// NoRetry keeps the client from sending the command again.
func (once) NoRetry() bool { return true }

// Clone keeps a copy from being sent again as well.
func (c once) Clone() goredis.Cmder { return once{c.Cmd.Clone().(*goredis.Cmd)} }

// How Redis is asked to run the rules.
const (
	byFunction = iota
	byDigest   // where there are no Functions
	bySource   // and it does not know the digest
)

// call is one run of the rules, with operations of one partition.
type call struct {
	of     []*command
	key    any
	header lateHeader
	how    int
	cmd    once
}

// lateHeader is a header that is written when its call is: the connection that it goes by
// may be new, and what was found at its other end counts. It may also be older than the last
// check, and lead to a server that was left: that one is not the one which the header names.
type lateHeader struct {
	node   *node
	header header
}

// MarshalBinary is called when there is a connection, which has had its onConnect.
func (l *lateHeader) MarshalBinary() ([]byte, error) {
	l.header.server = l.node.serves()
	w := codec{mode: writing, b: make([]byte, 0, 192)}
	w.header(&l.header)
	return w.b, nil
}

// runner is who runs calls: a node, or a new connection to it.
type runner interface {
	Process(context.Context, goredis.Cmder) error
	Pipeline() goredis.Pipeliner
	Do(context.Context, ...any) *goredis.Cmd
}

// prepare makes the command, anew for each attempt.
func (c *call) prepare(ctx context.Context) {
	kind := allowOOM
	for _, one := range c.of {
		if one.verb.needsMemory() {
			kind = denyOOM
		}
	}
	args := make([]any, 0, 5+len(c.of))
	switch c.how {
	case byFunction:
		args = append(args, "fcall", rules().functions[kind])
	case byDigest:
		args = append(args, "evalsha", rules().digests[kind])
	case bySource:
		args = append(args, "eval", rules().scripts[kind])
	}
	args = append(args, 1, c.key, &c.header)
	for _, one := range c.of {
		args = append(args, &one.text)
	}
	c.cmd = once{goredis.NewCmd(ctx, args...)}
}

// take gives each operation its answer or the error.
func (c *call) take() {
	value, err := c.cmd.Slice()
	if err == nil && len(value) != 1+len(c.of) {
		err = errReply
	}
	var now fencing.Instant
	var skewed bool
	if err == nil {
		head, _ := value[0].(string)
		r := codec{rest: head}
		number(&r, "", &now)
		flag(&r, "", &skewed)
		if r.bad {
			err = errReply
		}
	}
	for i, one := range c.of {
		one.err, one.now, one.skewed = err, now, skewed
		if err == nil {
			one.answer, _ = value[1+i].(string)
		}
	}
}

// exec runs calls, in order and by one connection, and with acks asks replicas what they
// have. Redis is told the rules where it does not know them. It returns false where
// too few replicas confirm them.
func (s *sender) exec(ctx context.Context, on runner, n *node, calls []*call, acks bool) bool {
	acked := true
	for _, c := range calls {
		if s.clock().UnixNano() < n.scriptsUntil.Load() {
			c.how = byDigest
		}
	}
	for attempt, some := 0, calls; len(some) > 0; attempt++ {
		acked = s.pipe(ctx, on, some, acks)
		var unknown []*call
		for _, c := range some {
			if rulesUnknown(c.cmd.Err()) {
				unknown = append(unknown, c)
			}
		}
		if some = unknown; len(some) == 0 || attempt == maxLoads {
			break
		}
		if err := s.loadRules(ctx, on, n, some); err != nil {
			for _, c := range some {
				c.cmd.SetErr(err)
			}
			break
		}
	}
	var less []*call
	for _, c := range calls {
		c.take()
		if goredis.HasErrorPrefix(c.cmd.Err(), "OOM") {
			if of := withoutGrants(c.of); len(of) > 0 && len(of) < len(c.of) {
				less = append(less, &call{of: of, key: c.key, header: c.header})
			}
		}
	}
	if len(less) > 0 {
		return s.exec(ctx, on, n, less, acks) && acked
	}
	return acked
}

// withoutGrants returns the commands that may run where memory is full.
func withoutGrants(all []*command) []*command {
	var some []*command
	for _, c := range all {
		if !c.verb.needsMemory() {
			some = append(some, c)
		}
	}
	return some
}

// pipe sends calls once and waits for the answers.
func (s *sender) pipe(ctx context.Context, on runner, calls []*call, acks bool) bool {
	for _, c := range calls {
		c.prepare(ctx)
	}
	if len(calls) == 1 && !acks {
		_ = on.Process(ctx, calls[0].cmd) // the command holds its error
		return true
	}
	pipe := on.Pipeline()
	for _, c := range calls {
		_ = pipe.Process(ctx, c.cmd)
	}
	var acked func() bool
	if acks {
		acked = s.askReplicas(ctx, pipe, calls[len(calls)-1].of[0].partition)
	}
	_, err := pipe.Exec(ctx)
	for _, c := range calls { // the library leaves the error out where it could get no connection because Redis refused one
		if err != nil && c.cmd.Err() == nil && c.cmd.Val() == nil {
			c.cmd.SetErr(err)
		}
	}
	return acked == nil || acked()
}

// scriptsFor is how long a server is taken for one without Functions that was found to have
// none, or none for this user, until it is asked again: scripts cost three times as much.
const scriptsFor = time.Minute

// maxLoads is how often a call is sent again because Redis did not know the rules: as a
// Function, as a script, and with its source.
const maxLoads = 3

// loadRules has Redis know the rules before some calls are sent again: as a library, or as
// scripts where it takes none.
func (s *sender) loadRules(ctx context.Context, on runner, n *node, calls []*call) error {
	how := bySource
	if calls[0].how == byFunction {
		err := calls[0].cmd.Err()
		if !noFunctions(err) {
			err = on.Do(ctx, "function", "load", rules().source).Err()
		}
		switch how = byFunction; {
		case noFunctions(err):
			n.scriptsUntil.Store(s.clock().Add(scriptsFor).UnixNano())
			how = byDigest
		case goredis.HasErrorPrefix(err, "OOM"):
			how = byDigest
		case err != nil && !strings.Contains(err.Error(), "already exists"):
			return err
		}
	}
	for _, c := range calls {
		c.how = how
	}
	return nil
}

// rulesUnknown reports whether Redis was not told the rules yet, or has no Functions.
func rulesUnknown(err error) bool {
	var answer goredis.Error
	return errors.As(err, &answer) && (strings.Contains(answer.Error(), "Function not found") ||
		goredis.HasErrorPrefix(err, "NOSCRIPT") || noFunctions(err))
}

// noFunctions reports whether Redis has no Functions, or none for this user.
func noFunctions(err error) bool {
	if err == nil {
		return false
	}
	text := strings.ToLower(err.Error())
	return strings.HasPrefix(text, "err unknown command") || strings.HasPrefix(text, "noperm ") && (strings.Contains(text, "'fcall'") || strings.Contains(text, "'function"))
}
