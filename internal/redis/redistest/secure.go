package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	// Password is that of servers with the arguments of Authority.
	Password = "correct"

	// SentinelPassword is that of Sentinels whose master has the arguments of
	// Authority: another one, so that it can't be mixed up unnoticed.
	SentinelPassword = "correct-too"
)

// GatewayUser is the user of a gateway on servers with the arguments GatewayArgs, with Password.
const GatewayUser = "fencepost"

// GatewayRights are what a gateway may do at most: the rules of docs/stores/redis.md, for any
// topology.
var GatewayRights = []string{
	"~fencepost:*", "&fencepost:*", "+@read", "+@write", "+@connection", "+@pubsub", "-@dangerous", "-@scripting",
	"+fcall", "+function|load", "+function|list", "+function|delete", "+eval", "+evalsha", "+time", "+info", "+role", "+config|get",
}

// ClusterRights are what it may do besides on a Cluster.
var ClusterRights = []string{"+cluster|slots", "+cluster|info"}

// GatewayArgs returns the arguments of servers that know GatewayUser.
func GatewayArgs(further ...string) []string {
	return slices.Concat([]string{"--user", GatewayUser, "on", ">" + Password}, GatewayRights, further)
}

// Authority signs the certificates of servers.
type Authority struct{ dir string }

// NewAuthority makes an authority that nobody trusts yet, and a certificate of it
// for all its servers, which is valid for an hour and for one host: a name or an
// IP address.
func NewAuthority(t testing.TB, host string) *Authority {
	t.Helper()
	a := &Authority{dir: t.TempDir()}
	root := &x509.Certificate{
		Subject: pkix.Name{CommonName: "redistest authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	key := a.write(t, "authority", root, root, nil)
	server := &x509.Certificate{
		Subject: pkix.Name{CommonName: "redistest server"}, KeyUsage: x509.KeyUsageDigitalSignature,
		// Servers are clients of each other.
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if ip := net.ParseIP(host); ip != nil {
		server.IPAddresses = []net.IP{ip}
	} else {
		server.DNSNames = []string{host}
	}
	a.write(t, "server", server, root, key)
	return a
}

// write writes a certificate and its key, which it returns. Without the key of the
// one who signs, the certificate signs itself.
func (a *Authority) write(t testing.TB, name string, template, signer *x509.Certificate, signing *ecdsa.PrivateKey) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if signing == nil {
		signing = key
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	certificate, err := x509.CreateCertificate(rand.Reader, template, signer, &key.PublicKey, signing)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{
		a.path(name + ".crt"): {Type: "CERTIFICATE", Bytes: certificate},
		a.path(name + ".key"): {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return key
}

func (a *Authority) path(name string) string { return filepath.Join(a.dir, name) }

// File returns the path of the authority's certificate: who trusts it trusts the
// servers.
func (a *Authority) File() string { return a.path("authority.crt") }

// Args returns the arguments of servers that listen with TLS only, also to each
// other, and demand Password.
func (a *Authority) Args() []string {
	return []string{
		"--tls-cert-file", a.path("server.crt"), "--tls-key-file", a.path("server.key"), "--tls-ca-cert-file", a.File(),
		"--tls-auth-clients", "no", "--tls-replication", "yes", "--tls-cluster", "yes",
		"--requirepass", Password, "--masterauth", Password,
	}
}

// encryption returns the arguments of a server that are about TLS, with their
// values; none of one that has no certificate.
func (s *Server) encryption() []string {
	var args []string
	for i := 0; i+1 < len(s.args); i++ {
		if strings.HasPrefix(s.args[i], "--tls-") {
			args = append(args, s.args[i], s.args[i+1])
		}
	}
	return args
}

// password returns what the server demands, "" if nothing.
func (s *Server) password() string {
	at := slices.Index(s.args, "--requirepass")
	if at < 0 {
		return ""
	}
	return s.args[at+1]
}

// scheme returns how URLs of the server begin.
func (s *Server) scheme() string {
	if len(s.encryption()) > 0 {
		return "rediss"
	}
	return "redis"
}
