package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// collected is all that came out of somewhere.
type collected struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (c *collected) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all.Write(p)
}

func (c *collected) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all.String()
}

// TestCanaries: a key, the secret of a lease, the password of Redis and the private keys
// of certificates are nowhere but where they belong: no log, answer, metric, event, trace
// or profile has them, and nothing that Redis is sent or keeps.
func TestCanaries(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.server("server")
	a.sign("gateway", &x509.Certificate{Subject: pkix.Name{CommonName: "gateway"}})
	a.sign("ops", &x509.Certificate{Subject: pkix.Name{CommonName: "ops"}})
	const password = "CANARY-PASSWORD-CANARY"
	server := redistest.Start(t, "--tls-cert-file", a.file("server.crt"), "--tls-key-file", a.file("server.key"), "--tls-ca-cert-file", a.file("authority.crt"),
		"--tls-auth-clients", "optional", "--requirepass", password, "--rdbcompression", "no")
	said, ended := monitor(t, server.Addr(), password)
	traces := &collected{}
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(traces, r.Body) }))
	defer collector.Close()

	keys, log := filepath.Join(t.TempDir(), "keys"), filepath.Join(t.TempDir(), "log")
	ciLine, ci := newKey(t, "-name", "ci", "-scope", "lock,read,fence", "-prefix", "jobs/")
	opsLine, ops := newKey(t, "-name", "ops", "-scope", "read,lock,fence,admin", "-prefix", "*")
	lateLine, late := newKey(t, "-name", "late", "-scope", "read", "-prefix", "*", "-expires", "2020-01-01T00:00:00Z")
	writeFile(t, keys, ciLine+opsLine+lateLine+"cert ops scope=read prefix=*\n")
	g := startLogged(t, log, append(a.settings("server"),
		"FENCEPOST_KEYS_FILE="+keys, "FENCEPOST_TLS_CLIENT_CA_FILE="+a.file("authority.crt"), "FENCEPOST_ADMIN_ADDR=127.0.0.1:0",
		"FENCEPOST_STORE="+server.URL(), "FENCEPOST_REDIS_PASSWORD="+password, "FENCEPOST_QUARANTINE=1s", "FENCEPOST_REDIS_TLS_CA_FILE="+a.file("authority.crt"),
		"FENCEPOST_REDIS_TLS_CERT_FILE="+a.file("gateway.crt"), "FENCEPOST_REDIS_TLS_KEY_FILE="+a.file("gateway.key"),
		"OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "OTEL_BSP_SCHEDULE_DELAY=100")...)

	const secret = "CANARY-SECRET-OF-A-LEASE"
	own := fencing.NewLeaseID(time.Now()).Reveal()[:26] + "." + secret
	canaries := map[string]string{"the secret of a lease": secret, "the password of Redis": password}
	for name, header := range map[string]map[string]string{"ci": ci, "ops": ops, "late": late} {
		canaries["the key of "+name] = header["Authorization"][len("Bearer fp_12345678_"):]
	}
	for _, name := range []string{"server", "gateway", "ops"} {
		content, err := os.ReadFile(a.file(name + ".key"))
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(content)
		canaries["the private key of "+name] = strings.Split(string(content), "\n")[2] // the last line of base64 but one has the key itself
		canaries["the private key of "+name+", raw"] = string(block.Bytes[36:60])
	}

	answers := &collected{}
	client := a.client("")
	ask := func(want int, method, url, body string, headers ...map[string]string) []byte {
		t.Helper()
		r, err := http.NewRequest(method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for _, header := range headers {
			for name, value := range header {
				r.Header.Set(name, value)
			}
		}
		response, err := client.Do(r)
		if err != nil {
			t.Fatalf("%s %s: %v", method, url, err)
		}
		defer response.Body.Close()
		answer, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		if want != 0 && response.StatusCode != want {
			t.Errorf("%s %s: %d %s, want %d", method, url, response.StatusCode, answer, want)
		}
		response.Header.Write(answers)
		fmt.Fprintf(answers, "%s\n", answer)
		return answer
	}
	url, lease := "https://"+g.addr, map[string]string{"Lease-Id": own}
	for deadline := time.Now().Add(patience); !strings.Contains(string(ask(0, "POST", url+"/locks/first", "", ops)), `"fencing_token"`); <-time.After(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing is granted")
		}
	}
	answers.all.Reset() // that one has a secret, as it should

	watching, stop := context.WithCancel(t.Context())
	defer stop()
	r, _ := http.NewRequestWithContext(watching, "GET", url+"/events", nil)
	r.Header.Set("Authorization", ops["Authorization"])
	events, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	told := &collected{}
	reading.Go(func() { io.Copy(told, events.Body) })
	defer reading.Wait()
	defer stop()

	granted := ask(201, "POST", url+"/locks/jobs/a", `{"owner":"me"}`, ci, lease)
	if strings.Count(answers.String(), secret) != 1 {
		t.Fatalf("the lease id belongs into %s", granted)
	}
	answers.all.Reset()
	ask(200, "PUT", url+"/locks/jobs/a", "", ci, lease)
	ask(423, "POST", url+"/locks/jobs/a", `{"wait_ms":10}`, ops)
	ask(412, "PUT", url+"/locks/jobs/b", "", ci, lease)
	ask(403, "PUT", url+"/locks/other", "", ci, lease)
	ask(401, "PUT", url+"/locks/jobs/a", "", late, lease)
	ask(401, "PUT", url+"/locks/jobs/a", "", map[string]string{"Authorization": ci["Authorization"] + "x"}, lease)
	ask(401, "PUT", url+"/locks/jobs/a", "", map[string]string{"Authorization": "Basic " + base64.StdEncoding.EncodeToString([]byte("x:"+ci["Authorization"]))}, lease)
	ask(400, "PUT", url+"/locks/jobs/a?key="+ci["Authorization"][7:], own, ci, lease)
	ask(400, "POST", url+"/locks/jobs/b", ci["Authorization"], ci)
	ask(400, "GET", url+"/locks?prefix="+own+"!", "", ops)
	ask(404, "GET", url+"/"+ci["Authorization"][7:], "", ops)
	for _, path := range []string{"/locks/jobs/a", "/history/jobs/a", "/locks", "/readyz?verbose", "/", "/openapi.yaml", "/assets/js/key.js"} {
		ask(200, "GET", url+path, "", ops)
	}
	ask(0, "POST", url+"/fences/jobs/a", `{"fencing_token":1}`, ci)
	ask(204, "DELETE", url+"/locks/jobs/a", "", ci, lease)
	ask(412, "POST", url+"/locks/jobs/a", "", ci, lease)
	writeFile(t, a.file("server.crt"), "nonsense")
	writeFile(t, keys, ciLine+opsLine+"key bad id=00000000 sha256="+ci["Authorization"][7:]+" scope=read prefix=*\n")
	g.cmd.Process.Signal(syscall.SIGHUP)
	wantInLog(t, log, `"setting":"FENCEPOST_TLS_CERT_FILE","error"`)
	wantInLog(t, log, `"setting":"FENCEPOST_KEYS_FILE","error"`)
	admin := "https://" + g.admin
	for _, path := range []string{"/metrics", "/debug/pprof/goroutine?debug=2", "/debug/pprof/heap?debug=1", "/debug/pprof/allocs?debug=1", "/debug/pprof/trace?seconds=1"} {
		ask(200, "GET", admin+path, "", ops)
	}
	redis := server.Client()
	defer redis.Close()
	if err := redis.Save(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); !strings.Contains(told.String(), "released") || traces.String() == ""; <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes of traces; events:\n%s", len(traces.String()), told)
		}
	}
	stop()
	reading.Wait()
	if err := g.end(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	ended()
	dump, err := os.ReadFile(filepath.Join(filepath.Dir(server.Socket()), "dump.rdb"))
	if err != nil {
		t.Fatal(err)
	}
	logged, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for where, text := range map[string]string{
		"the log": string(logged), "an answer": answers.String(), "an event": told.String(), "a trace": traces.String(),
		"what Redis is sent": said.String(), "what Redis keeps": string(dump),
	} {
		if len(text) < 100 {
			t.Errorf("%s is only %q", where, text)
		}
		for what, canary := range canaries {
			for form, hidden := range map[string]string{
				"": canary, " in hexadecimal": hex.EncodeToString([]byte(canary)), " in base64": base64.StdEncoding.EncodeToString([]byte(canary))[:len(canary)],
			} {
				if strings.Contains(text, hidden) {
					t.Errorf("%s has %s%s", where, what, form)
				}
			}
		}
	}
	if !strings.Contains(said.String(), "jobs/a") || !strings.Contains(string(dump), "jobs/a") || !strings.Contains(string(logged), own[:26]) {
		t.Error("what was looked through is not what was meant")
	}
}

// monitor collects all that a Redis is sent, until ended is called.
func monitor(t *testing.T, addr, password string) (said *collected, ended func()) {
	t.Helper()
	conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "AUTH %s\r\nMONITOR\r\n", password); err != nil {
		t.Fatal(err)
	}
	said = &collected{}
	var reading sync.WaitGroup
	reading.Go(func() { io.Copy(said, conn) })
	return said, func() {
		conn.Close()
		reading.Wait()
	}
}
