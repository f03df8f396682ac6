package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/redis/redistest"
)

// The user that docs/stores.md tells operators to make can do all that the
// gateway does, and nothing beyond its keys.
func TestRedisUser(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	defer client.Close()
	err := client.Do(t.Context(), "ACL", "SETUSER", "gate", "on", ">correct", "~fencepost:*", "&fencepost:*",
		"+@read", "+@write", "+@connection", "+@pubsub", "-@dangerous", "-@scripting", "+eval", "+evalsha", "+script|load",
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
}

// rediss:// with a certificate authority of one's own, trusted by SSL_CERT_FILE.
func TestRedisTLS(t *testing.T) {
	dir := t.TempDir()
	writeCertificate(t, dir)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	redistest.Start(t, "--tls-port", strconv.Itoa(port), "--tls-auth-clients", "no",
		"--tls-cert-file", filepath.Join(dir, "cert.pem"), "--tls-key-file", filepath.Join(dir, "key.pem"))
	url := "rediss://localhost:" + strconv.Itoa(port)
	useStore(t, url, "SSL_CERT_FILE="+filepath.Join(dir, "cert.pem"))

	distrusting := startOn(t, url)
	status, body, err := request(http.MethodPost, "http://"+distrusting.addr+"/locks/a", "", nil)
	if err != nil || status != http.StatusServiceUnavailable {
		t.Errorf("with an unknown certificate: %d %s, %v; want 503", status, body, err)
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
	for _, step := range []struct {
		method, path string
		header       map[string]string
		status       int
	}{
		{"GET", "/readyz", nil, 200},
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

// writeCertificate writes a certificate for localhost that is its own authority.
func writeCertificate(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: certificate},
		"key.pem":  {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
