package redis

import (
	"context"
	"fmt"
	"sync/atomic"
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

// text is an argument that is written into the same memory again and again.
type text []byte

// MarshalBinary makes a *text an argument.
func (t *text) MarshalBinary() ([]byte, error) { return *t, nil }

// nowArg is where a test's clock stands among the arguments behind the keys.
const nowArg = 7

// command is one run of a script. It is used again when its caller has taken
// the answer, for the same script; one whose caller has left is not. Its
// arguments are pointers to its fields, so they are put together once.
type command struct {
	name      fencing.Name
	partition int
	script    *script
	args      []any
	guardAt   int  // where the sender's guard stands among them
	asSource  bool // send the source: Redis does not know the digest

	lock, ended    text // keys
	claim          text // secret, lease and stamp; the token of a break; the server of an arrival
	member         string
	tail           string // of the record; the token of a claim; the rest of an arrival
	mode           string // of a renewal
	ttl            int64  // µs
	hold           int    // that was asked for
	most           int64
	shown          int64 // how many holders to show at most
	sentArg, floor int64
	now            text // 16 digits

	cmd      once
	unacked  bool          // too few replicas have confirmed what it did
	missed   bool          // an attempt may have been run, and what it came to is not known
	awaited  atomic.Bool   // its caller is there; who sets it to false is done first
	done     chan struct{} // has room for the one answer
	timer    *time.Timer
	sent     fencing.Instant // the gateway's clock
	received fencing.Instant
	sentAt   time.Time // the same as sent, with the monotonic reading
}

// newCommand prepares a verb on a name.
func (s *Store) newCommand(script *script, name fencing.Name) *command {
	return s.newLeaseCommand(script, name, noLease)
}

// newLeaseCommand prepares a verb on a name that is about a lease.
func (s *Store) newLeaseCommand(script *script, name fencing.Name, lease fencing.LeasePublic) *command {
	c, _ := s.commands[script.index].Get().(*command)
	if c == nil {
		c = &command{script: script}
		s.complete(c, []any{&c.lock, nil, nil, nil, &c.ended, nil})
	}
	c.name, c.partition, c.member = name, s.partitionOf(name), string(name)
	k := &s.keys[c.partition]
	c.lock = append(append(c.lock[:0], k.lockPrefix...), name...)
	c.args[4], c.args[5], c.args[6], c.args[8] = k.token, k.expiry, k.names, k.never
	c.ended = append(append(append(append(c.ended[:0], k.endedPrefix...), name...), ':'), lease...)
	return c
}

// newHeartbeatCommand prepares the heartbeat of a partition.
func (s *Store) newHeartbeatCommand(partition int) *command {
	c := s.newPartitionCommand(heartbeatScript, partition)
	c.most = dueAtOnce
	return c
}

// newPartitionCommand prepares what is about no name.
func (s *Store) newPartitionCommand(script *script, partition int) *command {
	c := s.newCommand(script, "")
	k := &s.keys[partition]
	c.partition, c.lock, c.ended = partition, append(c.lock[:0], k.lockPrefix...), append(c.ended[:0], k.endedPrefix...)
	c.args[4], c.args[5], c.args[6], c.args[8] = k.token, k.expiry, k.names, k.never
	return c
}

// newListCommand prepares the reading of records of one partition.
func (s *Store) newListCommand(partition int, names []fencing.Name) *command {
	c := &command{script: listScript, partition: partition, shown: fencing.MaxHoldersShown}
	keys := make([]any, len(names), len(names)+1)
	for i, name := range names {
		keys[i] = s.keys[partition].lock(name)
	}
	keys = append(keys, s.keys[partition].never)
	s.complete(c, keys)
	return c
}

// complete makes the parts of a command that stay.
func (s *Store) complete(c *command, keys []any) {
	c.args = append(append([]any{"evalsha", c.script.sha, len(keys)}, keys...), &c.sentArg, s.sender.guard, &c.member, &c.floor)
	c.guardAt = 3 + len(keys) + 1
	c.args = append(c.args, c.script.argv(c)...)
	if s.options.Now != nil {
		for len(c.args) < 3+len(keys)+nowArg {
			c.args = append(c.args, "")
		}
		c.args = append(c.args, &c.now)
	}
	c.cmd = once{goredis.NewCmd(context.Background(), c.args...)} // shares c.args, whose length stays
	c.done = make(chan struct{}, 1)
	c.timer = time.NewTimer(time.Hour)
	c.timer.Stop()
}

// outlives reports whether a command that was not sent yet is sent although its
// caller has left: it ends something, and nobody would do it again.
func (c *command) outlives(member bool) bool {
	switch c.script {
	case releaseScript, leaveScript, takeBackScript, breakScript, expireScript:
		return !member
	}
	return false
}

// free makes a command available again. Nobody may still wait for it.
func (s *Store) free(c *command) {
	c.asSource, c.missed, c.unacked, c.tail, c.mode, c.hold = false, false, false, "", "", 0
	c.cmd.SetVal(nil)
	if c.script != listScript { // its number of keys differs
		s.commands[c.script.index].Put(c)
	}
}

// prepare stamps the command just before it is sent: time that passed in a
// queue is no skew. now is the store's clock, 0 to leave it to Redis.
func (c *command) prepare(now, sent fencing.Instant, floor int64) {
	if c.asSource {
		c.args[0], c.args[1] = "eval", c.script.source
	} else {
		c.args[0], c.args[1] = "evalsha", c.script.sha
	}
	if now != 0 {
		c.now = fmt.Appendf(c.now[:0], "%016d", now)
	}
	c.unacked = false
	c.sent, c.sentArg, c.floor = sent, int64(sent), floor
	c.cmd.SetErr(nil)
	c.cmd.SetVal(nil)
}
