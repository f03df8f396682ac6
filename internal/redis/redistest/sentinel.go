package redistest

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// masterName is what the Sentinels call the master.
const masterName = "locks"

// downAfter is for how long a master does not answer that counts as down.
const downAfter = 500 * time.Millisecond

// Sentinel is a master with replicas, and the Sentinels that watch them.
type Sentinel struct {
	t         testing.TB
	servers   []*Server
	sentinels []*Server
}

// StartSentinel starts a master, its replicas and Sentinels that end with the
// test. They take no master for down but one that KillMaster has ended, unless Alert
// tells them to. Arguments are for the master and the replicas; if they are
// those of an Authority, the Sentinels have TLS too, and SentinelPassword.
func StartSentinel(t testing.TB, replicas, sentinels int, args ...string) *Sentinel {
	t.Helper()
	s := &Sentinel{t: t}
	args = append([]string{"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"}, args...)
	master := Start(t, args...)
	s.servers = append(s.servers, master)
	for range replicas {
		s.servers = append(s.servers, Start(t, append(args, "--replicaof", "127.0.0.1 "+strconv.Itoa(master.port))...))
	}
	wait(t, "the replicas are connected", func() bool {
		return !slices.ContainsFunc(s.servers[1:], func(r *Server) bool { _, connected := r.role(); return !connected })
	})
	s.startSentinels(sentinels)
	wait(t, "the Sentinels know all", func() bool {
		return !slices.ContainsFunc(s.sentinels, func(one *Server) bool {
			state := s.state(one)
			return state["num-slaves"] != strconv.Itoa(replicas) || state["num-other-sentinels"] != strconv.Itoa(sentinels-1) ||
				state["flags"] != "master"
		})
	})
	s.Calm()
	return s
}

// startSentinels starts Sentinels that know of each other: finding out takes them
// seconds.
func (s *Sentinel) startSentinels(n int) {
	t := s.t
	t.Helper()
	ports := make([]int, n)
	for i := range ports {
		var err error
		if ports[i], err = FreePort(); err != nil {
			t.Fatal(err)
		}
	}
	master := s.servers[0]
	args := append([]string{"--sentinel"}, master.encryption()...)
	passwords := ""
	if password := master.password(); password != "" {
		args = append(args, "--requirepass", SentinelPassword)
		passwords = fmt.Sprintf("sentinel auth-pass %s %s\n", masterName, password) +
			fmt.Sprintf("sentinel sentinel-pass %s\n", SentinelPassword)
	}
	for i, port := range ports {
		dir, err := os.MkdirTemp("", "sentinel")
		if err != nil {
			t.Fatal(err)
		}
		config := fmt.Sprintf("sentinel myid %040x\n", i+1) +
			fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d %d\n", masterName, master.port, n/2+1) +
			fmt.Sprintf("sentinel down-after-milliseconds %s %d\n", masterName, downAfter.Milliseconds()) +
			fmt.Sprintf("sentinel failover-timeout %s 3000\n", masterName) +
			fmt.Sprintf("sentinel parallel-syncs %s 9\n", masterName) + passwords
		for j, other := range ports {
			if j != i {
				config += fmt.Sprintf("sentinel known-sentinel %s 127.0.0.1 %d %040x\n", masterName, other, j+1)
			}
		}
		path := filepath.Join(dir, "conf")
		if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		one := &Server{dir: dir, config: path, port: port, args: args}
		if err := one.start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if log, err := os.ReadFile(filepath.Join(dir, "log")); t.Failed() && err == nil {
				t.Logf("Sentinel %d: ... %s", port, log[max(0, len(log)-4000):])
			}
			if err := one.Close(); err != nil {
				t.Error(err)
			}
		})
		s.sentinels = append(s.sentinels, one)
	}
}

// state returns what a Sentinel knows of the master; nil if it does not answer.
func (s *Sentinel) state(one *Server) map[string]string {
	client := one.Client()
	defer client.Close()
	parts, err := client.Do(context.Background(), "sentinel", "master", masterName).StringSlice()
	if err != nil {
		return nil
	}
	state := map[string]string{}
	for i := 0; i+1 < len(parts); i += 2 {
		state[parts[i]] = parts[i+1]
	}
	return state
}

// URL returns the URL of the whole, which names no password.
func (s *Sentinel) URL() string {
	return s.servers[0].scheme() + "+sentinel://" + addrs(s.sentinels) + "/" + masterName + "/0"
}

func addrs(servers []*Server) string {
	var all []string
	for _, s := range servers {
		all = append(all, s.Addr())
	}
	return strings.Join(all, ",")
}

// Sentinels returns the Sentinels.
func (s *Sentinel) Sentinels() []*Server { return s.sentinels }

// Servers returns the master and the replicas, in no order that means anything.
func (s *Sentinel) Servers() []*Server { return s.servers }

// Master waits until all Sentinels that run name a server that serves as the
// master, and returns it.
func (s *Sentinel) Master() *Server {
	s.t.Helper()
	return s.NextMaster(nil)
}

// NextMaster is Master where that must not be old. From then on the Sentinels take none
// for down.
func (s *Sentinel) NextMaster(old *Server) *Server {
	s.t.Helper()
	var master *Server
	wait(s.t, "there is a master", func() bool {
		master = nil
		for _, one := range s.sentinels {
			named := s.namedBy(one)
			if named != nil && master != nil && named != master {
				return false
			}
			master = cmp.Or(named, master)
		}
		if master == nil || master == old {
			return false
		}
		role, _ := master.role()
		return role == "master"
	})
	if old != nil {
		s.takeForDown(time.Hour)
	}
	return master
}

// namedBy returns the server that a Sentinel names as the master: while it does a
// fail-over that is the replica it has promoted. It returns nil if the Sentinel does
// not answer.
func (s *Sentinel) namedBy(one *Server) *Server {
	addr, err := one.try("sentinel", "get-master-addr-by-name", masterName).StringSlice()
	if err != nil {
		return nil
	}
	at := slices.IndexFunc(s.servers, func(server *Server) bool { return server.Addr() == net.JoinHostPort(addr[0], addr[1]) })
	if at < 0 {
		return nil
	}
	return s.servers[at]
}

// Replicas returns the servers that serve as replicas.
func (s *Sentinel) Replicas() []*Server {
	return slices.DeleteFunc(slices.Clone(s.servers), func(server *Server) bool {
		role, _ := server.role()
		return role != "slave"
	})
}

// Connected waits until n replicas have what the master has.
func (s *Sentinel) Connected(n int) {
	s.t.Helper()
	wait(s.t, "the replicas are connected", func() bool {
		connected := 0
		for _, server := range s.servers {
			if _, is := server.role(); is {
				connected++
			}
		}
		return connected >= n
	})
}

// CutReplication keeps the replicas from the master: what is written from here on
// is lost with it.
func (s *Sentinel) CutReplication() {
	s.t.Helper()
	cutAll(s.t, s.Master(), s.Replicas())
}

// HealReplication lets replicas reach their master again.
func (s *Sentinel) HealReplication() {
	s.t.Helper()
	for _, server := range s.servers {
		if role, _ := server.role(); role != "" {
			server.heal(s.t)
		}
	}
}

// Calm has the Sentinels take no master for down any more: on a machine that is busy
// one that is well may not answer for a while. It waits until a fail-over that one of
// them has begun is over: it ends only seconds after a stopped master runs again.
func (s *Sentinel) Calm() {
	s.t.Helper()
	s.takeForDown(time.Hour)
	wait(s.t, "no fail-over is under way", func() bool {
		return !slices.ContainsFunc(s.sentinels, func(one *Server) bool { return s.state(one)["flags"] != "master" })
	})
}

// Alert has a master that does not answer for downAfter count as down, which most of the
// Sentinels decide.
func (s *Sentinel) Alert() { s.takeForDown(downAfter) }

func (s *Sentinel) takeForDown(after time.Duration) {
	s.t.Helper()
	for _, one := range s.sentinels {
		one.do(s.t, "sentinel", "set", masterName, "down-after-milliseconds", after.Milliseconds())
	}
}

// Failover has the Sentinels promote a replica while the master is well, and
// returns the new master. It asks until they do: a Sentinel that has not ended the
// fail-over before, or does not know a replica well yet, refuses.
func (s *Sentinel) Failover() *Server {
	s.t.Helper()
	old, first := s.Master(), s.sentinels[0]
	wait(s.t, "a fail-over begins", func() bool {
		if named := s.namedBy(first); named != nil && named != old {
			return true
		}
		err := first.try("sentinel", "failover", masterName).Err()
		if err != nil && !goredis.HasErrorPrefix(err, "INPROG") && !goredis.HasErrorPrefix(err, "NOGOODSLAVE") {
			s.t.Fatal(err)
		}
		return false
	})
	return s.NextMaster(old)
}

// KillMaster ends the master as kill -9 does, has the Sentinels notice, and returns it:
// it may be restarted once there is another one (NextMaster).
func (s *Sentinel) KillMaster() *Server {
	s.t.Helper()
	master := s.Master()
	if err := master.Kill(); err != nil {
		s.t.Fatal(err)
	}
	s.Alert()
	return master
}
