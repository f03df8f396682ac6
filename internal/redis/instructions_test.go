package redis

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"fencepost/internal/fencing"

	goredis "github.com/redis/go-redis/v9"
)

// BenchmarkInstructions counts the instructions that Redis carries out, by callgrind: so
// many operations a call, each on a name of its own. A pair is an acquire and its
// release; in a turn a request joins the queue, and the release of the one before it
// hands the lock on to it; a heartbeat tells of a page of waiters. It is independent of what
// else the machine does.
func BenchmarkInstructions(b *testing.B) {
	for _, most := range []int{1, callOperations} {
		b.Run(fmt.Sprintf("operations=%d", most), func(b *testing.B) {
			g := startCounted(b)
			s := open(b, Options{URL: "unix://" + g.socket, MaxSkew: time.Minute, ReadTimeout: time.Minute, OperationTimeout: time.Minute})
			s.sender.most = most
			requests := make([]fencing.AcquireRequest, callOperations)
			acquire := func(wait time.Duration) {
				var all []*command
				for i := range requests {
					requests[i] = acquireRequest(fencing.Name(fmt.Sprintf("orders/%d", i)))
					requests[i].Wait = wait
					all = append(all, s.newAcquireCommand(&requests[i]))
				}
				sendAll(b, s, all)
			}
			release := func(of []fencing.AcquireRequest) {
				var all []*command
				for _, r := range of {
					all = append(all, s.newCommand(operation{verb: releaseVerb, name: r.Name, lease: r.Lease.Public(), secret: r.Lease.Hash()}, nil))
				}
				sendAll(b, s, all)
			}
			const rounds = 40
			pairs := func() {
				for range rounds {
					acquire(0)
					release(requests)
				}
			}
			pairs()
			b.ReportMetric(g.count(b, pairs)/rounds/callOperations/1000, "kI/pair")
			acquire(0)
			turns := func() {
				for range rounds {
					before := append([]fencing.AcquireRequest(nil), requests...)
					acquire(time.Minute)
					release(before)
				}
			}
			turns()
			b.ReportMetric(g.count(b, turns)/rounds/callOperations/1000, "kI/turn")
			for range (heartbeatPage - 1) / callOperations {
				acquire(time.Minute)
			}
			beats := func() {
				for range rounds {
					if err := s.Heartbeat(b.Context(), []fencing.Name{"orders/0"}); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(g.count(b, beats)/rounds/1000, "kI/heartbeat")
		})
	}
}

func sendAll(b *testing.B, s *Store, all []*command) {
	s.sender.send(s.topology.nodes()[0], all)
	for _, c := range all {
		if r, err := s.result(c); err != nil || r.code != fencing.CodeOK {
			b.Fatalf("%+v, %v", r, err)
		}
	}
}

// counted is a Redis whose instructions are counted.
type counted struct {
	dir, socket string
	pid         string
}

func startCounted(b *testing.B) *counted {
	dir, err := os.MkdirTemp("", "callgrind")
	if err != nil {
		b.Fatal(err)
	}
	g := &counted{dir: dir, socket: filepath.Join(dir, "socket")}
	cmd := exec.Command("valgrind", "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file="+filepath.Join(dir, "out"),
		"redis-server", "--port", "0", "--unixsocket", g.socket, "--hz", "1", "--dynamic-hz", "no", "--activerehashing", "no", "--save", "", "--dir", dir)
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	g.pid = strconv.Itoa(cmd.Process.Pid)
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	})
	client := goredis.NewClient(&goredis.Options{Network: "unix", Addr: g.socket, MaxRetries: -1})
	defer client.Close()
	for start := time.Now(); client.Ping(b.Context()).Err() != nil; {
		if time.Since(start) > time.Minute {
			b.Fatal("Redis does not start")
		}
	}
	return g
}

var totals = regexp.MustCompile(`(?m)^(?:summary|totals): (\d+)`)

// count returns how many instructions Redis carries out meanwhile.
func (g *counted) count(b *testing.B, do func()) float64 {
	control := func(args ...string) {
		if out, err := exec.Command("callgrind_control", append(args, g.pid)...).CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
	}
	control("--instr=on")
	control("--zero")
	do()
	control("--dump")
	control("--instr=off")
	all, _ := filepath.Glob(filepath.Join(g.dir, "out.*"))
	var sum float64
	for _, file := range all {
		text, err := os.ReadFile(file)
		if err != nil {
			b.Fatal(err)
		}
		m := totals.FindSubmatch(text)
		if m == nil {
			continue
		}
		n, _ := strconv.ParseFloat(string(m[1]), 64)
		sum += n
		_ = os.Remove(file)
	}
	return sum
}
