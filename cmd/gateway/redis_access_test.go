package main

import (
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"fencepost/internal/redis/redistest"
)

// The user that docs/stores.md tells operators to make can do all that the
// gateway does, and nothing beyond its keys.
func TestRedisUser(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	defer client.Close()
	err := client.Do(t.Context(), "ACL", "SETUSER", "gate", "on", ">correct", "~fencepost:*", "&fencepost:*",
		"+@read", "+@write", "+@connection", "+@pubsub", "-@dangerous", "-@scripting", "+fcall", "+function|load", "+function|list", "+function|delete", "+eval", "+evalsha",
		"+time", "+info", "+role", "+config|get").Err()
	if err != nil {
		t.Fatal(err)
	}
	useStore(t, "redis://gate:correct@"+server.Addr()+"/3")
	refused := startOn(t, "redis://gate:wrong@"+server.Addr()+"/3")
	status, body, err := request(http.MethodPost, "http://"+refused.addr+"/locks/a", "", nil)
	if err != nil || status != http.StatusServiceUnavailable {
		t.Errorf("with a wrong password: %d %s, %v; want 503", status, body, err)
	}
	const remedy = "the password in FENCEPOST_STORE" // for operators alone
	if strings.Contains(string(body), "reached") || strings.Contains(string(body), "password") {
		t.Errorf("clients are told %s", body)
	}
	if body := eventually(t, http.MethodGet, "http://"+refused.addr+"/readyz?verbose", http.StatusServiceUnavailable); !strings.Contains(string(body), remedy) {
		t.Errorf("/readyz?verbose says %s", body)
	}
	if log := refused.warnings(); !strings.Contains(log, remedy) {
		t.Errorf("the log says %s", log)
	}
}

// startOn starts a gateway on a store for the length of the test.
func startOn(t *testing.T, store string, env ...string) *gatewayProcess {
	t.Helper()
	g, err := launch(t.TempDir(), append(env,
		"PATH="+os.Getenv("PATH"), "FENCEPOST_LISTEN_ADDR=127.0.0.1:0", "FENCEPOST_STORE="+store))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.end(syscall.SIGTERM); err != nil {
			t.Errorf("the gateway's end: %v", err)
		}
		if t.Failed() {
			t.Log(g.warnings())
		}
	})
	return g
}

// useStore does everything once.
func useStore(t *testing.T, store string, env ...string) {
	t.Helper()
	url := "http://" + startOn(t, store, env...).addr
	own := map[string]string{"Lease-Id": "01KB0000000000000000000000.abcdefghijklmnopqrstuv"}
	eventually(t, http.MethodGet, url+"/readyz", http.StatusOK)
	for _, step := range []struct {
		method, path string
		header       map[string]string
		status       int
	}{
		{"POST", "/locks/a", own, 201},
		{"POST", "/locks/a", nil, 423},
		{"PUT", "/locks/a", own, 200},
		{"GET", "/locks/a", nil, 200},
		{"GET", "/locks", nil, 200},
		{"GET", "/metrics", nil, 200},
		{"DELETE", "/locks/a", map[string]string{"If-Match": `"1"`}, 412},
		{"DELETE", "/locks/a", own, 204},
	} {
		status, body, err := request(step.method, url+step.path, "", step.header)
		if err != nil || status != step.status {
			t.Fatalf("%s %s: %d %s, %v; want %d", step.method, step.path, status, body, err, step.status)
		}
	}
}
