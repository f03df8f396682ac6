package sessions

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"fencepost/verify/check"
	"fencepost/verify/system"
)

// client holds the stream of a session.
type client interface {
	told() *granted
	kill() error // may be repeated
	stop() error // it reads no more, and its system goes on to acknowledge
	cut() error  // no packet arrives any more, and none leaves

	// harm returns what the last of these has done.
	harm() check.Harm
}

// granted is what an event tells of leases: of several names, or of one.
type granted struct {
	LeaseID string `json:"lease_id"`
	Name    string `json:"name"`
	Token   uint64 `json:"fencing_token"`
	Locks   []struct {
		Name  string `json:"name"`
		Token uint64 `json:"fencing_token"`
	} `json:"locks"`
}

func (g *granted) tokens() map[string]uint64 {
	tokens := map[string]uint64{}
	for _, l := range g.Locks {
		tokens[l.Name] = l.Token
	}
	if len(g.Locks) == 0 {
		tokens[g.Name] = g.Token
	}
	return tokens
}

// event is one of a stream.
type event struct {
	kind string // its name; "refused" for a plain answer, and "closed" for an end without a word
	at   time.Time
	Code string `json:"code"`
	granted
}

// open asks for the names, again where nothing is known of them yet, and returns when they are granted.
func (s *session) open(ctx context.Context, g *system.Gateway, start func(ctx context.Context, url, leaseID, body string) (client, error), leaseID string, linger, maxHold time.Duration) (client, error) {
	ask := map[string]any{"ttl_ms": ttl.Milliseconds()}
	var list []string
	for i := range names {
		list = append(list, fmt.Sprintf("%s%02d", s.prefix, i))
	}
	ask["names"] = list
	if linger > 0 {
		ask["linger_ms"] = linger.Milliseconds()
	}
	if maxHold > 0 {
		ask["max_hold_ms"] = maxHold.Milliseconds()
	}
	body, err := json.Marshal(ask)
	if err != nil {
		return nil, err
	}
	c, err := start(ctx, g.URL(), leaseID, string(body))
	for giveUp := time.Now().Add(patience); isUnknown(err) && time.Now().Before(giveUp); <-time.After(look) {
		c, err = start(ctx, g.URL(), leaseID, string(body))
	}
	if err != nil {
		return nil, err
	}
	if got := c.told(); len(got.Locks) != names {
		return nil, errors.Join(fmt.Errorf("%d of %d names are granted", len(got.Locks), names), c.kill())
	}
	return c, nil
}

// reader keeps the events of a stream until its end.
type reader struct {
	mu     sync.Mutex
	events []event
	answer chan error // of the grant
}

func read(from io.Reader) *reader {
	r := &reader{answer: make(chan error, 1)}
	go r.follow(bufio.NewReader(from))
	return r
}

// follow reads the lines of events; those of HTTP itself look like none.
func (r *reader) follow(lines *bufio.Reader) {
	kind := ""
	for {
		line, err := lines.ReadString('\n')
		if name, is := strings.CutPrefix(line, "event: "); is {
			kind = strings.TrimSpace(name)
		} else if data, is := strings.CutPrefix(line, "data: "); is {
			r.take(kind, data)
		} else if strings.HasPrefix(line, "{") {
			r.take("refused", line)
		}
		if err != nil {
			r.take("closed", "{}")
			return
		}
	}
}

func (r *reader) take(kind, data string) {
	e := event{kind: kind, at: time.Now()}
	err := json.Unmarshal([]byte(data), &e)
	r.mu.Lock()
	r.events = append(r.events, e)
	r.mu.Unlock()
	switch kind {
	case "granted":
		r.settle(err)
	case "refused", "lost", "draining", "closed":
		r.settle(&notGranted{kind, e.Code, data})
	}
}

// notGranted is a stream that ended before a grant.
type notGranted struct{ kind, code, data string }

func (n *notGranted) Error() string {
	return fmt.Sprintf("the stream ended before a grant: %s %s", n.kind, n.data)
}

// isUnknown reports whether nothing is known of what was asked for.
func isUnknown(err error) bool {
	n, is := errors.AsType[*notGranted](err)
	return is && n.code == "unavailable"
}

// said returns the events so far.
func (r *reader) said() []event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

func (r *reader) settle(err error) {
	select {
	case r.answer <- err:
	default:
	}
}

// told returns the grant, or an empty one.
func (r *reader) told() *granted {
	events := r.said()
	if i := slices.IndexFunc(events, func(e event) bool { return e.kind == "granted" }); i >= 0 {
		return &events[i].granted
	}
	return &granted{}
}

func (r *reader) await() error {
	select {
	case err := <-r.answer:
		return err
	case <-time.After(patience):
		return errors.New("no grant in time")
	}
}

// curl is a process of its own.
type curl struct {
	*reader
	cmd     *exec.Cmd
	once    sync.Once
	stopped bool
}

func startCurl(ctx context.Context, url, leaseID, body string) (client, error) {
	args := []string{"-sN", "--noproxy", "*", "-H", "Accept: text/event-stream", "-H", "Content-Type: application/json", "-d", body}
	if leaseID != "" {
		args = append(args, "-H", "Lease-Id: "+leaseID)
	}
	c := &curl{cmd: exec.CommandContext(ctx, "curl", append(args, url+"/locks")...)}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	c.reader = read(out)
	if err := c.await(); err != nil {
		return nil, errors.Join(err, c.kill())
	}
	return c, nil
}

func (c *curl) kill() error {
	var err error
	c.once.Do(func() {
		err = c.cmd.Process.Kill()
		_ = c.cmd.Wait() // says that it was killed
	})
	return err
}

func (c *curl) stop() error {
	c.stopped = true
	return c.cmd.Process.Signal(syscall.SIGSTOP)
}

func (c *curl) cut() error { return errors.New("a process of its own can't be cut off") }

func (c *curl) harm() check.Harm {
	pid := c.cmd.Process.Pid
	if c.stopped {
		return check.Harm{To: "client", What: "processes standing still", N: system.Standing(pid)}
	}
	return check.Harm{To: "client", What: "processes ended", N: system.Ended(pid)}
}

// conn is a connection of this process.
type conn struct {
	*reader
	conn *net.TCPConn
}

func dial(_ context.Context, url, leaseID, body string) (client, error) {
	c, err := post(url+"/locks", leaseID, body)
	if err != nil {
		return nil, err
	}
	if err := c.await(); err != nil {
		return nil, errors.Join(err, c.kill())
	}
	return c, nil
}

// post sends a request for a stream, and reads what comes.
func post(url, leaseID, body string) (*conn, error) {
	request, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Close = true // a plain answer ends with the connection
	request.Header.Set("Accept", "text/event-stream")
	request.Header.Set("Content-Type", "application/json")
	if leaseID != "" {
		request.Header.Set("Lease-Id", leaseID)
	}
	c, err := net.DialTimeout("tcp", request.URL.Host, patience)
	if err != nil {
		return nil, err
	}
	if err := request.Write(c); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &conn{read(c), c.(*net.TCPConn)}, nil
}

func (c *conn) kill() error { c.conn.Close(); return nil }
func (c *conn) stop() error { return errors.New("a connection of this process can't be stopped") }

// cut has the system drop each packet that comes for the connection, so that it acknowledges none.
func (c *conn) cut() error {
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return err
	}
	drop := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	var refused error
	err = raw.Control(func(fd uintptr) {
		refused = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(drop)), Filter: &drop[0]})
	})
	return errors.Join(err, refused)
}

// harm returns how many packets the system has dropped, by its own account: socket(7), SO_MEMINFO.
func (c *conn) harm() check.Harm {
	const drops = 8 // the place of that number
	var account [drops + 1]uint32
	raw, err := c.conn.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) {
			size := uint32(len(account) * 4)
			_, _, _ = unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO, uintptr(unsafe.Pointer(&account)), uintptr(unsafe.Pointer(&size)), 0)
		})
	}
	return check.Harm{To: "client", What: "packets dropped", N: int(account[drops])}
}

func countLocks(body []byte) (int, error) {
	var page struct {
		Locks []json.RawMessage `json:"locks"`
	}
	err := json.Unmarshal(body, &page)
	return len(page.Locks), err
}
