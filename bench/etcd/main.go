// Etcd is bench's load on real etcd, in a module of its own so that the product's has
// nothing of it. It starts a cluster on loopback, in -dir, on the ports of its arguments
// (two a member), and runs pairs of lock and unlock as users of etcd do: etcd's own Go client
// over gRPC, concurrency.Mutex, a connection and a session a client. It prints the process
// ids of the members once all clients are connected; then it answers each line of clients and
// a duration with the pairs a second, until its input ends.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// startTimeout bounds how long the cluster may take to serve.
const startTimeout = 60 * time.Second

func main() {
	dir := flag.String("dir", "", "directory for the members' data")
	clients := flag.Int("clients", 64, "clients to connect, the most that can be asked for")
	flag.Parse()
	if err := run(*dir, flag.Args(), *clients); err != nil {
		fmt.Fprintln(os.Stderr, "bench/etcd:", err)
		os.Exit(1)
	}
}

func run(dir string, ports []string, clients int) error {
	members, endpoints, err := startMembers(dir, ports)
	defer func() {
		for _, m := range members {
			m.Process.Signal(syscall.SIGTERM)
			m.Wait()
		}
	}()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	var locks []*concurrency.Mutex
	for i := range clients {
		client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: startTimeout})
		if err != nil {
			return err
		}
		defer client.Close()
		if _, err := client.Get(ctx, "/bench"); err != nil { // a session is asked for without a bound
			return fmt.Errorf("the cluster does not serve: %w", err)
		}
		session, err := concurrency.NewSession(client, concurrency.WithTTL(30))
		if err != nil {
			return fmt.Errorf("client %d: %w", i, err)
		}
		locks = append(locks, concurrency.NewMutex(session, fmt.Sprintf("/bench/%d", i)))
	}
	for _, m := range members {
		fmt.Print(m.Process.Pid, " ")
	}
	fmt.Println()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var asked int
		var length string
		if _, err := fmt.Sscan(lines.Text(), &asked, &length); err != nil || asked < 1 || asked > clients {
			return fmt.Errorf("asked for %q: want a number of clients up to %d, and a duration", lines.Text(), clients)
		}
		duration, err := time.ParseDuration(length)
		if err != nil {
			return err
		}
		rate, err := pairs(locks[:asked], duration)
		if err != nil {
			return err
		}
		fmt.Println(rate)
	}
	return nil
}

// startMembers starts a cluster of as many members as there are pairs of ports. It returns
// those that were started, also with an error.
func startMembers(dir string, ports []string) (members []*exec.Cmd, endpoints []string, err error) {
	if len(ports) < 2 || len(ports)%2 != 0 {
		return nil, nil, errors.New("want two ports a member")
	}
	var cluster []string
	url := func(port string) string { return "http://127.0.0.1:" + port }
	for i := 0; i < len(ports); i += 2 {
		cluster = append(cluster, fmt.Sprintf("member%d=%s", i/2, url(ports[i+1])))
		endpoints = append(endpoints, "127.0.0.1:"+ports[i])
	}
	for i := range endpoints {
		name, client, peer := fmt.Sprintf("member%d", i), url(ports[2*i]), url(ports[2*i+1])
		m := exec.Command("etcd", "--name", name, "--data-dir", filepath.Join(dir, name),
			"--listen-client-urls", client, "--advertise-client-urls", client,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
			"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-state", "new",
			"--logger", "zap", "--log-level", "error")
		m.Stderr = os.Stderr
		m.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // should this process be killed
		if err := m.Start(); err != nil {
			return members, nil, fmt.Errorf("%w; Debian has it as etcd-server", err)
		}
		members = append(members, m)
	}
	return members, endpoints, nil
}

// pairs returns how many locks a second so many clients take and let go, each its own.
func pairs(locks []*concurrency.Mutex, length time.Duration) (float64, error) {
	var done atomic.Int64
	var stop atomic.Bool
	faults := make([]error, len(locks))
	var group sync.WaitGroup
	ctx, start := context.Background(), time.Now()
	for i, lock := range locks {
		group.Go(func() {
			for !stop.Load() {
				if faults[i] = lock.Lock(ctx); faults[i] == nil {
					faults[i] = lock.Unlock(ctx)
				}
				if faults[i] != nil {
					return
				}
				done.Add(1)
			}
		})
	}
	time.AfterFunc(length, func() { stop.Store(true) })
	group.Wait()
	return float64(done.Load()) / time.Since(start).Seconds(), errors.Join(faults...)
}
