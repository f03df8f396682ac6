package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/client"
)

// withAccess returns a client as lockctl makes it, by an environment.
func withAccess(t *testing.T, url string, env map[string]string) *client.Client {
	t.Helper()
	for name, value := range env {
		t.Setenv(name, value)
	}
	o := client.Options{Addresses: []string{url}, Patience: time.Second}
	if err := setAccess(&o); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// TestKeyReplaced: a key that is replaced in its file is the one that is shown from then on; a file that is being written, or is
// gone for a moment, changes nothing.
func TestKeyReplaced(t *testing.T) {
	var valid atomic.Value
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+valid.Load().(string) {
			w.WriteHeader(http.StatusUnauthorized)
			io.WriteString(w, `{"code":"unauthenticated","status":401}`)
			return
		}
		io.WriteString(w, `{"name":"a","held":false,"holders":[]}`)
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "key")
	write(t, file, []byte("fp_one\n"))
	valid.Store("fp_one")
	c := withAccess(t, server.URL, map[string]string{keyFileVariable: file})
	works := func(when string) {
		t.Helper()
		if _, err := c.Inspect(t.Context(), "a"); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	works("at first")
	for _, half := range []string{"", "fp_two and\nmore"} {
		write(t, file, []byte(half))
		works("half written")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	works("without the file")
	write(t, file, []byte("fp_two\n"))
	valid.Store("fp_two")
	works("replaced")
}

// selfSigned returns a certificate for 127.0.0.1 that is its own authority, and it and its key in PEM.
func selfSigned(t *testing.T) (pair tls.Certificate, public, private []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(time.Hour)}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// TestCertificatesReplaced: so it is of the authorities and of the client's certificate.
func TestCertificatesReplaced(t *testing.T) {
	var shows atomic.Pointer[tls.Certificate]
	var valid atomic.Value
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) == 0 || string(r.TLS.PeerCertificates[0].Raw) != valid.Load().(string) {
			w.WriteHeader(http.StatusUnauthorized)
			io.WriteString(w, `{"code":"unauthenticated","status":401}`)
			return
		}
		io.WriteString(w, `{"name":"a","held":false,"holders":[]}`)
	}))
	server.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{*shows.Load()}, ClientAuth: tls.RequestClientCert}, nil
	}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	dir := t.TempDir()
	ca, cert, key := filepath.Join(dir, "ca"), filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	replace := func() {
		of, authority, _ := selfSigned(t)
		own, public, private := selfSigned(t)
		write(t, ca, authority)
		write(t, cert, public)
		write(t, key, private)
		shows.Store(&of)
		valid.Store(string(own.Certificate[0]))
	}
	replace()
	server.StartTLS()
	defer server.Close()
	c := withAccess(t, server.URL, map[string]string{caFileVariable: ca, certFileVariable: cert, certKeyVariable: key})
	for i := range 3 {
		if _, err := c.Inspect(t.Context(), "a"); err != nil {
			t.Errorf("replaced %d times: %v", i, err)
		}
		replace()
		if i == 1 {
			server.CloseClientConnections()
		}
	}
}
