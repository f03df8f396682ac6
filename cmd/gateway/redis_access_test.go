package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis"
	"fencepost/internal/redis/redistest"
)

// The user that docs/stores/redis.md tells operators to make can do all that the
// gateway does, and nothing beyond its keys.
func TestRedisUser(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.GatewayArgs()...)
	useStore(t, "redis://fencepost:correct@"+server.Addr()+"/3")
	refused := startOn(t, "redis://fencepost:wrong@"+server.Addr()+"/3")
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

// useStore does everything once, with a key, over TLS where the store has it. What the log has
// to say of a user who may not do something is a failure.
func useStore(t *testing.T, store string, env ...string) {
	t.Helper()
	keys := filepath.Join(t.TempDir(), "keys")
	line, key := newKey(t, "-name", "all", "-scope", "read,lock,fence,admin", "-prefix", "jobs/,a,b")
	writeFile(t, keys, line)
	env = append(env, "FENCEPOST_KEYS_FILE="+keys)
	client, scheme := bounded, "http"
	if redis.Encrypted(store) {
		a := newAuthority(t)
		a.server("server")
		env = append(env, a.settings("server")...)
		client, scheme = a.client(""), "https"
	}
	g := startOn(t, store, env...)
	quorum := strings.Contains(store, "+quorum:")
	url := scheme + "://" + g.addr
	id := func() string { return fencing.NewLeaseID(time.Now()).Reveal() }
	own, waiter, both, short := id(), id(), id(), id()
	ask := func(method, path, body string, headers ...string) (status int, answer string) {
		t.Helper()
		r, err := http.NewRequest(method, url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", key["Authorization"])
		for i := 0; i+1 < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		response, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(text)
	}
	for deadline := time.Now().Add(patience); ; <-time.After(20 * time.Millisecond) {
		if status, answer := ask("GET", "/readyz", ""); status == http.StatusOK {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(status, answer)
		}
	}
	// known asks again where a busy store leaves nothing known, as clients do: a lease is then one
	// that was granted before.
	known := func(method, path, body string, headers ...string) (status int, answer string) {
		t.Helper()
		status, answer = ask(method, path, body, headers...)
		for deadline := time.Now().Add(patience); unavailable(status, []byte(answer)) && time.Now().Before(deadline); <-time.After(20 * time.Millisecond) {
			if status, answer = ask(method, path, body, headers...); method == http.MethodPost && status == http.StatusOK && strings.HasPrefix(path, "/locks") {
				status = http.StatusCreated
			}
		}
		return status, answer
	}
	want := func(status int, method, path, body string, headers ...string) string {
		t.Helper()
		got, answer := known(method, path, body, headers...)
		if got != status {
			t.Fatalf("%s %s: %d %s; want %d", method, path, got, answer, status)
		}
		return answer
	}
	token := func(answer string) string {
		t.Helper()
		match := regexp.MustCompile(`"fencing_token":(\d+)`).FindStringSubmatch(answer)
		if match == nil {
			t.Fatalf("%s has no token", answer)
		}
		return match[1]
	}
	first := token(want(201, "POST", "/locks/a", "", "Lease-Id", own))
	want(423, "POST", "/locks/a", "")
	waits := make(chan int, 1)
	go func() {
		status, _ := known("POST", "/locks/a", `{"wait_ms":20000}`, "Lease-Id", waiter)
		waits <- status
	}()
	want(200, "PUT", "/locks/a", "", "Lease-Id", own)
	if !quorum {
		for deadline := time.Now().Add(patience); !strings.Contains(want(200, "GET", "/locks/a", ""), `"waiting":1`); <-time.After(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("it does not wait")
			}
		}
	}
	want(200, "GET", "/locks", "")
	want(200, "GET", "/metrics", "")
	want(200, "GET", "/readyz?verbose", "")
	want(200, "POST", "/fences/a", `{"fencing_token":`+first+`}`)
	want(200, "GET", "/fences/a?token="+first, "")
	want(200, "GET", "/authorize/a", "", "Fencing-Token", first)
	want(412, "DELETE", "/locks/a", "", "If-Match", `"1"`)
	want(204, "DELETE", "/locks/a", "", "Lease-Id", own)
	if status := <-waits; status != http.StatusCreated {
		t.Errorf("who waited is answered %d", status)
	}
	second := token(want(200, "GET", "/locks/a", ""))
	want(204, "DELETE", "/locks/a", "", "If-Match", `"`+second+`"`)
	want(412, "POST", "/fences/a", `{"fencing_token":1}`)
	if !quorum { // which has neither sets nor histories
		want(201, "POST", "/locks", `{"names":["b","jobs/b"]}`, "Lease-Id", both)
		want(200, "PUT", "/locks", `{"names":["b","jobs/b"]}`, "Lease-Id", both)
		want(204, "DELETE", "/locks?name=b&name=jobs/b", "", "Lease-Id", both)
		want(200, "GET", "/history/a", "")
	}
	want(201, "POST", "/locks/jobs/short", `{"ttl_ms":1500,"mode":"shared"}`, "Lease-Id", short)
	for deadline := time.Now().Add(patience); strings.Contains(want(200, "GET", "/locks/jobs/short", ""), `"held":true`); <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not expire")
		}
	}
	if log := g.warnings(); strings.Contains(log, "NOPERM") || strings.Contains(log, "ACL SETUSER") {
		t.Errorf("the user may not do all that it has to:\n%s", log)
	}
}
