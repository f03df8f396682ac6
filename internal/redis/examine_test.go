package redis

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"

	goredis "github.com/redis/go-redis/v9"
)

// strictly is how a server is set up so that nothing is found.
var strictly = []string{"--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"}

// one returns what was found by a check.
func one(t *testing.T, findings []fencing.Finding, check string) fencing.Finding {
	t.Helper()
	for _, f := range findings {
		if f.Check == check {
			return f
		}
	}
	t.Fatalf("nothing was found by %s in %+v", check, findings)
	return fencing.Finding{}
}

// faults returns the checks that were not passed, each with what it endangers.
func faults(findings []fencing.Finding) string {
	var list []string
	for _, f := range findings {
		if !f.OK {
			list = append(list, strings.TrimRight(f.Check+" "+f.Promise, " "))
		}
	}
	return strings.Join(list, "; ")
}

// examined examines a server.
func examined(t *testing.T, client *goredis.Client, c circumstances) []fencing.Finding {
	t.Helper()
	if c.maxSkew == 0 {
		c.maxSkew = time.Second
	}
	if c.clock == nil {
		c.clock = time.Now
	}
	findings, err := examineNode(t.Context(), client, c)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		if f.Check == "" || strings.ContainsRune(f.Check, ' ') || f.Detail == "" {
			t.Errorf("a finding lacks a word or a sentence: %+v", f)
		}
		if f.OK != (f.Remedy == "") || f.OK && f.Promise != "" {
			t.Errorf("a finding contradicts itself: %+v", f)
		}
	}
	return findings
}

func TestExamine(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"all is well", nil, ""},
		{"evicts", []string{"--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"}, "eviction P1"},
		{"would evict, had it a limit", []string{"--maxmemory-policy", "allkeys-lru"}, ""},
		{"flushes every second", []string{"--appendfsync", "everysec"}, "persistence P1"},
		{"snapshots only", []string{"--appendonly", "no", "--save", "60 1"}, "persistence P1"},
		{"nothing on disk", []string{"--appendonly", "no", "--save", ""}, "persistence P1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, append(slices.Clone(strictly), c.args...)...)
			store := open(t, Options{URL: server.URL()})
			findings, err := store.Examine(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got := faults(findings); got != c.want {
				t.Errorf("found %q, want %q: %+v", got, c.want, findings)
			}
		})
	}
}

// What was evicted is told even when the policy has been set right since.
func TestExamineTellsOfEvictedKeys(t *testing.T) {
	server := redistest.Start(t, append(slices.Clone(strictly), "--maxmemory-policy", "allkeys-lru")...)
	client := server.Client()
	defer client.Close()
	if err := client.Set(t.Context(), "large", strings.Repeat("x", 1<<20), 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	client.Set(t.Context(), "another", "x", 0) // may be refused: what counts is that room was made
	before := one(t, examined(t, client, circumstances{}), checkEviction)
	if before.OK || !strings.Contains(before.Detail, " keys were ") {
		t.Errorf("%+v", before)
	}
	if err := client.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err(); err != nil {
		t.Fatal(err)
	}
	if after := one(t, examined(t, client, circumstances{}), checkEviction); !after.OK || !strings.Contains(after.Detail, " keys were ") {
		t.Errorf("%+v", after)
	}
}

func TestExamineReplicas(t *testing.T) {
	master := redistest.Start(t, append(slices.Clone(strictly), "--repl-diskless-sync-delay", "0")...)
	host, port, _ := net.SplitHostPort(master.Addr())
	client := master.Client()
	defer client.Close()
	for _, c := range []struct {
		of   circumstances
		want string
	}{
		{circumstances{}, ""},
		{circumstances{acks: 1}, "replicas"},
		{circumstances{failover: true}, "replicas P1"},
	} {
		if got := faults(examined(t, client, c.of)); got != c.want {
			t.Errorf("%+v without replicas: %q, want %q", c.of, got, c.want)
		}
	}

	replica := redistest.Start(t, append(slices.Clone(strictly), "--replicaof", host+" "+port)...)
	until(t, func() bool {
		return one(t, examined(t, client, circumstances{acks: 1}), checkReplicas).Promise != ""
	})
	for _, c := range []struct {
		of   circumstances
		min  string
		want string
	}{
		{circumstances{}, "0", "replicas P1"},
		{circumstances{failover: true, acks: 1}, "0", "replicas P1"},
		{circumstances{failover: true, acks: 1}, "1", ""},
		{circumstances{acks: 2}, "1", "replicas"},
	} {
		if err := client.ConfigSet(t.Context(), "min-replicas-to-write", c.min).Err(); err != nil {
			t.Fatal(err)
		}
		if got := faults(examined(t, client, c.of)); got != c.want {
			t.Errorf("%+v with a replica and a minimum of %s: %q, want %q", c.of, c.min, got, c.want)
		}
	}

	behind := replica.Client()
	defer behind.Close()
	if got := faults(examined(t, behind, circumstances{})); got != "role P1, P2" {
		t.Errorf("the replica: %q", got)
	}

	// INFO says whether there is a minimum to a user who may not ask for settings.
	err := client.Do(t.Context(), "ACL", "SETUSER", "curious", "on", ">pass", "+info", "+time").Err()
	if err != nil {
		t.Fatal(err)
	}
	curious := goredis.NewClient(&goredis.Options{Addr: master.Addr(), Username: "curious", Password: "pass", Protocol: 2})
	defer curious.Close()
	if got := faults(examined(t, curious, circumstances{acks: 1})); got != "persistence P1" {
		t.Errorf("without CONFIG: %q", got)
	}
}

func TestExamineAnotherClock(t *testing.T) {
	client := redistest.Start(t, strictly...).Client()
	defer client.Close()
	for _, c := range []struct {
		off  time.Duration
		want string
	}{
		{0, ""}, {500 * time.Millisecond, ""}, {-500 * time.Millisecond, ""},
		{10 * time.Second, "clock P1, P2"}, {-10 * time.Second, "clock P1, P2"}, {-time.Hour, "clock P1, P2"},
	} {
		gateway := func() time.Time { return time.Now().Add(c.off) }
		findings := examined(t, client, circumstances{clock: gateway})
		if got := faults(findings); got != c.want {
			t.Errorf("%s off: %q, want %q", c.off, got, c.want)
		}
		detail := one(t, findings, checkClock).Detail
		if ahead := strings.Contains(detail, "ahead of"); c.want != "" && ahead != (c.off < 0) {
			t.Errorf("the gateway's clock is %s off: %q", c.off, detail)
		}
	}
}

// A stall between sending and receiving is not a difference of clocks.
func TestExamineThroughAStall(t *testing.T) {
	client := redistest.Start(t, strictly...).Client()
	defer client.Close()
	var asked int
	stalling := func() time.Time { // the second look at the clock is 5 s later
		asked++
		return time.Now().Add(time.Duration(asked-1) * 5 * time.Second)
	}
	if f := one(t, examined(t, client, circumstances{clock: stalling}), checkClock); !f.OK {
		t.Errorf("%+v", f)
	}
}

func TestExamineBlindfolded(t *testing.T) {
	server := redistest.Start(t, strictly...)
	client := server.Client()
	defer client.Close()
	if err := client.Do(t.Context(), "ACL", "SETUSER", "blind", "on", ">pass", "+ping").Err(); err != nil {
		t.Fatal(err)
	}
	blind := goredis.NewClient(&goredis.Options{Addr: server.Addr(), Username: "blind", Password: "pass", Protocol: 2})
	defer blind.Close()
	if got := faults(examined(t, blind, circumstances{})); got != "access P1, P2" {
		t.Errorf("%q", got)
	}
}

// That there is no quarantine is a fault of the gateway's, whatever Redis is like.
func TestExamineWithoutQuarantine(t *testing.T) {
	store := open(t, Options{URL: redistest.Start(t, strictly...).URL(), Quarantine: QuarantinePolicy{Off: true}})
	findings, err := store.Examine(t.Context())
	if got := faults(findings); err != nil || got != "loss P1" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestExamineOutOfReach(t *testing.T) {
	server := redistest.Start(t)
	store := open(t, Options{URL: server.URL()})
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	_, err := store.Examine(t.Context())
	wantCode(t, "examine", err, fencing.CodeUnavailable)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = store.Examine(ctx)
	wantCode(t, "examine", err, fencing.CodeUnavailable)
}

// What can't be brought about here is judged from what a server would say.
func TestJudge(t *testing.T) {
	well := func() *facts {
		return &facts{
			info: map[string]string{
				"role": "master", "redis_version": "7.0.15", "maxmemory": "0", "maxmemory_policy": "noeviction",
				"aof_enabled": "1", "aof_last_write_status": "ok", "aof_last_bgrewrite_status": "ok", "rdb_last_bgsave_status": "ok",
			},
			config: map[string]string{"appendfsync": "always", "no-appendfsync-on-rewrite": "no", "save": "", "min-replicas-to-write": "0", "min-replicas-max-lag": "10"},
		}
	}
	for _, c := range []struct {
		name, want string
		change     func(*facts)
		of         circumstances
	}{
		{"well", "", func(*facts) {}, circumstances{}},
		{"an old one", "version P1, P2", func(f *facts) { f.info["redis_version"] = "6.2.14" }, circumstances{}},
		{"a newer one", "", func(f *facts) { f.info["redis_version"] = "8.2.1" }, circumstances{}},
		{"the AOF can't be written", "disk P1", func(f *facts) { f.info["aof_last_write_status"] = "err" }, circumstances{}},
		{"the AOF can't be rewritten", "disk", func(f *facts) { f.info["aof_last_bgrewrite_status"] = "err" }, circumstances{}},
		{"no snapshot beside an AOF", "disk", func(f *facts) { f.info["rdb_last_bgsave_status"] = "err" }, circumstances{}},
		{"no snapshot", "persistence P1; disk P1", func(f *facts) { f.info["rdb_last_bgsave_status"], f.info["aof_enabled"] = "err", "0" }, circumstances{}},
		{"a minimum without a lag", "replicas P1", func(f *facts) {
			f.info["slave0"] = "ip=10.0.0.2,port=6379,state=online,offset=1,lag=0"
			f.config["min-replicas-to-write"], f.config["min-replicas-max-lag"] = "1", "0"
		}, circumstances{}},
		{"a replica that copies", "", func(f *facts) { f.info["slave0"] = "ip=10.0.0.2,port=6379,state=wait_bgsave,offset=0,lag=0" }, circumstances{}},
		{"an AOF that is not synced while it is rewritten", "persistence P1", func(f *facts) { f.config["no-appendfsync-on-rewrite"] = "yes" }, circumstances{}},
		{"a fail-over forgets as much as a second", "", func(f *facts) {
			f.config["appendfsync"], f.config["min-replicas-to-write"] = "everysec", "1"
			f.info["slave0"] = "ip=10.0.0.2,port=6379,state=online,offset=1,lag=0"
		}, circumstances{failover: true}},
		{"fewer replicas than it writes with", "replicas", func(f *facts) {
			f.config["min-replicas-to-write"] = "2"
			f.info["slave0"] = "ip=10.0.0.2,port=6379,state=online,offset=1,lag=0"
		}, circumstances{failover: true}},
	} {
		f := well()
		c.change(f)
		if got := faults(c.of.findings(f)); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
