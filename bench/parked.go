package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/watchdog"
)

// parkedClients is how many requests wait at once on one gateway.
const parkedClients = 10_000

// parkedWait is how long each of them waits at most.
const parkedWait = time.Minute

// parked is what waiting requests cost a process.
type parked struct {
	title   string
	perWait float64 // bytes of resident memory a waiting connection
	toBare  float64
}

// park has clients wait for one name at addr; leave closes their connections.
func park(addr, name string, clients int) (leave func(), err error) {
	conns := make([]net.Conn, 0, clients)
	leave = func() {
		for _, conn := range conns {
			conn.Close()
		}
	}
	body := fmt.Sprintf(`{"ttl_ms":30000,"wait_ms":%d,"owner":"worker-7"}`, parkedWait.Milliseconds())
	request := fmt.Appendf(nil, "POST /locks/%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", name, len(body), body)
	for range clients {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			leave()
			return nil, err
		}
		conns = append(conns, conn)
		if _, err := conn.Write(request); err != nil {
			leave()
			return nil, err
		}
	}
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		n, err := waiting(addr, name)
		if err != nil || n >= clients {
			return leave, err
		}
		if time.Since(begun) > parkedWait {
			leave()
			return nil, fmt.Errorf("%d of %d requests wait for %s, and the time of the first is over", n, clients, name)
		}
	}
}

// waiting asks how many wait for a name.
func waiting(addr, name string) (int, error) {
	response, err := http.Get("http://" + addr + "/locks/" + name)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	var lock struct{ Waiting int }
	err = json.NewDecoder(response.Body).Decode(&lock)
	return lock.Waiting, err
}

// holdName takes a lock for long, over a connection of its own that is closed.
func holdName(addr, name string) error {
	const body = `{"ttl_ms":3600000}`
	response, err := http.Post("http://"+addr+"/locks/"+name, "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	io.Copy(io.Discard, response.Body)
	if response.StatusCode != http.StatusCreated {
		return fmt.Errorf("holding %s: %s", name, response.Status)
	}
	return nil
}

// measureParked compares the memory of waiting requests with that of a handler
// that does nothing but wait.
func (r *results) measureParked(targets []target) error {
	var bare float64
	for _, t := range targets {
		if t.key != "parking" {
			if err := holdName(t.addrs[0], "bench/parked"); err != nil {
				return err
			}
		}
		before, err := residentMemory(t.pids[0])
		if err != nil {
			return err
		}
		leave, err := park(t.addrs[0], "bench/parked", parkedClients)
		if err != nil {
			return err
		}
		after, err := residentMemory(t.pids[0])
		leave()
		if err != nil {
			return err
		}
		p := parked{title: t.title, perWait: float64(after-before) / parkedClients}
		if t.key == "parking" {
			bare = p.perWait
		}
		p.toBare = p.perWait / bare
		r.parked = append(r.parked, p)
		fmt.Fprintf(os.Stderr, "parked at %s: %.0f bytes each\n", t.title, p.perWait)
	}
	return nil
}

// residentMemory returns the resident set of a process in bytes.
func residentMemory(pid int) (int64, error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var kilobytes int64
		if n, _ := fmt.Sscanf(lines.Text(), "VmRSS: %d kB", &kilobytes); n == 1 {
			return kilobytes << 10, nil
		}
	}
	return 0, fmt.Errorf("process %d tells no resident set", pid)
}

// measureBeside compares the latency of other names at two gateways alike, at the
// second of which clients are parked.
func (r *results) measureBeside(idle, busy *process, rounds int, length time.Duration) error {
	if err := holdName(busy.addr, "bench/parked"); err != nil {
		return err
	}
	leave, err := park(busy.addr, "bench/parked", parkedClients)
	if err != nil {
		return err
	}
	defer leave()
	var p50, p99 [2][]float64
	for round := range rounds {
		for i := range 2 {
			n := (i + round) % 2
			took, err := irregular([]*process{idle, busy}[n].addr, r.rate, length, uint64(round))
			if err != nil {
				return err
			}
			p50[n], p99[n] = append(p50[n], float64(took.at(.5))), append(p99[n], float64(took.at(.99)))
		}
	}
	r.beside50, r.beside99 = median(ratios(p50[1], p50[0])), median(ratios(p99[1], p99[0]))
	return nil
}

// measureCrowd counts the calls a turn while so many wait in one queue, each
// taking its turn once.
func (r *results) measureCrowd(dog *watchdog.Watchdog, v *rival) error {
	const name = "bench/crowd"
	ctx := context.Background()
	first := newRequest(name)
	if _, err := dog.Do(ctx, first); err != nil {
		return err
	}
	before, err := callsRun(v.server)
	if err != nil {
		return err
	}
	faults := make(chan error, parkedClients)
	var group sync.WaitGroup
	take := inProcess(dog, name)
	for range parkedClients {
		group.Go(func() {
			_, release, err := take(0)
			if err == nil {
				err = release()
			}
			faults <- err
		})
	}
	for {
		out, err := dog.Do(ctx, fencing.InspectRequest{Name: name})
		if err != nil {
			return err
		}
		if out.Lock.Waiting >= parkedClients {
			break
		}
		select {
		case err := <-faults: // nobody has had a turn yet
			return fmt.Errorf("%d of %d wait for %s: %w", out.Lock.Waiting, parkedClients, name, err)
		case <-time.After(10 * time.Millisecond):
		}
		before++ // the question was a script
	}
	before++
	if _, err := dog.Do(ctx, fencing.ReleaseRequest{Name: name, Lease: first.Lease}); err != nil {
		return err
	}
	group.Wait()
	for range parkedClients {
		if err := <-faults; err != nil {
			return err
		}
	}
	after, err := callsRun(v.server)
	r.crowd = float64(after-before-1) / parkedClients
	return err
}
