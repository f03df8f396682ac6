package redis

import (
	"context"
	"strconv"
	"sync"
	"time"

	"fencepost/internal/fencing"

	goredis "github.com/redis/go-redis/v9"
)

// once is a command that the client library never sends again by itself, not
// even where its retries can't be switched off.
type once struct{ *goredis.Cmd }

// NoRetry keeps the client from sending the command again.
func (once) NoRetry() bool { return true }

// Clone keeps a copy from being sent again as well.
func (c once) Clone() goredis.Cmder { return once{c.Cmd.Clone().(*goredis.Cmd)} }

// Positions in the arguments of a script with n keys, counted from argsFixed+n.
const (
	argsFixed = 3 // EVALSHA, the digest, the number of keys
	argNow    = 0
	argSent   = 1
	argFloor  = 3
	argVerb   = 5 // the first that differs by verb
)

// verbKeys is the number of keys of every script but list.
const verbKeys = 5

// command is one run of a script. It is used again when its caller has taken
// the answer; one whose caller has left is not.
type command struct {
	name      fencing.Name
	partition int
	script    *script
	keys      int
	args      []any
	asSource  bool // send the source: Redis does not know the digest

	cmd      once
	done     chan struct{} // has room for the one answer
	timer    *time.Timer
	sent     fencing.Instant // the gateway's clock
	received fencing.Instant
	sentAt   time.Time // the same as sent, with the monotonic reading
}

var commands = sync.Pool{New: func() any {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return &command{done: make(chan struct{}, 1), timer: timer, args: make([]any, 0, argsFixed+verbKeys+11)}
}}

// newCommand prepares a verb on a name; argv is what follows the name.
func (s *Store) newCommand(script *script, name fencing.Name, argv ...any) *command {
	c := commands.Get().(*command)
	c.name, c.partition, c.script, c.keys = name, partitionOf(name), script, verbKeys
	k := &s.keys[c.partition]
	c.args = append(c.args[:0], "evalsha", script.sha, verbKeys, k.lock(name), k.token, k.expiry, k.names, k.endedPrefix,
		"", nil, s.maxSkew, nil, string(name))
	c.args = append(c.args, argv...)
	return c
}

// newListCommand prepares the reading of records of one partition.
func (s *Store) newListCommand(partition int, names []fencing.Name) *command {
	c := commands.Get().(*command)
	c.name, c.partition, c.script, c.keys = "", partition, listScript, len(names)
	c.args = append(c.args[:0], "evalsha", listScript.sha, len(names))
	for _, name := range names {
		c.args = append(c.args, s.keys[partition].lock(name))
	}
	c.args = append(c.args, "", nil, s.maxSkew, nil, "")
	return c
}

// free makes a command available again. Nobody may still wait for it.
func (c *command) free() {
	clear(c.args) // let go of what the caller passed
	c.cmd, c.asSource = once{}, false
	commands.Put(c)
}

// prepare stamps the command just before it is sent: time that passed in a
// queue is no skew.
func (c *command) prepare(ctx context.Context, now any, sent fencing.Instant, sentArg any, floor int64) {
	if c.asSource {
		c.args[0], c.args[1] = "eval", c.script.source
	} else {
		c.args[0], c.args[1] = "evalsha", c.script.sha
	}
	argv := c.args[argsFixed+c.keys:]
	argv[argNow], argv[argSent], argv[argFloor] = now, sentArg, strconv.FormatInt(floor, 10)
	c.sent = sent
	c.cmd = once{goredis.NewCmd(ctx, c.args...)}
}
