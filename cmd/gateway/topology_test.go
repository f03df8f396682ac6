package main

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/internal/redis/redistest"
)

// readiness is what /readyz?verbose says.
type readiness struct {
	Store  string
	Checks []struct {
		OK bool
	}
}

// eventually asks until the answer is as wanted.
func eventually(t *testing.T, method, url string, wanted int) (body []byte) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(20 * time.Millisecond) {
		status, body, err := request(method, url, "", nil)
		if err == nil && status == wanted {
			return body
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s %s: %d %s, %v; want %d", method, url, status, body, err, wanted)
		}
	}
}

// passes waits until all checks are passed: those of a store that has just been
// taken into service may not be.
func passes(t *testing.T, url string) (r readiness) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(50 * time.Millisecond) {
		r = readiness{}
		body := eventually(t, http.MethodGet, url+"/readyz?verbose", http.StatusOK)
		if err := json.Unmarshal(body, &r); err != nil {
			t.Fatal(err)
		}
		failed := false
		for _, check := range r.Checks {
			failed = failed || !check.OK
		}
		if !failed {
			return r
		}
		if time.Now().After(deadline) {
			t.Fatalf("not all checks are passed: %s", body)
		}
	}
}

// examine runs gateway doctor, and returns its output and exit status.
func examine(t *testing.T, env ...string) (out string, status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "gateway", "doctor")
	cmd.Dir, cmd.Env = t.TempDir(), append(env, "PATH="+os.Getenv("PATH"))
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// examineUntil runs gateway doctor until it says all that is wanted, and returns the last output
// and exit status. A machine that is busy may keep what is examined from answering in time.
func examineUntil(t *testing.T, says []string, env ...string) (out string, status int) {
	t.Helper()
	var missing []string
	for deadline := time.Now().Add(patience); missing == nil || len(missing) > 0 && time.Now().Before(deadline); {
		out, status = examine(t, env...)
		missing = slices.DeleteFunc(slices.Clone(says), func(want string) bool { return strings.Contains(out, want) })
	}
	for _, want := range missing {
		t.Errorf("doctor does not say %q, but\n%s", want, out)
	}
	return out, status
}

var strictRedis = []string{"--appendonly", "yes", "--appendfsync", "always", "--save", ""}

// The same program on every topology: locks work, doctor knows what it looks at,
// and a promise that is in danger is told.
func TestTopologies(t *testing.T) {
	t.Parallel()
	onTopologies(t, "sentinel", "quorum")
}

func TestSystemTopologies(t *testing.T) {
	t.Parallel()
	onTopologies(t, "cluster")
}

func onTopologies(t *testing.T, kinds ...string) {
	// For what has replicas; one is enough here, and a fail-over is not the matter.
	guarded := append(slices.Clone(strictRedis), "--min-replicas-to-write", "1", "--min-replicas-max-lag", "3")
	for _, topology := range []struct {
		kind  string
		start func(t *testing.T) string // returns the URL
		env   []string
		says  []string // doctor
	}{
		{
			"sentinel", func(t *testing.T) string {
				s := redistest.StartSentinel(t, 1, 3, guarded...)
				s.Connected(1)
				return s.URL()
			},
			[]string{"FENCEPOST_REDIS_REPLICA_ACKS=1"},
			[]string{"(a Redis that Sentinels watch)", "1 replica follows this master", replicaPromise(1)},
		},
		{
			"cluster", func(t *testing.T) string { return redistest.StartCluster(t, 3, 3, guarded...).URL() },
			nil,
			[]string{"(a Redis Cluster)", "1 replica follows this master", replicaPromise(0)},
		},
		{
			"quorum", func(t *testing.T) string { return redistest.QuorumURL(redistest.StartQuorum(t, 3, strictRedis...)) },
			nil,
			[]string{"(a quorum of independent Redis masters)", "3 of 3 nodes vote", "every token is claimed on a majority"},
		},
	} {
		if !slices.Contains(kinds, topology.kind) {
			continue
		}
		t.Run(topology.kind, func(t *testing.T) {
			t.Parallel()
			store := topology.start(t)
			env := append(slices.Clone(topology.env), "FENCEPOST_STRICT=true")
			url := "http://" + startOn(t, store, env...).addr
			eventually(t, http.MethodPost, url+"/locks/first", http.StatusCreated)
			useStore(t, store, env...)

			if kind := passes(t, url).Store; kind != topology.kind {
				t.Errorf("the store is %q, want %q", kind, topology.kind)
			}
			metrics := string(eventually(t, http.MethodGet, url+"/metrics", http.StatusOK))
			for _, want := range []string{`store="` + topology.kind + `"`, "fencepost_store_pool_connections ", "fencepost_store_losses_total ", `fencepost_store_findings{check="eviction"} 0`} {
				if !strings.Contains(metrics, want) {
					t.Errorf("%s is not in the metrics", want)
				}
			}

			out, status := examineUntil(t, topology.says, append(slices.Clone(topology.env), "FENCEPOST_STORE="+store)...)
			if status != 0 || strings.Contains(out, "DANGER") {
				t.Errorf("doctor ends with %d", status)
			}
			if t.Failed() {
				t.Log(out)
			}
		})
	}
}

// What a quorum can't do is refused with the name of the field.
func TestQuorumSaysWhatItLacks(t *testing.T) {
	t.Parallel()
	url := "http://" + startOn(t, redistest.QuorumURL(redistest.StartQuorum(t, 3, strictRedis...))).addr
	eventually(t, http.MethodPost, url+"/locks/first", http.StatusCreated)
	for _, tt := range []struct{ path, body, code, field string }{
		{"/locks/a", `{"mode":"shared","limit":3}`, "unsupported_by_store", "limit"},
		{"/locks", `{"names":["a","b"]}`, "unsupported_by_store", "names"},
		{"/locks/a", `{"ttl_ms":500}`, "invalid_request", "ttl_ms"},
	} {
		status, body, err := request(http.MethodPost, url+tt.path, tt.body, nil)
		if err != nil {
			t.Fatal(err)
		}
		var problem struct{ Code, Field, Detail string }
		if err := json.Unmarshal(body, &problem); err != nil {
			t.Fatal(err)
		}
		if status != http.StatusBadRequest || problem.Code != tt.code || problem.Field != tt.field || !strings.HasPrefix(problem.Detail, tt.field) {
			t.Errorf("%s is answered %d %s", tt.body, status, body)
		}
	}
}

// A quorum of which a minority is gone goes on, strict or not; nothing about that
// endangers a promise, and doctor says that it is trouble.
func TestQuorumWithoutSomeNodes(t *testing.T) {
	t.Parallel()
	quorumWithoutSomeNodes(t)
}

// Without a majority nothing is examined any more.
func TestSystemQuorumWithoutAMajority(t *testing.T) {
	t.Parallel()
	nodes, url := quorumWithoutSomeNodes(t)
	if err := nodes[1].Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, http.MethodGet, url+"/readyz", http.StatusServiceUnavailable)
	out, status := examineUntil(t, []string{"1 of 3 nodes vote", "the store can't serve now"}, "FENCEPOST_STORE="+redistest.QuorumURL(nodes))
	if status != 1 {
		t.Errorf("doctor ends with %d and says\n%s", status, out)
	}
}

// quorumWithoutSomeNodes starts a quorum of three and a gateway on it, and ends one of the nodes.
func quorumWithoutSomeNodes(t *testing.T) (nodes []*redistest.Server, url string) {
	t.Helper()
	nodes = redistest.StartQuorum(t, 3, strictRedis...)
	store := redistest.QuorumURL(nodes)
	url = "http://" + startOn(t, store, "FENCEPOST_STRICT=true").addr
	eventually(t, http.MethodPost, url+"/locks/first", http.StatusCreated)
	if err := nodes[2].Kill(); err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		t.Run("serves", func(t *testing.T) { useStore(t, store, "FENCEPOST_STRICT=true") })
	})
	t.Run("doctor", func(t *testing.T) {
		out, status := examineUntil(t, []string{"2 findings are trouble", "2 of 3 nodes vote; out of reach: " + nodes[2].Addr()}, "FENCEPOST_STORE="+store)
		if status != 1 {
			t.Errorf("doctor ends with %d and says\n%s", status, out)
		}
	})
	serving.Wait()
	return nodes, url
}
