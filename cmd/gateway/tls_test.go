package main

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/redis/redistest"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.sign("authority", &x509.Certificate{Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// sign makes a certificate and its key, in files of that name.
func (a *authority) sign(name string, template *x509.Certificate) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	if template.NotBefore.IsZero() {
		template.NotBefore = time.Now().Add(-time.Hour)
	}
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	signer, signing := template, key
	if a.cert != nil {
		signer, signing = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, signer, &key.PublicKey, signing)
	if err != nil {
		a.t.Fatal(err)
	}
	if a.cert == nil {
		a.key = key
		if a.cert, err = x509.ParseCertificate(der); err != nil {
			a.t.Fatal(err)
		}
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	writeFile(a.t, a.file(name+".key"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	writeFile(a.t, a.file(name+".crt"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// server makes a certificate for this machine.
func (a *authority) server(name string) {
	a.sign(name, &x509.Certificate{Subject: pkix.Name{CommonName: name}, DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
}

// client returns who trusts the authority and has a certificate of it, if a name is given.
func (a *authority) client(name string) *http.Client {
	a.t.Helper()
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AddCert(a.cert)
	if name != "" {
		pair, err := tls.LoadX509KeyPair(a.file(name+".crt"), a.file(name+".key"))
		if err != nil {
			a.t.Fatal(err)
		}
		// whatever authorities the server names
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	a.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

// settings are those of a gateway with a certificate.
func (a *authority) settings(name string) []string {
	return []string{"FENCEPOST_TLS_CERT_FILE=" + a.file(name+".crt"), "FENCEPOST_TLS_KEY_FILE=" + a.file(name+".key")}
}

// served returns the common name of the certificate that a gateway shows to a newcomer.
func served(t *testing.T, addr string, version uint16) (name string, state tls.ConnectionState, err error) {
	t.Helper()
	conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: version, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		return "", state, err
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].Subject.CommonName, conn.ConnectionState(), nil
}

// TestTLS: TLS 1.2 or newer with HTTP/2, and HTTP/1.1 for who wants that; nothing in the
// clear. Certificates are exchanged while connections are open.
func TestTLS(t *testing.T) {
	a := newAuthority(t)
	a.server("first")
	log := filepath.Join(t.TempDir(), "log")
	g := startLogged(t, log, append(a.settings("first"), "FENCEPOST_ADMIN_ADDR=127.0.0.1:0")...)
	url := "https://" + g.addr
	client := a.client("")
	response, err := client.Post(url+"/locks/a", "", nil)
	if err != nil || response.StatusCode != http.StatusCreated || response.ProtoMajor != 2 {
		t.Fatalf("%+v, %v", response, err)
	}
	response.Body.Close()
	for version, fine := range map[uint16]bool{tls.VersionTLS13: true, tls.VersionTLS12: true, tls.VersionTLS11: false, tls.VersionTLS10: false} {
		if _, state, err := served(t, g.addr, version); (err == nil) != fine || fine && (state.Version != version || state.NegotiatedProtocol != "h2") {
			t.Errorf("%s: %+v, %v", tls.VersionName(version), state, err)
		}
	}
	if status, _, err := request("GET", "http://"+g.addr+"/livez", "", nil); err == nil && status != http.StatusBadRequest {
		t.Errorf("in the clear: %d", status)
	}
	if response, err := client.Get("https://" + g.admin + "/metrics"); err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("metrics: %+v, %v", response, err)
	} else {
		response.Body.Close()
	}
	t.Setenv("FENCEPOST_LISTEN_ADDR", g.addr)
	for _, setting := range a.settings("first") {
		name, value, _ := strings.Cut(setting, "=")
		t.Setenv(name, value)
	}
	if err := healthcheck(t.Context()); err != nil {
		t.Errorf("healthcheck: %v", err)
	}

	stays, err := client.Get(url + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer stays.Body.Close()
	good := map[string]string{}
	for _, name := range []string{"first.crt", "first.key"} {
		content, err := os.ReadFile(a.file(name))
		if err != nil {
			t.Fatal(err)
		}
		good[name] = string(content)
	}
	writeFile(t, a.file("first.crt"), "nonsense")
	g.cmd.Process.Signal(syscall.SIGHUP)
	wantInLog(t, log, `"msg":"a file can't be used; its previous content stays in force","setting":"FENCEPOST_TLS_CERT_FILE"`)
	if name, _, err := served(t, g.addr, 0); name != "first" {
		t.Errorf("with a bad file %q is served, %v", name, err)
	}
	a.server("second")
	for from, to := range map[string]string{"second.key": "first.key", "second.crt": "first.crt"} {
		if err := os.Rename(a.file(from), a.file(to)); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(patience); ; <-time.After(10 * time.Millisecond) {
		if name, _, err := served(t, g.addr, 0); name == "second" {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("%q is served, %v", name, err)
		}
	}
	if line, err := bufio.NewReader(stays.Body).ReadString('\n'); err != nil || !strings.HasPrefix(line, "id: ") {
		t.Errorf("the stream that was open: %q, %v", line, err)
	}
}

// TestClientCertificates: whom an authority of the settings has signed, and a line of the
// keys file names, comes in; nobody else does.
func TestClientCertificates(t *testing.T) {
	t.Parallel()
	a, other := newAuthority(t), newAuthority(t)
	a.server("server")
	a.sign("dns", &x509.Certificate{Subject: pkix.Name{CommonName: "ops"}, DNSNames: []string{"ci.example", "ops"}})
	a.sign("cn", &x509.Certificate{Subject: pkix.Name{CommonName: "ops"}})
	a.sign("late", &x509.Certificate{Subject: pkix.Name{CommonName: "ops"}, NotAfter: time.Now().Add(-time.Minute)})
	a.sign("unnamed", &x509.Certificate{Subject: pkix.Name{CommonName: "stranger"}})
	a.sign("nobody", &x509.Certificate{})
	a.sign("person", &x509.Certificate{Subject: pkix.Name{CommonName: "ops"}, EmailAddresses: []string{"somebody@example.com"}})
	a.sign("upper", &x509.Certificate{DNSNames: []string{"CI.Example"}})
	other.sign("forged", &x509.Certificate{Subject: pkix.Name{CommonName: "ops"}})
	for _, ext := range []string{".crt", ".key"} {
		if err := os.Rename(other.file("forged"+ext), a.file("forged"+ext)); err != nil {
			t.Fatal(err)
		}
	}
	keys := filepath.Join(t.TempDir(), "keys")
	lines := "cert ci.example scope=lock prefix=jobs/\n"
	line, header := newKey(t, "-name", "reader", "-scope", "read", "-prefix", "*")
	writeFile(t, keys, lines+line+"cert ops scope=admin,lock prefix=*\n")
	g := start(t, append(a.settings("server"), "FENCEPOST_KEYS_FILE="+keys, "FENCEPOST_TLS_CLIENT_CA_FILE="+a.file("authority.crt"))...)
	url := "https://" + g.addr
	ask := func(client *http.Client, method, path string, header map[string]string) (status int, err error) {
		t.Helper()
		r, _ := http.NewRequest(method, url+path, nil)
		for name, value := range header {
			r.Header.Set(name, value)
		}
		response, err := client.Do(r)
		if err != nil {
			return 0, err
		}
		response.Body.Close()
		return response.StatusCode, nil
	}
	for i, c := range []struct {
		certificate string
		header      map[string]string
		path        string
		want        int // 0: no connection
	}{
		{"dns", nil, "/locks/jobs/%d", 201}, {"dns", nil, "/locks/other/%d", 403}, {"cn", nil, "/locks/other/%d", 201},
		{"person", nil, "/locks/a/%d", 401}, {"upper", nil, "/locks/jobs/%d", 201}, {"unnamed", nil, "/locks/a/%d", 401}, {"nobody", nil, "/locks/a/%d", 401}, {"", nil, "/locks/a/%d", 401},
		{"late", nil, "/locks/a/%d", 0}, {"forged", nil, "/locks/a/%d", 0},
		{"cn", header, "/locks/a/%d", 403}, // the key counts
		{"cn", map[string]string{"Authorization": "Bearer x"}, "/locks/a/%d", 401},
	} {
		status, err := ask(a.client(c.certificate), "POST", fmt.Sprintf(c.path, i), c.header)
		if status != c.want || (err != nil) != (c.want == 0) {
			t.Errorf("%s %s: %d, %v, want %d", c.certificate, c.path, status, err, c.want)
		}
	}
	if status, err := ask(a.client(""), "GET", "/locks", header); status != 200 {
		t.Errorf("with a key and no certificate: %d, %v", status, err)
	}

	open := a.client("dns") // whose line goes while its connection is open
	if status, err := ask(open, "POST", "/locks/jobs/x", nil); status != 201 {
		t.Fatal(status, err)
	}
	writeFile(t, keys, line)
	g.cmd.Process.Signal(syscall.SIGHUP)
	for deadline := time.Now().Add(patience); ; <-time.After(10 * time.Millisecond) {
		if status, err := ask(open, "POST", "/locks/jobs/y", nil); status == 401 {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(status, err)
		}
	}
	// An authority that is taken away lets nobody in, also with a ticket of before.
	writeFile(t, keys, lines+line)
	if err := os.Rename(other.file("authority.crt"), a.file("authority.crt")); err != nil {
		t.Fatal(err)
	}
	resumes := a.client("dns")
	resumes.Transport.(*http.Transport).TLSClientConfig.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	for deadline := time.Now().Add(patience); ; <-time.After(10 * time.Millisecond) {
		_, err := ask(resumes, "GET", "/livez", nil)
		if err != nil {
			break
		}
		resumes.CloseIdleConnections()
		if time.Now().After(deadline) {
			t.Fatal("the authority of before is still believed")
		}
	}
}

// TestRedisClientCertificate: a Redis that wants a certificate gets the one of the settings.
func TestRedisClientCertificate(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.server("redis")
	a.sign("gateway", &x509.Certificate{Subject: pkix.Name{CommonName: "gateway"}})
	server := redistest.Start(t, "--tls-cert-file", a.file("redis.crt"), "--tls-key-file", a.file("redis.key"), "--tls-ca-cert-file", a.file("authority.crt"), "--tls-auth-clients", "optional")
	if err := server.Client().ConfigSet(t.Context(), "tls-auth-clients", "yes").Err(); err != nil { // the test's own clients have none
		t.Fatal(err)
	}
	trusted := []string{"FENCEPOST_STORE=" + server.URL(), "FENCEPOST_QUARANTINE=1s", "FENCEPOST_REDIS_TLS_CA_FILE=" + a.file("authority.crt")}
	g := start(t, append(trusted, "FENCEPOST_REDIS_TLS_CERT_FILE="+a.file("gateway.crt"), "FENCEPOST_REDIS_TLS_KEY_FILE="+a.file("gateway.key"))...)
	until(t, http.StatusCreated, "POST", "http://"+g.addr+"/locks/a", nil)

	bare := start(t, trusted...)
	until(t, http.StatusServiceUnavailable, "POST", "http://"+bare.addr+"/locks/b", nil)
}

// TestHalfWrittenFiles: a certificate that has more behind it which is none, one that has
// expired in place of one that has not, and a pipe in place of a file change nothing.
func TestHalfWrittenFiles(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.server("server")
	a.sign("late", &x509.Certificate{Subject: pkix.Name{CommonName: "late"}, NotAfter: time.Now().Add(-time.Minute)})
	a.sign("early", &x509.Certificate{Subject: pkix.Name{CommonName: "early"}, NotBefore: time.Now().Add(time.Minute)})
	watched := &files{log: slog.New(slog.DiscardHandler)}
	cfg := config{Serving: Serving{TLSCertFile: a.file("server.crt"), TLSKeyFile: a.file("server.key")}}
	if _, err := watchTLS(cfg, watched, watched.log); err != nil {
		t.Fatal(err)
	}
	one := watched.all[0]
	read := func(name string) string {
		content, err := os.ReadFile(a.file(name))
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	cert, key := read("server.crt"), read("server.key")
	for what, pair := range map[string][2]string{
		"a chain that is cut": {cert + read("authority.crt")[:100], key}, "an expired one": {read("late.crt"), read("late.key")}, "another key": {cert, read("late.key")},
		"one that is not valid yet": {read("early.crt"), read("early.key")}, "a chain with a damaged block": {cert + damaged(t, read("authority.crt")), key},
		"a chain with what is no certificate": {cert + pemBlock("CERTIFICATE", "nonsense"), key},
	} {
		writeFile(t, a.file("server.crt"), pair[0])
		writeFile(t, a.file("server.key"), pair[1])
		if err := watched.load(t.Context(), one, true, patience); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
	writeFile(t, a.file("server.crt"), cert+read("authority.crt")+"\n")
	writeFile(t, a.file("server.key"), key)
	if err := watched.load(t.Context(), one, true, patience); err != nil {
		t.Error(err)
	}
	if err := os.Remove(a.file("server.crt")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(a.file("server.crt"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := watched.load(t.Context(), one, true, patience); err == nil {
		t.Error("a pipe is taken")
	}
}

// damaged returns PEM with a fault in its middle.
func damaged(t *testing.T, text string) string {
	t.Helper()
	lines := strings.Split(text, "\n")
	lines[2] = "!" + lines[2]
	return strings.Join(lines, "\n")
}

func pemBlock(kind, content string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: []byte(content)}))
}

// TestAuthorities: a file of authorities is taken whole or not at all, and who comes and goes
// is in the audit.
func TestAuthorities(t *testing.T) {
	t.Parallel()
	a, b := newAuthority(t), newAuthority(t)
	text := func(a *authority) string { return pemBlock("CERTIFICATE", string(a.cert.Raw)) }
	fingerprint := func(a *authority) string { return fmt.Sprintf("%x", sha256.Sum256(a.cert.Raw)) }
	var audited bytes.Buffer
	var pool atomic.Pointer[x509.CertPool]
	one := authoritiesFile("CA", "ca", &pool, slog.New(slog.NewJSONHandler(&audited, nil)))
	apply := func(content string) error { return one.apply([][]byte{[]byte(content)}) }
	if err := apply("of old\n" + text(a) + text(b)); err != nil || audited.Len() > 0 {
		t.Fatal(err, &audited)
	}
	whole := pool.Load()
	for what, content := range map[string]string{
		"a damaged block": damaged(t, text(a)) + text(b), "a damaged last one": text(b) + damaged(t, text(a)), "half of one": text(a) + text(b)[:200],
		"no certificate": text(a) + pemBlock("CERTIFICATE", "nonsense"), "nothing": "", "a key alone": pemBlock("PRIVATE KEY", "x"),
	} {
		if err := apply(content); err == nil || pool.Load() != whole {
			t.Errorf("%s is taken", what)
		}
	}
	c := newAuthority(t)
	if err := apply(text(b) + text(c)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"audit":{"event":"authority removed","setting":"CA","authority":"CN=authority","sha256":"` + fingerprint(a) + `"}`,
		`"audit":{"event":"authority added","setting":"CA","authority":"CN=authority","sha256":"` + fingerprint(c) + `"}`,
	} {
		if !strings.Contains(audited.String(), want) {
			t.Errorf("the audit has no %s:\n%s", want, &audited)
		}
	}
	if n := strings.Count(audited.String(), "\n"); n != 2 {
		t.Errorf("%d lines:\n%s", n, &audited)
	}
}

// TestSettingsOfTLS: files that are of no use alone are a fault.
func TestSettingsOfTLS(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]config{
		"FENCEPOST_TLS_CERT_FILE, FENCEPOST_TLS_KEY_FILE: one":                  {Serving: Serving{TLSCertFile: "a"}},
		"FENCEPOST_REDIS_TLS_CERT_FILE, FENCEPOST_REDIS_TLS_KEY_FILE: one":      {Storage: Storage{Store: "rediss://a", Redis: Redis{RedisTLSKeyFile: "a"}}},
		"FENCEPOST_TLS_CLIENT_CA_FILE: is set, and FENCEPOST_TLS_CERT_FILE":     {Serving: Serving{TLSClientCAFile: "a"}},
		"FENCEPOST_TLS_CLIENT_CA_FILE: is set, and FENCEPOST_KEYS_FILE":         {Serving: Serving{TLSClientCAFile: "a", TLSCertFile: "a", TLSKeyFile: "a"}},
		"FENCEPOST_REDIS_TLS_CERT_FILE, FENCEPOST_REDIS_TLS_CA_FILE: are for r": {Storage: Storage{Store: "redis://a", Redis: Redis{RedisTLSCaFile: "a"}}},
	} {
		faults := cfg.validateTLS()
		if len(faults) != 1 || !strings.HasPrefix(faults[0].Error(), want) {
			t.Errorf("%v, want %s", faults, want)
		}
	}
	if faults := (&config{Storage: Storage{Store: "rediss+quorum://a,b,c", Redis: Redis{RedisTLSCaFile: "a"}}}).validateTLS(); len(faults) > 0 {
		t.Error(faults)
	}
}
