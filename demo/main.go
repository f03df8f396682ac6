//go:build unix

// Demo shows what fencing tokens are for: two clients write a file under one lock, one of
// them is stopped for longer than its lease lives, and goes on. First without a fence, then with
// one. Gateway and clients are processes of their own.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	if os.Getenv(clientSettings) != "" {
		os.Exit(clientMain())
	}
	gateway := flag.String("gateway", "bin/gateway", "the gateway's program")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	s := newScreen(os.Stdout)
	err := show(ctx, *gateway, s)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

const (
	ttl = time.Second // of the leases

	// patience bounds every step that waits for a process.
	patience = 10 * time.Second

	file = "report.txt"
)

// show plays both acts, on a gateway of its own with its data in a directory of its own.
func show(ctx context.Context, program string, s *screen) error {
	ctx, cancel := context.WithTimeout(ctx, 6*patience)
	defer cancel()
	dir, err := os.MkdirTemp("", "fencepost-demo")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	url, stop, err := startGateway(ctx, program, filepath.Join(dir, "data"))
	if err != nil {
		return err
	}
	defer stop()
	s.line("Two clients, Anna and Bert, write %s, each while it has the lock \"report\" from the gateway at %s.", file, url)
	s.line("A lease lives for %s unless it is renewed.", ttl)
	for _, fenced := range []bool{false, true} {
		a := act{screen: s, gateway: url, dir: filepath.Join(dir, fmt.Sprintf("fenced-%v", fenced)), fenced: fenced}
		if err := a.play(ctx); err != nil {
			return err
		}
	}
	s.line("")
	s.line("The lock can't keep a client from going on that was stopped: it does not know that it was. The storage can,")
	s.line("by comparing the token of each write with the highest it has seen: docs/storage says how for yours.")
	return nil
}

// startGateway starts the gateway on its embedded store and returns where it serves.
func startGateway(ctx context.Context, program, data string) (url string, stop func(), err error) {
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), "FENCEPOST_LISTEN_ADDR=127.0.0.1:0", "FENCEPOST_DATA_DIR="+data, "FENCEPOST_STORE=embedded",
		"FENCEPOST_LOG_FORMAT=json", "FENCEPOST_LOG_LEVEL=info")
	log, err := cmd.StderrPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	serves := make(chan string, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			var entry struct{ Msg, Address string }
			if json.Unmarshal(lines.Bytes(), &entry) == nil && entry.Msg == "serving" {
				serves <- entry.Address
			}
		}
	}()
	stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
		_ = cmd.Wait()
	}
	select {
	case address := <-serves:
		return "http://" + address, stop, nil
	case <-ended:
		return "", nil, fmt.Errorf("the gateway does not start: %w", cmd.Wait())
	case <-time.After(patience):
		stop()
		return "", nil, errors.New("the gateway does not serve")
	}
}

// client is the process of a client, seen from here.
type client struct {
	name  string
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string // what it says
}

func startClient(ctx context.Context, c settings) (*client, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	p := &client{name: c.Name, cmd: exec.CommandContext(ctx, self), lines: make(chan string, 4)}
	p.cmd.Env = append(os.Environ(), clientSettings+"="+string(text))
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.lines <- lines.Text()
		}
	}()
	return p, nil
}

func (c *client) stop() {
	_ = c.cmd.Process.Kill()
	for range c.lines {
	}
	_ = c.cmd.Wait()
}

// halt stops the process, and returns when all of it stands: until then it may still do
// what it is told.
func (c *client) halt() error {
	if err := c.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		switch _, err := syscall.Wait4(c.cmd.Process.Pid, &status, syscall.WUNTRACED, nil); {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return err
		case !status.Stopped():
			return fmt.Errorf("%s has ended", c.name)
		default:
			return nil
		}
	}
}

func (c *client) say(line string) error {
	_, err := io.WriteString(c.in, line+"\n")
	return err
}

// hear returns the next line that it says.
func (c *client) hear() (string, error) {
	select {
	case line, ok := <-c.lines:
		if !ok {
			return "", fmt.Errorf("%s has ended", c.name)
		}
		return line, nil
	case <-time.After(patience):
		return "", fmt.Errorf("%s says nothing", c.name)
	}
}
