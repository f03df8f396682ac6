package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"fencepost/internal/redis/redistest"
)

// etcdClients is the most clients that etcd is asked by.
const etcdClients = 64

// etcd is the load on etcd: a process of its own, of a module of its own.
type etcd struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	pids []int // of the members
}

// startEtcd starts a cluster of etcd and the clients that load it.
func startEtcd(dir string) (*etcd, error) {
	binary := filepath.Join(dir, "etcd-load")
	build := exec.Command("go", "build", "-C", "bench/etcd", "-o", binary, ".")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", build, err, out)
	}
	args := []string{"-dir", filepath.Join(dir, "etcd"), "-clients", fmt.Sprint(etcdClients)}
	for range 2 * members {
		port, err := redistest.FreePort()
		if err != nil {
			return nil, err
		}
		args = append(args, fmt.Sprint(port))
	}
	e := &etcd{cmd: exec.Command(binary, args...)}
	e.cmd.Stderr = os.Stderr
	in, err := e.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := e.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	e.in, e.out = in, bufio.NewReader(out)
	if err := e.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := e.out.ReadString('\n')
	for _, field := range strings.Fields(line) {
		pid, _ := strconv.Atoi(field)
		e.pids = append(e.pids, pid)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("etcd did not start: %w", err), e.stop())
	}
	return e, nil
}

// pairs returns how many pairs a second so many clients got through.
func (e *etcd) pairs(clients int, length time.Duration) (rate float64, err error) {
	if _, err := fmt.Fprintln(e.in, clients, length); err != nil {
		return 0, err
	}
	line, err := e.out.ReadString('\n')
	if err != nil {
		return 0, err
	}
	_, err = fmt.Sscan(strings.TrimSpace(line), &rate)
	return rate, err
}

// stop ends the load, and with it the members.
func (e *etcd) stop() error { return errors.Join(e.in.Close(), e.cmd.Wait()) }
