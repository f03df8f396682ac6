package system

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"fencepost/internal/redis/redistest"
	"fencepost/verify/check"
)

const (
	// startTimeout bounds how long a gateway may take until it is ready, and how long
	// until it has ended: only one that hangs takes so long.
	startTimeout = 5 * time.Minute

	// keptLines of a gateway's log are kept.
	keptLines = 400
)

// Gateway is a process of the real program. It keeps its address when it is started
// again.
type Gateway struct {
	Name string // in what faults have done: "gateway 1" and so on

	build Build
	env   []string
	addr  string

	node string // its address among the nodes of a cluster
	at   int    // its place in Links
	dir  string // of its data, if it is such a node

	// Proxies stand between this gateway alone and its store: one for Redis, one a
	// node for a quorum, none for the others.
	Proxies []*redistest.Proxy

	// Cable is between this gateway and its database, nil for other stores.
	Cable *Cable

	mu      sync.Mutex
	admin   string        // where it serves metrics and profiles, of the last process
	process *process      // nil: never started
	log     []string      // the last lines, of all its processes
	begun   int           // of them, before the process that was started last
	flaws   []string      // lines that no gateway may log
	hung    chan struct{} // see HangLog
	led     []time.Time   // when it said that it leads the others
}

// process is one run of the program.
type process struct {
	cmd    *exec.Cmd
	serves chan string   // gets the address, once
	failed atomic.Bool   // it said that it can't go on, and ends
	exited chan struct{} // closed when it has ended
	err    error         // of Wait, once exited is closed
}

// Addr returns host and port.
func (g *Gateway) Addr() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.addr
}

// URL returns the URL of the gateway, without a slash at the end.
func (g *Gateway) URL() string { return "http://" + g.Addr() }

// AdminURL returns the URL of metrics and profiles, where FENCEPOST_ADMIN_ADDR is set.
func (g *Gateway) AdminURL() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return "http://" + g.admin
}

// PID returns the id of the process that was started last.
func (g *Gateway) PID() int { return g.current().cmd.Process.Pid }

func (g *Gateway) current() *process {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.process
}

// Log returns the last lines that the gateway logged.
func (g *Gateway) Log() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Join(g.log, "")
}

// said reports whether the process that was started last has logged a text.
func (g *Gateway) said(text string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.ContainsFunc(g.log[g.begun:], func(line string) bool { return strings.Contains(line, text) })
}

// Use has the gateway be of another build from its next start on.
func (g *Gateway) Use(b Build) { g.build = b }

// Start starts the gateway that does not run, and waits until it is ready.
func (g *Gateway) Start() error {
	if err := g.Launch(); err != nil {
		return err
	}
	return g.AwaitReady(startTimeout)
}

// Launch starts the gateway that does not run, and waits until it answers.
func (g *Gateway) Launch() error {
	path, err := Binary(g.build)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(startTimeout)
	for {
		err := g.launch(path)
		if err == nil {
			return nil
		}
		if !errors.Is(err, errPortTaken) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(50 * time.Millisecond) // a passing connection has the port
	}
}

var errPortTaken = errors.New("another has the gateway's port")

// launch starts a process and waits until it says where it serves.
func (g *Gateway) launch(path string) error {
	listen := g.Addr()
	if listen == "" {
		listen = "127.0.0.1:0"
	}
	cmd := exec.Command(path)
	cmd.Args[0] = "gateway"
	cmd.Env = append([]string{"FENCEPOST_LISTEN_ADDR=" + listen}, g.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // should this process be killed
	stderr, its, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stderr = its
	err = cmd.Start()
	its.Close()
	if err != nil {
		stderr.Close()
		return err
	}
	p := &process{cmd: cmd, serves: make(chan string, 1), exited: make(chan struct{})}
	g.mu.Lock()
	g.process, g.begun = p, len(g.log)
	g.mu.Unlock()
	read := make(chan struct{})
	go func() {
		g.read(p, stderr)
		stderr.Close()
		close(read)
	}()
	go func() {
		p.err = cmd.Wait()
		if g.logHangs() == nil {
			<-read
		}
		close(p.exited)
	}()
	select {
	case addr := <-p.serves:
		g.mu.Lock()
		g.addr = addr
		g.mu.Unlock()
		return nil
	case <-p.exited:
		if strings.Contains(g.Log(), syscall.EADDRINUSE.Error()) {
			return errPortTaken
		}
		return fmt.Errorf("the gateway ended before it served: %w\n%s", p.err, g.Log())
	case <-time.After(startTimeout):
		return errors.Join(fmt.Errorf("the gateway does not serve:\n%s", g.Log()), g.Kill())
	}
}

// read reads what a process logs until it ends.
func (g *Gateway) read(p *process, stderr io.Reader) {
	served := false
	for lines := bufio.NewReader(stderr); ; {
		g.awaitReader()
		line, err := lines.ReadString('\n')
		if line != "" {
			g.keep(line)
		}
		if strings.Contains(line, `"msg":"the node has failed and stops"`) {
			p.failed.Store(true)
		}
		if err != nil {
			return
		}
		var entry struct{ Msg, Address string }
		if served || json.Unmarshal([]byte(line), &entry) != nil {
			continue
		}
		switch entry.Msg {
		case "serving metrics and profiles": // comes first
			g.mu.Lock()
			g.admin = entry.Address
			g.mu.Unlock()
		case "serving":
			served = true
			p.serves <- entry.Address
		}
	}
}

func (g *Gateway) keep(line string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.log = append(g.log, line); len(g.log) > 2*keptLines {
		g.log, g.begun = append([]string(nil), g.log[keptLines:]...), max(g.begun-keptLines, 0)
	}
	if strings.Contains(line, `"msg":"this node leads the cluster"`) {
		g.led = append(g.led, time.Now())
	}
	for _, flaw := range []string{"panic: ", "fatal error: ", "WARNING: DATA RACE", `"msg":"panic`} {
		if strings.Contains(line, flaw) && len(g.flaws) < 10 {
			g.flaws = append(g.flaws, line)
		}
	}
}

// Flaws returns an error if the gateway has logged a panic, a fatal error or a data
// race, in any of its runs.
func (g *Gateway) Flaws() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.flaws) == 0 {
		return nil
	}
	return fmt.Errorf("the gateway logged %q; the end of its log is\n%s", g.flaws, strings.Join(g.log, ""))
}

// AwaitReady waits until /readyz is answered with 200.
func (g *Gateway) AwaitReady(timeout time.Duration) error {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	var last string
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		select {
		case <-g.current().exited:
			return fmt.Errorf("the gateway has ended: %w\n%s", g.current().err, g.Log())
		default:
		}
		response, err := client.Get(g.URL() + "/readyz?verbose")
		if err != nil {
			last = err.Error()
			continue
		}
		body, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if response.StatusCode == http.StatusOK {
			return nil
		}
		last = string(body)
	}
	return fmt.Errorf("the gateway at %s is not ready after %s: %s", g.Addr(), timeout.Round(time.Millisecond), last)
}

// Kill ends the process at once, as kill -9 does. One that has ended is no error.
func (g *Gateway) Kill() error { return g.end(syscall.SIGKILL) }

// Ended returns what a fault has done that was to end the process with this id, which the gateway had.
func (g *Gateway) Ended(pid int) check.Harm {
	return check.Harm{To: g.Name, What: "processes ended", N: Ended(pid)}
}

// Stop asks the process to end (SIGTERM) and waits until it has; an exit status that
// is not 0 is an error.
func (g *Gateway) Stop() error {
	if err := g.end(syscall.SIGTERM); err != nil {
		return err
	}
	if p := g.current(); p != nil && p.err != nil {
		return fmt.Errorf("the gateway ended with %w\n%s", p.err, g.Log())
	}
	return nil
}

// Pause stops the process as it is, and returns when all of it stands.
func (g *Gateway) Pause() error {
	if p := g.current(); p != nil {
		return redistest.PauseProcess(p.cmd.Process)
	}
	return nil
}

// Resume lets a process go on that was paused.
func (g *Gateway) Resume() error { return g.signal(syscall.SIGCONT) }

// Running reports whether the process has not ended.
func (g *Gateway) Running() bool {
	p := g.current()
	if p == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

func (g *Gateway) signal(signal os.Signal) error {
	p := g.current()
	if p == nil {
		return nil
	}
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

func (g *Gateway) end(signal os.Signal) error {
	p := g.current()
	if p == nil {
		return nil
	}
	if err := g.signal(signal); err != nil {
		return err
	}
	select {
	case <-p.exited:
		return nil
	case <-time.After(startTimeout):
		err := fmt.Errorf("the gateway %d does not end on %s", p.cmd.Process.Pid, signal)
		if signal == syscall.SIGKILL {
			return err
		}
		return errors.Join(err, g.Kill())
	}
}
