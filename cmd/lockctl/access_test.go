package main

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/client"
	"fencepost/verify/system"
)

// TestKeys: the key of the environment lets in, and its scopes and names are obeyed.
func TestKeys(t *testing.T) {
	url, key := gatewayWithKey(t, "lock,read", "jobs/")
	t.Setenv("FENCEPOST", url)
	secret, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		env  map[string]string
		args string
		want int
	}{
		{nil, "acquire jobs/a", exitNotAllowed},
		{map[string]string{keyVariable: "fp_wrong"}, "acquire jobs/a", exitNotAllowed},
		{map[string]string{keyFileVariable: key}, "acquire jobs/a", 0},
		{map[string]string{keyVariable: strings.TrimSpace(string(secret))}, "get jobs/a", 0},
		{map[string]string{keyFileVariable: key}, "acquire other/a", exitNotAllowed},
		{map[string]string{keyFileVariable: key}, "break jobs/a 1", exitNotAllowed},
		{map[string]string{keyFileVariable: key}, "ls", 0},
		{map[string]string{keyFileVariable: key, keyVariable: "x"}, "ls", exitUsage},
		{map[string]string{keyFileVariable: key + ".none"}, "ls", exitUsage},
		{map[string]string{keyFileVariable: os.DevNull}, "ls", exitUsage},
		{map[string]string{keyVariable: "two\nlines"}, "ls", exitUsage},
		{nil, "doctor", exitNotAllowed},
		{map[string]string{keyVariable: "fp_wrong"}, "doctor", exitNotAllowed},
	} {
		t.Run(c.args, func(t *testing.T) {
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			var out bytes.Buffer
			if got := run(t.Context(), strings.Fields(c.args), &out, &out); got != c.want {
				t.Errorf("%v: %d, want %d: %s", c.env, got, c.want, &out)
			}
			if hint := strings.Contains(out.String(), keyFileVariable+" to a key"); hint != (c.env == nil) {
				t.Errorf("%v: it says %s", c.env, &out)
			}
			if len(string(secret)) > 10 && strings.Contains(out.String(), strings.TrimSpace(string(secret))) {
				t.Errorf("the key is shown: %s", &out)
			}
		})
	}
}

// The keys file of a gateway is taken for a file with a key.
func TestTheKeysFileIsNoKey(t *testing.T) {
	t.Parallel()
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte("key ops id=abcdefgh sha256=00 scope=read prefix=*\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, out := lockctl(t, []string{keyFileVariable + "=" + keys}, "ls")
	if says := "lockctl: FENCEPOST_KEY_FILE: " + keys + " has more than a key"; got != exitUsage || !strings.Contains(out, says) {
		t.Errorf("%d, %s", got, out)
	}
}

// doctor says what is left of a quarantine.
func TestDoctorOfAQuarantine(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Write([]byte(`{"status":"ready","store":"redis","version":"v1","checks":[{"name":"store","ok":true},{"name":"quarantine","ok":false,"remaining_ms":38000}]}`))
	}))
	defer server.Close()
	got, out := lockctl(t, []string{"FENCEPOST=" + server.URL}, "doctor")
	if got != exitFailed || !strings.Contains(out, "  BAD quarantine  38s left\n") || !strings.Contains(out, "lockctl: 1 finding\n") {
		t.Errorf("%d, %s", got, out)
	}
}

// gatewayWithKey starts a gateway that has one key, and returns its URL and the key's file.
func gatewayWithKey(t *testing.T, scope, prefix string) (url, key string) {
	t.Helper()
	dir := t.TempDir()
	keys, key := filepath.Join(dir, "keys"), filepath.Join(dir, "ci.key")
	gateway, err := system.Binary(system.Build{})
	if err != nil {
		t.Fatal(err)
	}
	keygen := exec.Command(gateway, "keygen", "-name", "ci", "-scope", scope, "-prefix", prefix)
	var secret bytes.Buffer
	keygen.Stderr = &secret
	line, err := keygen.Output()
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string][]byte{keys: line, key: secret.Bytes()} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return startGateway(t, gateway, "FENCEPOST_KEYS_FILE="+keys), key
}

// startGateway starts a gateway, and returns its URL.
func startGateway(t *testing.T, path string, env ...string) string {
	t.Helper()
	cmd := exec.Command(path)
	cmd.Dir, cmd.Env = t.TempDir(), append(env, "FENCEPOST_LISTEN_ADDR=127.0.0.1:0")
	log, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	for lines := bufio.NewScanner(log); lines.Scan(); {
		var entry struct{ Msg, Address string }
		if json.Unmarshal(lines.Bytes(), &entry); entry.Msg == "serving" {
			go io.Copy(io.Discard, log)
			return "http://" + entry.Address
		}
	}
	t.Fatal("the gateway does not serve")
	return ""
}

// TestCertificates: an authority of one's own is trusted, and a certificate shown.
func TestCertificates(t *testing.T) {
	t.Parallel() // most of it is waiting
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) == 0 {
			w.WriteHeader(http.StatusUnauthorized)
			w.Write([]byte(`{"code":"unauthenticated","status":401}`))
			return
		}
		w.Write([]byte(`{"locks":[]}`))
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	dir := t.TempDir()
	ca, cert, key := filepath.Join(dir, "ca"), filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	private, err := x509.MarshalPKCS8PrivateKey(server.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for path, content := range map[string][]byte{ca: public, cert: public, key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		ca, cert, key string
		want          int
	}{
		{ca, cert, key, 0}, {ca, "", "", exitNotAllowed}, {"", "", "", exitUnreachable}, {key, "", "", exitUsage},
		{"none", "", "", exitUsage}, {ca, cert, "", exitUsage}, {ca, "", key, exitUsage}, {ca, cert, cert, exitUsage},
	} {
		got, out := lockctl(t, []string{"FENCEPOST=" + server.URL, caFileVariable + "=" + c.ca, certFileVariable + "=" + c.cert, certKeyVariable + "=" + c.key}, "ls")
		if got != c.want {
			t.Errorf("%+v: %d, want %d: %s", c, got, c.want, out)
		}
	}
}

// TestUntrusted: a gateway whose certificate is not trusted is asked once, and what is to be set is said.
func TestUntrusted(t *testing.T) {
	t.Parallel()
	var handshakes atomic.Int32
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		handshakes.Add(1)
		return nil, nil
	}}
	server.StartTLS()
	defer server.Close()
	dir := t.TempDir()
	own, strange := filepath.Join(dir, "own"), filepath.Join(dir, "strange")
	if err := os.WriteFile(own, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(strange, otherAuthority(t), 0o600); err != nil {
		t.Fatal(err)
	}
	expired := httptest.NewUnstartedServer(http.NotFoundHandler())
	expired.Config.ErrorLog = log.New(io.Discard, "", 0)
	pair, ca := expiredCertificate(t)
	expired.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, GetConfigForClient: server.TLS.GetConfigForClient}
	expired.StartTLS()
	defer expired.Close()
	once := filepath.Join(dir, "expired")
	if err := os.WriteFile(once, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	byName := "https://localhost:" + server.URL[strings.LastIndexByte(server.URL, ':')+1:]
	for _, c := range []struct{ gateway, ca, says string }{
		{server.URL, "", "lockctl: set $FENCEPOST_CA_FILE to a file with the authorities"},
		{server.URL, strange, "lockctl: the certificate is not from an authority in " + strange + ", which $FENCEPOST_CA_FILE names"},
		{expired.URL, once, "lockctl: the certificate of the gateway has to be renewed, or the clock of this machine is wrong"},
		{byName, own, "lockctl: the certificate is for example.com, *.example.com, 127.0.0.1, ::1: use one of these in $FENCEPOST or -gateway"},
	} {
		for _, args := range []string{"ls", "get a", "acquire a", "run a -- true", "watch", "release a", "renew a", "break a 1", "doctor"} {
			before := handshakes.Load()
			got, out := lockctl(t, []string{"FENCEPOST=" + c.gateway, caFileVariable + "=" + c.ca, "LEASE_ID=" + client.NewLeaseID()}, strings.Fields(args)...)
			if got != exitUnreachable || !strings.Contains(out, c.says) {
				t.Errorf("%s at %s with %q: %d, %s", args, c.gateway, c.ca, got, out)
			}
			if n := handshakes.Load() - before; n != 1 {
				t.Errorf("%s at %s with %q: it was asked %d times", args, c.gateway, c.ca, n)
			}
		}
	}
	// It would wait for ten minutes. The queue that it shows meanwhile is asked for, too.
	if got, out := lockctl(t, []string{"FENCEPOST=" + server.URL}, "run", "-wait", "10m", "a", "--", "true"); got != exitUnreachable || !strings.Contains(out, caFileVariable) {
		t.Errorf("%d, %s", got, out)
	}
}

// expiredCertificate returns a certificate for 127.0.0.1 that has expired, and its authority, which is itself.
func expiredCertificate(t *testing.T) (pair tls.Certificate, authority []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour),
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
}

// otherAuthority returns a certificate that has signed nothing.
func otherAuthority(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
}
