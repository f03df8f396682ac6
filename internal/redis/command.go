package redis

import (
	"sync/atomic"
	"time"

	"fencepost/internal/fencing"
)

// verb is what an operation does, spelled as in the library.
type verb string

const (
	acquireVerb   verb = "acquire"
	renewVerb     verb = "renew"
	releaseVerb   verb = "release"
	confirmVerb   verb = "confirm"
	leaveVerb     verb = "leave"
	takeBackVerb  verb = "take_back"
	breakVerb     verb = "break"
	evictVerb     verb = "evict"
	claimVerb     verb = "claim"
	admitVerb     verb = "admit"
	judgeVerb     verb = "judge"
	expireVerb    verb = "expire"
	inspectVerb   verb = "inspect"
	historyVerb   verb = "history"
	listVerb      verb = "list"
	indexVerb     verb = "index"
	heartbeatVerb verb = "heartbeat"
	checkVerb     verb = "check"
	arriveVerb    verb = "arrive"
)

// rules reports whether a verb applies the rules, and so may hand a lock on.
func (v verb) rules() bool {
	switch v {
	case inspectVerb, historyVerb, judgeVerb, listVerb, indexVerb, heartbeatVerb, checkVerb, arriveVerb:
		return false
	}
	return true
}

// needsMemory reports whether Redis is to refuse a verb where memory is full.
func (v verb) needsMemory() bool { return v == acquireVerb || v == admitVerb || v == checkVerb }

// text is an argument that is written into the same memory again and again.
type text []byte

// MarshalBinary makes a *text an argument, which is not boxed at every use.
func (t *text) MarshalBinary() ([]byte, error) { return *t, nil }

// command is one operation, on its way in a call with others. It is used again when its
// caller has taken the answer; one whose caller has left is not.
type command struct {
	operation
	partition int
	text      text // the operation as it is sent
	bad       bool // it can't be: a text has a zero byte

	answer    string // one of a call's
	err       error  // why there is none
	now       fencing.Instant
	skewed    bool
	unacked   bool          // too few replicas have confirmed what it did
	uncertain bool          // an attempt may have been run, and what it came to is not known
	awaited   atomic.Bool   // its caller is there; whoever sets it to false, the caller that leaves or the answer, owns what follows
	done      chan struct{} // has room for the one answer
	timer     *time.Timer
	sent      fencing.Instant // the gateway's clock
	received  fencing.Instant
	sentAt    time.Time // the same as sent, with the monotonic reading
}

// newCommand prepares an operation on a name. What it adds is behind it.
func (s *Store) newCommand(o operation, more func(*codec)) *command {
	return s.newPartitionCommand(s.partitionOf(o.name), o, more)
}

// newPartitionCommand prepares an operation in a partition, which may be about no name.
func (s *Store) newPartitionCommand(partition int, o operation, more func(*codec)) *command {
	c, _ := s.commands.Get().(*command)
	if c == nil {
		c = &command{done: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
		c.timer.Stop()
	}
	c.operation, c.partition = o, partition
	w := codec{mode: writing, b: c.text[:0]}
	w.operation(&c.operation)
	if more != nil {
		more(&w)
	}
	c.text, c.bad = w.b, w.bad
	return c
}

// newLeaseCommand prepares an operation of who has a lease id.
func (s *Store) newLeaseCommand(v verb, name fencing.Name, lease fencing.LeaseID, stamp fencing.Stamp) *command {
	return s.newCommand(operation{verb: v, name: name, lease: lease.Public(), secret: lease.Hash(), stamp: stamp}, nil)
}

// newHeartbeatCommand prepares the heartbeat of a partition, which tells what is behind an
// entry, and of so many due names.
func (s *Store) newHeartbeatCommand(partition int, after string, due int) *command {
	o := operation{verb: heartbeatVerb, limit: due}
	return s.newPartitionCommand(partition, o, func(w *codec) { w.b = append(w.b, after...) })
}

// outlives reports whether a command that was not sent yet is sent although its
// caller has left: it ends something, and nobody would do it again.
func (c *command) outlives(member bool) bool {
	switch c.verb {
	case releaseVerb, leaveVerb, takeBackVerb, breakVerb, evictVerb, expireVerb:
		return !member
	}
	return false
}

// free makes a command available again. Nobody may still wait for it.
func (s *Store) free(c *command) {
	c.answer, c.err, c.uncertain, c.unacked = "", nil, false, false
	s.commands.Put(c)
}
