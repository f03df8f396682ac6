// Package deploy_test starts Redis with what is shipped for it.
package deploy_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis"
	"fencepost/internal/redis/redistest"

	goredis "github.com/redis/go-redis/v9"
)

// patience bounds how long a test waits for anything.
const patience = 2 * time.Minute // a Sentinel that others keep busy waits 30 s before it goes on

// placeholder is what stands for a password in the files.
var placeholder = regexp.MustCompile(`#sha256-of-the-[a-z]+-password|the-[a-z]+-password`)

// place is what depends on the machine, and is set by redistest.
var place = regexp.MustCompile(`(?m)^(bind|port|dir) .*$`)

// What the promises of docs/stores.md rest on.
var (
	everywhere = map[string]string{
		"maxmemory-policy": "noeviction", "appendonly": "yes", "no-appendfsync-on-rewrite": "no",
		"timeout": "0", "protected-mode": "yes", "busy-reply-threshold": "1000", "save": "",
	}
	always     = map[string]string{"appendfsync": "always"}
	replicated = map[string]string{
		"appendfsync": "everysec", "min-replicas-to-write": "1", "min-replicas-max-lag": "3",
		"replica-read-only": "yes", "replica-serve-stale-data": "no", "repl-backlog-size": "536870912",
	}
	clustered = map[string]string{
		"cluster-node-timeout": "5000", "cluster-require-full-coverage": "no", "cluster-allow-reads-when-down": "no",
	}
)

func TestStandalone(t *testing.T) {
	t.Parallel()
	server := start(t, "standalone.conf")
	expect(t, server, everywhere, always)
	use(t, server)
}

func TestQuorumNode(t *testing.T) {
	t.Parallel()
	server := start(t, "quorum-node.conf")
	expect(t, server, everywhere, always)
	use(t, server)
}

func TestClusterNode(t *testing.T) {
	t.Parallel()
	master, replica := start(t, "cluster.conf", busPort(t)...), start(t, "cluster.conf", busPort(t)...)
	expect(t, master, everywhere, replicated, clustered)
	ctx, admin, second := t.Context(), asAdmin(t, master), asAdmin(t, replica)
	must(t, admin.ClusterAddSlotsRange(ctx, 0, 16383).Err())
	host, port, _ := net.SplitHostPort(replica.Addr())
	bus := second.ConfigGet(ctx, "cluster-port").Val()["cluster-port"]
	must(t, admin.Do(ctx, "CLUSTER", "MEET", host, port, bus).Err())
	id := admin.Do(ctx, "CLUSTER", "MYID").Val()
	await(t, "the replica to follow", func() bool { return second.Do(ctx, "CLUSTER", "REPLICATE", id).Err() == nil })
	await(t, "the master to have a replica", func() bool { return replicas(admin) == 1 })
	use(t, master, "WAIT 1 10", "CLUSTER SLOTS", "CLUSTER INFO")
}

// Three Sentinels, each as its users, find the replicas and one another, and promote
// a replica when the master is dead.
func TestSentinel(t *testing.T) {
	t.Parallel()
	const conf = "sentinel-master-replica.conf"
	master := start(t, conf)
	host, port, _ := net.SplitHostPort(master.Addr())
	nodes := []*redistest.Server{master}
	for range 2 {
		nodes = append(nodes, start(t, conf, "--replicaof", host+" "+port))
	}
	expect(t, master, everywhere, replicated)
	admin := asAdmin(t, master)
	await(t, "the master to have its replicas", func() bool { return replicas(admin) == 2 })
	use(t, master, "WAIT 1 10")

	ctx := t.Context()
	var gateways []*goredis.Client
	for range 3 {
		gateways = append(gateways, connect(t, startSentinel(t, host, port), "fencepost", "the-gateways-password"))
	}
	for _, gateway := range gateways {
		await(t, "the Sentinels to find all nodes", func() bool {
			info, _ := gateway.Do(ctx, "SENTINEL", "MASTER", "fencepost").StringSlice()
			return value(info, "num-slaves") == "2" && value(info, "num-other-sentinels") == "2"
		})
		if err := gateway.Do(ctx, "SENTINEL", "FAILOVER", "fencepost").Err(); err == nil {
			t.Error("the gateway's user may order a fail-over")
		}
	}
	must(t, master.Kill())
	var promoted *redistest.Server
	await(t, "another master", func() bool {
		addr, err := gateways[0].Do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "fencepost").StringSlice()
		for _, node := range nodes[1:] {
			if err == nil && net.JoinHostPort(addr[0], addr[1]) == node.Addr() {
				promoted = node
			}
		}
		return promoted != nil
	})
	admin = asAdmin(t, promoted)
	await(t, "the other one to follow it", func() bool { return replicas(admin) == 1 })
	use(t, promoted)
}

// value returns what follows a key in a list of keys and values.
func value(list []string, key string) string {
	if i := slices.Index(list, key); i >= 0 && i+1 < len(list) {
		return list[i+1]
	}
	return ""
}

// TestRights: what the files and the page let the gateway's user do is what the tests of the gateway
// have it do with.
func TestRights(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"redis/standalone.conf", "redis/quorum-node.conf", "redis/sentinel-master-replica.conf", "redis/cluster.conf", "../docs/stores/redis.md"} {
		rights := redistest.GatewayRights
		if file == "redis/cluster.conf" {
			rights = slices.Concat(rights, redistest.ClusterRights)
		}
		if line := " " + strings.Join(rights, " ") + "\n"; !strings.Contains(readFile(t, file), line) {
			t.Errorf("%s has no line with%s", file, line)
		}
	}
}

// TestRestart: what was written in one step is there after a restart. Redis reads its AOF as the
// default user, so one that may nothing loses every step of more than one command.
func TestRestart(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"standalone.conf", "quorum-node.conf", "sentinel-master-replica.conf", "cluster.conf"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			args := []string{"--min-replicas-to-write", "0"}
			if file == "cluster.conf" {
				args = append(args, busPort(t)...)
			}
			server := start(t, file, args...)
			ctx, admin := t.Context(), asAdmin(t, server)
			if file == "cluster.conf" {
				must(t, admin.ClusterAddSlotsRange(ctx, 0, 16383).Err())
			}
			await(t, "two keys in one step", func() bool {
				_, err := admin.TxPipelined(ctx, func(both goredis.Pipeliner) error {
					both.Set(ctx, "{a}1", "one", 0)
					both.Set(ctx, "{a}2", "two", 0)
					return nil
				})
				return err == nil
			})
			must(t, server.Restart())
			await(t, "an answer", func() bool { return admin.Ping(ctx).Err() == nil })
			if n, err := admin.DBSize(ctx).Result(); err != nil || n != 2 {
				t.Errorf("%d keys are left, %v", n, err)
			}
			stranger := goredis.NewClient(&goredis.Options{Addr: server.Addr(), Protocol: 2, DisableIdentity: true, MaxRetries: -1})
			t.Cleanup(func() { stranger.Close() })
			for _, args := range [][]any{{"GET", "{a}1"}, {"AUTH", ""}, {"AUTH", "default", ""}, {"PING"}} {
				if err := stranger.Do(ctx, args...).Err(); err == nil {
					t.Errorf("who gives no password may %v", args)
				}
			}
		})
	}
}

// Nothing starts while the passwords are not set.
func TestPasswordsHaveToBeSet(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("redis/*.conf")
	must(t, err)
	if len(files) < 5 {
		t.Fatalf("only %d files", len(files))
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		path := filepath.Join(t.TempDir(), "redis.conf")
		must(t, os.WriteFile(path, append(place.ReplaceAll(text, nil), "\nport 0\n"...), 0o600))
		args := []string{path}
		if strings.Contains(string(text), "sentinel monitor") {
			args = append(args, "--sentinel")
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		var exit *exec.ExitError
		if err := exec.CommandContext(ctx, "redis-server", args...).Run(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Errorf("%s: redis-server did not refuse it: %v", file, err)
		}
		cancel()
	}
}

// filled returns the path of a copy of a file with passwords set, each to its own
// placeholder, and without what redistest sets.
func filled(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("redis", file))
	must(t, err)
	conf := placeholder.ReplaceAllStringFunc(string(text), func(word string) string {
		if password, ok := strings.CutPrefix(word, "#sha256-of-"); ok {
			sum := sha256.Sum256([]byte(password))
			return "#" + hex.EncodeToString(sum[:])
		}
		return word
	})
	path := filepath.Join(t.TempDir(), file)
	must(t, os.WriteFile(path, place.ReplaceAll([]byte(conf), nil), 0o600))
	return path
}

func start(t *testing.T, file string, args ...string) *redistest.Server {
	t.Helper()
	args = append([]string{"--include", filled(t, file), "--repl-diskless-sync-delay", "0"}, args...)
	return redistest.Start(t, args...)
}

// busPort returns arguments with a port that is free: the usual one, 10000 above the
// node's, may not exist.
func busPort(t *testing.T) []string {
	return []string{"--cluster-port", strconv.Itoa(freePort(t))}
}

func freePort(t *testing.T) int {
	port, err := redistest.FreePort()
	must(t, err)
	return port
}

// startSentinel starts a Sentinel that watches the master at host and port, and
// returns its address.
func startSentinel(t *testing.T, host, port string) string {
	t.Helper()
	path := filled(t, "sentinel.conf")
	text, err := os.ReadFile(path)
	must(t, err)
	const monitor, patient = "monitor fencepost 127.0.0.1 6379", "down-after-milliseconds fencepost 5000"
	if !strings.Contains(string(text), monitor) || !strings.Contains(string(text), patient) {
		t.Fatal("sentinel.conf is not as expected")
	}
	conf := strings.NewReplacer(monitor, "monitor fencepost "+host+" "+port, patient, "down-after-milliseconds fencepost 500").Replace(string(text))
	own := strconv.Itoa(freePort(t))
	conf += "\nbind 127.0.0.1\nport " + own + "\ndir " + t.TempDir() + "\n"
	must(t, os.WriteFile(path, []byte(conf), 0o600))
	process := exec.Command("redis-server", path, "--sentinel")
	must(t, process.Start())
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	})
	return net.JoinHostPort("127.0.0.1", own)
}

func asAdmin(t *testing.T, server *redistest.Server) *goredis.Client {
	return connect(t, server.Addr(), "admin", "the-admins-password")
}

func connect(t *testing.T, addr, user, password string) *goredis.Client {
	client := goredis.NewClient(&goredis.Options{Addr: addr, Username: user, Password: password, Protocol: 2, DisableIdentity: true})
	t.Cleanup(func() { client.Close() })
	return client
}

// expect compares what a server is set to.
func expect(t *testing.T, server *redistest.Server, all ...map[string]string) {
	t.Helper()
	client := asAdmin(t, server)
	for _, some := range all {
		for name, want := range some {
			if got, err := client.ConfigGet(t.Context(), name).Result(); err != nil || got[name] != want {
				t.Errorf("%s is %q, %v; want %q", name, got[name], err, want)
			}
		}
	}
}

// use does everything once as the gateway's user, and sees that it may also run
// further commands, and none that harm.
func use(t *testing.T, server *redistest.Server, further ...string) {
	t.Helper()
	ctx := t.Context()
	store, err := redis.Open(ctx, redis.Options{
		URL:        "redis://fencepost:the-gateways-password@" + server.Addr(),
		Quarantine: redis.QuarantinePolicy{Off: true}, // there is one after a promotion
	})
	must(t, err)
	defer func() { must(t, store.Close()) }()
	store.Listen(deaf{})
	defer store.Watch(deaf{})()

	name := fencing.Name("orders/42")
	acquire := fencing.AcquireRequest{Name: name, Lease: fencing.NewLeaseID(time.Now()), Stamp: fencing.NewStamp(), Mode: fencing.ModeExclusive, TTL: time.Minute, Hold: 1}
	await(t, "a grant", func() bool { _, err = store.Do(ctx, acquire); return err == nil })
	wait := acquire
	wait.Lease, wait.Stamp, wait.Wait = fencing.NewLeaseID(time.Now()), fencing.NewStamp(), time.Minute
	out, err := store.Do(ctx, wait)
	must(t, err)
	if !out.Waits() {
		t.Errorf("a second lease on one name: %+v", out)
	}
	must(t, store.Heartbeat(ctx, []fencing.Name{name}))
	_, err = store.Do(ctx, fencing.RenewRequest{Name: name, Lease: acquire.Lease})
	must(t, err)
	_, err = store.Do(ctx, fencing.InspectRequest{Name: name})
	must(t, err)
	_, err = store.List(ctx, fencing.ListRequest{Limit: 10})
	must(t, err)
	_, err = store.Expire(ctx, 10)
	must(t, err)
	_, err = store.Stats(ctx)
	must(t, err)
	_, err = store.Examine(ctx)
	must(t, err)
	must(t, store.Check(ctx))
	for _, lease := range []fencing.LeaseID{acquire.Lease, wait.Lease} { // the first hands on to the second
		_, err = store.Do(ctx, fencing.ReleaseRequest{Name: name, Lease: lease})
		must(t, err)
	}

	further = append(further, "CONFIG GET appendfsync", "SUBSCRIBE fencepost:events", "FUNCTION LOAD x", "TIME", "INFO", "ROLE")
	harm := []string{
		"FLUSHALL", "FLUSHDB", "SCRIPT FLUSH", "FUNCTION FLUSH", "CONFIG SET appendonly no", "SHUTDOWN", "KEYS fencepost:*",
		"REPLICAOF NO ONE", "CLIENT KILL ID 1", "ACL LIST", "MONITOR", "DEBUG RELOAD", "GET other", "SUBSCRIBE other",
		"CLUSTER RESET", "MIGRATE", "SWAPDB 0 1",
	}
	admin := asAdmin(t, server)
	for i, command := range append(further, harm...) {
		args := []any{"ACL", "DRYRUN", "fencepost"}
		for _, word := range strings.Fields(command) {
			args = append(args, word)
		}
		// A command with the wrong number of arguments is an error, and not allowed either.
		answer, _ := admin.Do(ctx, args...).Text()
		if allowed := answer == "OK"; allowed != (i < len(further)) {
			t.Errorf("%s: allowed is %v: %s", command, allowed, answer)
		}
	}
}

// deaf takes no notice.
type deaf struct{}

func (deaf) Granted(fencing.Grant, fencing.Instant, time.Time) {}
func (deaf) Replaced(fencing.Name, fencing.Stamp)              {}
func (deaf) Ask(fencing.Name, fencing.Stamp)                   {}
func (deaf) Has([]fencing.Name, time.Time, []fencing.Entry)    {}
func (deaf) Event(fencing.Event)                               {}
func (deaf) Gap()                                              {}

// replicas returns how many replicas a master counts as good.
func replicas(admin *goredis.Client) int {
	for line := range strings.SplitSeq(admin.Info(context.Background(), "replication").Val(), "\r\n") {
		if text, ok := strings.CutPrefix(line, "min_slaves_good_slaves:"); ok {
			n, _ := strconv.Atoi(text)
			return n
		}
	}
	return 0
}

// await waits until something has become so.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
