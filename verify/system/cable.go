package system

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"

	"fencepost/internal/redis/redistest"
)

// Cable is what is between a gateway and its database. It passes everything on, unless it is to do harm to a turn.
type Cable struct {
	target   string
	listener net.Listener
	running  sync.WaitGroup

	next   atomic.Pointer[snag]
	silent atomic.Bool // nothing comes through any more, and no connection ends
	harmed atomic.Int64

	mu     sync.Mutex
	conns  map[net.Conn]bool
	mended chan struct{}
	closed bool
}

// snag is what happens to the next message with a text, before it arrives (do returns how much of it does) or once the answer is there.
type snag struct {
	text   []byte
	answer bool
	do     func(message []byte) (through int)
}

// Of the messages of a turn, by a text in them: those that begin one, and those that end it. PostgreSQL is sent the names of statements
// that were prepared before.
var (
	turnBegins = map[Kind]string{Postgres: bound("begin isolation level read committed read write"), MariaDB: "get_lock("}
	turnEnds   = map[Kind]string{Postgres: bound("commit"), MariaDB: "insert into log"}
)

// bound is in a message that carries out a statement, by the name that pgx gives it.
func bound(statement string) string {
	digest := sha256.Sum256([]byte(statement))
	return "\x00stmt_" + hex.EncodeToString(digest[:24])
}

// layCable starts a cable to a database, and returns its URL there.
func layCable(database string) (*Cable, string, error) {
	u, err := url.Parse(database)
	if err != nil {
		return nil, "", err
	}
	l, err := redistest.Listen()
	if err != nil {
		return nil, "", err
	}
	c := &Cable{target: u.Host, listener: l, conns: map[net.Conn]bool{}, mended: make(chan struct{})}
	c.running.Go(c.serve)
	u.Host = l.Addr().String()
	return c, u.String(), nil
}

func (c *Cable) serve() {
	for {
		near, err := c.listener.Accept()
		if err != nil {
			return
		}
		c.running.Go(func() {
			defer c.drop(near)
			if !c.keep(near) {
				return
			}
			c.wait()
			far, err := net.Dial("tcp", c.target)
			if err != nil {
				return
			}
			defer c.drop(far)
			if !c.keep(far) {
				return
			}
			var both sync.WaitGroup
			asked := &atomic.Pointer[snag]{} // what the answer to come has
			both.Go(func() { c.carry(far, near, asked, true) })
			both.Go(func() { c.carry(near, far, asked, false) })
			both.Wait()
		})
	}
}

func (c *Cable) carry(to, from net.Conn, asked *atomic.Pointer[snag], there bool) {
	defer to.Close()
	b := make([]byte, 1<<20)
	for {
		n, err := from.Read(b)
		through := n
		if s := c.next.Load(); there && s != nil && bytes.Contains(b[:n], s.text) && c.next.CompareAndSwap(s, nil) {
			if s.answer {
				asked.Store(s)
			} else {
				through = s.do(b[:n])
			}
		} else if !there {
			if s := asked.Swap(nil); s != nil {
				through = s.do(b[:n])
			}
		}
		c.wait()
		if through < n {
			_, _ = to.Write(b[:through])
			c.silent.Store(true)
			c.harmed.Add(1)
			c.wait()
			return
		}
		if _, writeErr := to.Write(b[:n]); err != nil || writeErr != nil {
			return
		}
	}
}

// wait returns when something comes through.
func (c *Cable) wait() {
	c.mu.Lock()
	mended := c.mended
	c.mu.Unlock()
	if c.silent.Load() {
		<-mended
	}
}

// mend has all come through again, by new connections.
func (c *Cable) mend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next.Store(nil)
	if !c.silent.Swap(false) {
		return
	}
	for conn := range c.conns {
		conn.Close()
	}
	close(c.mended)
	c.mended = make(chan struct{})
}

func (c *Cable) keep(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns[conn] = true
	return !c.closed
}

func (c *Cable) drop(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.conns, conn)
	conn.Close()
}

func (c *Cable) close() error {
	c.mu.Lock()
	c.closed = true
	for conn := range c.conns {
		conn.Close()
	}
	c.mu.Unlock()
	c.mend()
	err := c.listener.Close()
	c.running.Wait()
	return err
}

// cutInTurn has only a part of what a gateway sends come through, while or before it has the turn, and nothing after it: its machine
// has lost its power, or the cable is cut. The connections stay open.
func cutInTurn(s *System, random *rand.Rand) (*Harm, error) {
	g := pick(random, s.Gateways)
	text := pick(random, []string{turnBegins[s.Kind], turnEnds[s.Kind], turnEnds[s.Kind]})
	part := random.Float64()
	g.Cable.next.Store(&snag{text: []byte(text), do: func(message []byte) int { return int(part * float64(len(message))) }})
	seen := Since(func() int { return int(g.Cable.harmed.Load()) })
	return &Harm{"the cable of " + g.Name, "messages cut", seen, func() error { g.Cable.mend(); return nil }}, nil
}

// stopInTurn has a gateway stand still when it has the turn, before it is told so or before it has sent its end.
func stopInTurn(s *System, random *rand.Rand) (*Harm, error) {
	g := pick(random, s.Gateways)
	text, answer := turnBegins[s.Kind], true
	if random.IntN(2) == 0 {
		text, answer = turnEnds[s.Kind], random.IntN(2) == 0
	}
	pid := g.PID()
	stopped := atomic.Bool{}
	g.Cable.next.Store(&snag{text: []byte(text), answer: answer, do: func(message []byte) int {
		stopped.Store(syscall.Kill(pid, syscall.SIGSTOP) == nil)
		return len(message)
	}})
	seen := func() (int, error) {
		if !stopped.Load() {
			return 0, nil
		}
		return Standing(pid), nil
	}
	return &Harm{g.Name, "processes standing still in a turn", seen, func() error {
		g.Cable.next.Store(nil)
		return g.Resume()
	}}, nil
}
