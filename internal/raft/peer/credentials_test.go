package peer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert, key}
}

// credentials are those of a node with a certificate for hosts, of which IP addresses are told by
// their form, that trusts a.
func (a authority) credentials(t *testing.T, signer authority, hosts ...string) *Credentials {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, signer.cert, &key.PublicKey, signer.key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	own := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	return FromCertificates(func() *tls.Certificate { return own }, func() *x509.CertPool { return pool })
}

// Who has not what the others have is not let in, and lets nobody in: whichever of the two
// begins. Those who have it are.
func TestWhoComesIn(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	for _, c := range []struct {
		name   string
		a, b   *Credentials
		let    bool // a lets b in
		accept bool // b lets a in
	}{
		{"the same secret", shared(t, secret), shared(t, secret), true, true},
		{"no credentials, on loopback", nil, nil, true, true},
		{"another secret", shared(t, secret), shared(t, otherSecret), false, false},
		{"none beside a secret", shared(t, secret), nil, false, false},
		{"the same authority", ca.credentials(t, ca, "127.0.0.1"), ca.credentials(t, ca, "127.0.0.1"), true, true},
		{"another authority", ca.credentials(t, ca, "127.0.0.1"), other.credentials(t, other, "127.0.0.1"), false, false},
		{"trusts it, and is not signed by it", ca.credentials(t, ca, "127.0.0.1"), ca.credentials(t, other, "127.0.0.1"), false, false},
		{"a certificate for another host", ca.credentials(t, ca, "127.0.0.1"), ca.credentials(t, ca, "node2"), false, false},
		{"a certificate beside a secret", ca.credentials(t, ca, "127.0.0.1"), shared(t, secret), false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := node(t, Options{Credentials: c.a, Handler: echo}), node(t, Options{Credentials: c.b, Handler: echo})
			for _, try := range []struct {
				from, to *Peer
				want     bool
			}{{b, a, c.let}, {a, b, c.accept}} {
				got, err := try.from.Call(bounded(t), try.to.Self(), []byte("x"))
				if ok := err == nil && string(got) == try.from.Self().Addr+" x"; ok != try.want {
					t.Errorf("answered %q, %v; wanted to be let in: %t", got, err, try.want)
				} else if !try.want && !errors.Is(err, ErrNotSent) {
					t.Errorf("refused with %v", err)
				}
				if _, err := try.from.StreamLayer().Dial(try.to.Self().String(), patience); (err == nil) != try.want {
					t.Errorf("dialled for Raft: %v", err)
				}
				if found, err := try.from.Identify(bounded(t), try.to.Self().Addr); (err == nil) != try.want || try.want && found != try.to.Self() {
					t.Errorf("told to be %v, %v", found, err)
				}
			}
		})
	}
}

// Who has no credentials, and asks a node that wants them, is told what may be missing.
func TestWithoutCredentials(t *testing.T) {
	a, b := node(t, Options{Credentials: shared(t, secret), Handler: echo}), node(t, Options{Handler: echo})
	if _, err := b.Identify(bounded(t), a.Self().Addr); err == nil || !strings.Contains(err.Error(), "it may want a secret") {
		t.Error(err)
	}
}

// A secret that can be guessed is refused.
func TestShortSecret(t *testing.T) {
	if _, err := FromSecret(secret[1:]); err == nil {
		t.Error("31 characters are taken")
	}
}

// Only TLS 1.3 is spoken, and only with the protocol of a cluster.
func TestOldTLS(t *testing.T) {
	a := node(t, Options{Credentials: shared(t, secret)})
	own, err := shared(t, secret).secured()
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*tls.Config){
		"TLS 1.2":         func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 },
		"HTTP":            func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} },
		"no protocol":     func(c *tls.Config) { c.NextProtos = nil },
		"no certificate":  func(c *tls.Config) { c.Certificates = nil },
		"as it has to be": func(*tls.Config) {},
	} {
		config := own.Clone()
		config.VerifyConnection = nil
		change(config)
		conn, err := tls.Dial("tcp", a.Self().Addr, config)
		var said welcome
		if err == nil {
			err = writeMessage(conn, hello{Version: version, For: forID})
			if err == nil {
				err = readMessage(conn, &said)
			}
			conn.Close()
		}
		if want := name == "as it has to be"; (err == nil && said.ID == a.Self().ID) != want {
			t.Errorf("%s: %+v, %v", name, said, err)
		}
	}
}

// Without credentials nothing but loopback is listened on, nor dialled.
func TestExposed(t *testing.T) {
	for _, listen := range []string{":0", "0.0.0.0:0", "10.0.0.1:7000", "node1:7000", "[::]:0"} {
		if p, err := Open(Options{Self: Node{NewID(), "127.0.0.1:7000"}, Listen: listen}); !errors.Is(err, errExposed) {
			t.Errorf("%s: %v", listen, err)
			if err == nil {
				p.Close()
			}
		}
	}
	p := node(t, Options{})
	if _, err := p.Call(bounded(t), Node{Addr: "10.0.0.1:7000"}, nil); !errors.Is(err, errExposed) {
		t.Errorf("dialled: %v", err)
	}
	if _, err := p.StreamLayer().Dial(NewID()+"@node2:7000", patience); !errors.Is(err, errExposed) {
		t.Errorf("dialled for Raft: %v", err)
	}
}

// Who answers at an address is taken for the node that was meant only if it is that one: a node
// that lost its data is another. It does not answer for the old one either.
func TestAnotherNodeAtTheAddress(t *testing.T) {
	a, b := node(t, Options{Handler: echo}), node(t, Options{Handler: echo})
	gone := Node{ID: NewID(), Addr: b.Self().Addr}
	var refused *Refused
	if _, err := a.Call(bounded(t), gone, nil); !errors.As(err, &refused) || refused.Node != b.Self() || !errors.Is(err, ErrNotSent) {
		t.Errorf("call: %v", err)
	}
	if _, err := a.StreamLayer().Dial(gone.String(), patience); !errors.As(err, &refused) {
		t.Errorf("dial: %v", err)
	}
	if got, err := a.Call(bounded(t), Node{Addr: b.Self().Addr}, nil); err != nil || string(got) != a.Self().Addr+" " {
		t.Errorf("whoever is there: %q, %v", got, err)
	}

	// One that does not look whom the other meant is found out as well.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err == nil {
			var said hello
			_ = readMessage(conn, &said)
			_ = writeMessage(conn, welcome{ID: NewID(), Addr: "careless:1"})
			_, _ = conn.Read(make([]byte, 1))
			conn.Close()
		}
	}()
	if _, err := a.Call(bounded(t), Node{ID: NewID(), Addr: l.Addr().String()}, nil); !errors.As(err, &refused) {
		t.Errorf("a node that answers for another: %v", err)
	}
}
