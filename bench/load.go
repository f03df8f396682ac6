package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// client speaks just enough HTTP/1.1 to acquire and release one lock on one
// connection, and costs little: on a small machine the load competes with what
// it measures.
type client struct {
	conn    net.Conn
	in      *bufio.Reader
	acquire []byte
	release string // up to the lease id
	body    []byte
	out     []byte
}

func newClient(addr string, n int) (*client, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return clientOn(conn, fmt.Sprintf("bench/%d", n)), nil
}

// clientOn makes a client for one name.
func clientOn(conn net.Conn, name string) *client {
	const body = `{"ttl_ms":30000,"owner":"worker-7"}`
	return &client{
		conn: conn, in: bufio.NewReaderSize(conn, 4096),
		acquire: fmt.Appendf(nil, "POST /locks/%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", name, len(body), body),
		release: fmt.Sprintf("DELETE /locks/%s HTTP/1.1\r\nHost: localhost\r\nLease-Id: ", name),
	}
}

// identify has a client come with a key.
func (c *client) identify(key string) {
	const host = "Host: localhost\r\n"
	with := host + "Authorization: Bearer " + key + "\r\n"
	c.acquire = bytes.Replace(c.acquire, []byte(host), []byte(with), 1)
	c.release = strings.Replace(c.release, host, with, 1)
}

// newWaitingClient makes a client that waits for a name that others want too.
func newWaitingClient(addr, name string) (*client, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	const body = `{"ttl_ms":30000,"wait_ms":60000,"owner":"worker-7"}`
	return &client{
		conn: conn, in: bufio.NewReaderSize(conn, 4096),
		acquire: fmt.Appendf(nil, "POST /locks/%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", name, len(body), body),
		release: fmt.Sprintf("DELETE /locks/%s HTTP/1.1\r\nHost: localhost\r\nLease-Id: ", name),
	}, nil
}

// take acquires, however long that takes.
func (c *client) take() (lease []byte, err error) {
	if err := c.exchange(c.acquire, 201); err != nil {
		return nil, fmt.Errorf("acquire: %w", err)
	}
	return leaseID(c.body)
}

// give releases.
func (c *client) give(lease []byte) error {
	c.out = append(append(append(c.out[:0], c.release...), lease...), "\r\n\r\n"...)
	if err := c.exchange(c.out, 204); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}

// pair acquires and releases.
func (c *client) pair() error {
	lease, err := c.take()
	if err != nil {
		return err
	}
	return c.give(lease)
}

func leaseID(body []byte) ([]byte, error) {
	_, rest, found := bytes.Cut(body, []byte(`"lease_id":"`))
	id, _, closed := bytes.Cut(rest, []byte(`"`))
	if !found || !closed {
		return nil, fmt.Errorf("no lease_id in %q", body)
	}
	return id, nil
}

func tokenOf(body []byte) (int64, error) {
	_, rest, _ := bytes.Cut(body, []byte(`"fencing_token":`))
	digits, _, _ := bytes.Cut(rest, []byte(","))
	return strconv.ParseInt(string(digits), 10, 64)
}

func (c *client) exchange(request []byte, want int) error {
	if _, err := c.conn.Write(request); err != nil {
		return err
	}
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return err
	}
	status := 0
	if len(line) > 12 {
		status, _ = strconv.Atoi(string(line[9:12]))
	}
	length := 0
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) <= 2 {
			break
		}
		if len(line) > 15 && strings.EqualFold(string(line[:15]), "content-length:") {
			if length, err = strconv.Atoi(textproto.TrimString(string(line[15:]))); err != nil {
				return err
			}
		}
	}
	c.body = slices.Grow(c.body[:0], length)[:length]
	if _, err := io.ReadFull(c.in, c.body); err != nil {
		return err
	}
	if status != want {
		return fmt.Errorf("answered %d: %s", status, c.body)
	}
	return nil
}

// crew are the clients of one target, spread over its addresses. Their connections stay open between
// rounds.
type crew []*client

func newCrew(size int, addrs ...string) (crew, error) {
	var all crew
	for i := range size {
		c, err := newClient(addrs[i%len(addrs)], i)
		if err != nil {
			return all, err
		}
		all = append(all, c)
	}
	return all, nil
}

func (all crew) close() {
	for _, c := range all {
		c.conn.Close()
	}
}

// closedLoop returns how many pieces of work a second so many clients get
// through, each beginning one when it has ended another.
func closedLoop(clients int, length time.Duration, work func(client int) error) (float64, error) {
	var pairs atomic.Int64
	var stop atomic.Bool
	faults := make([]error, clients)
	var group sync.WaitGroup
	start := time.Now()
	for i := range clients {
		group.Go(func() {
			done := 0
			for !stop.Load() {
				if faults[i] = work(i); faults[i] != nil {
					return
				}
				done++
			}
			pairs.Add(int64(done))
		})
	}
	time.AfterFunc(length, func() { stop.Store(true) })
	group.Wait()
	return float64(pairs.Load()) / time.Since(start).Seconds(), errors.Join(faults...)
}

// latencies are what single requests took, sorted.
type latencies []time.Duration

func (l latencies) at(quantile float64) time.Duration {
	return l[min(len(l)-1, int(quantile*float64(len(l))))]
}

// irregular sends pairs at random moments (exponential gaps), rate a second on
// average, whether or not the earlier ones have been answered, and returns how
// long the acquires took from the moment they were due.
func irregular(addr string, rate float64, length time.Duration, seed uint64) (latencies, error) {
	const connections = 256 // more than ever are in use at once, at a tenth of the capacity
	all, err := newCrew(connections, addr)
	defer all.close()
	if err != nil {
		return nil, err
	}
	free := make(chan *client, connections)
	for _, c := range all {
		free <- c
	}
	random := rand.New(rand.NewPCG(seed, seed))
	var mu sync.Mutex
	var took latencies
	var fault error
	var group sync.WaitGroup
	start := time.Now()
	for due := time.Duration(0); due < length; due += time.Duration(random.ExpFloat64() / rate * float64(time.Second)) {
		for wait := due - time.Since(start); wait > 0; wait = due - time.Since(start) {
			time.Sleep(wait)
		}
		group.Go(func() {
			c := <-free
			defer func() { free <- c }()
			lease, err := c.take()
			elapsed := time.Since(start) - due
			if err == nil {
				err = c.give(lease)
			}
			mu.Lock()
			defer mu.Unlock()
			took, fault = append(took, elapsed), errors.Join(fault, err)
		})
	}
	group.Wait()
	slices.Sort(took)
	return took, fault
}
