package client

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
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
	key := must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of " + t.Name()}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	raw := must[[]byte](t)(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))
	return authority{must[*x509.Certificate](t)(x509.ParseCertificate(raw)), key}
}

// certificate signs one, for 127.0.0.1 unless for another name, which is valid from now on for so long, or was until then.
func (a authority) certificate(t *testing.T, name string, from, until time.Duration) *tls.Certificate {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(from), NotAfter: time.Now().Add(until)}
	if template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}; name != "" {
		template.IPAddresses, template.DNSNames = nil, []string{name}
	}
	raw := must[[]byte](t)(x509.CreateCertificate(rand.Reader, template, a.cert, a.key.Public(), a.key))
	return &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: a.key}
}

// encrypted is a gateway behind TLS, whose certificate can be replaced.
type encrypted struct {
	*httptest.Server
	shows      atomic.Pointer[tls.Certificate]
	handshakes atomic.Int32
}

func encrypt(t *testing.T, shows *tls.Certificate, gateway string) *encrypted {
	t.Helper()
	e := &encrypted{Server: httptest.NewUnstartedServer(httputil.NewSingleHostReverseProxy(must[*url.URL](t)(url.Parse(gateway))))}
	e.shows.Store(shows)
	e.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		e.handshakes.Add(1)
		return &tls.Config{Certificates: []tls.Certificate{*e.shows.Load()}}, nil
	}}
	e.Config.ErrorLog = log.New(io.Discard, "", 0)
	transport := &http.Transport{}
	e.Config.Handler.(*httputil.ReverseProxy).Transport = transport
	e.StartTLS()
	t.Cleanup(func() {
		e.Close()
		transport.CloseIdleConnections()
	})
	return e
}

// trusting returns a client of gateways that trusts an authority.
func trusting(t *testing.T, a authority, gateways ...*encrypted) *Client {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	var addresses []string
	for _, e := range gateways {
		addresses = append(addresses, e.URL)
	}
	c := must[*Client](t)(New(Options{Addresses: addresses, Patience: 10 * patience, TLS: &tls.Config{RootCAs: pool}}))
	t.Cleanup(func() { c.Close() })
	return c
}

// TestUntrusted: what a gateway's certificate lacks does not come while a client asks again. So it asks each gateway once,
// and gives up.
func TestUntrusted(t *testing.T) {
	t.Parallel()
	a, stranger := newAuthority(t), newAuthority(t)
	for what, bad := range map[string]*tls.Certificate{
		"unknown authority": stranger.certificate(t, "", -time.Hour, time.Hour),
		"another name":      a.certificate(t, "other.example", -time.Hour, time.Hour),
		"expired":           a.certificate(t, "", -2*time.Hour, -time.Hour),
		"not valid yet":     a.certificate(t, "", time.Hour, 2*time.Hour),
	} {
		one, two := encrypt(t, bad, "http://127.0.0.1:1"), encrypt(t, bad, "http://127.0.0.1:1")
		for call, do := range map[string]func(*Client) error{
			"Acquire":    func(c *Client) error { _, err := c.Acquire(t.Context(), "a"); return err },
			"attached":   func(c *Client) error { _, err := c.Acquire(t.Context(), "a", Attached()); return err },
			"Wait":       func(c *Client) error { _, err := c.Acquire(t.Context(), "a", Wait(time.Hour)); return err },
			"TryAcquire": func(c *Client) error { _, err := c.TryAcquire(t.Context(), "a"); return err },
			"Inspect":    func(c *Client) error { _, err := c.Inspect(t.Context(), "a"); return err },
			"Renew":      func(c *Client) error { _, err := c.Renew(t.Context(), NewLeaseID(), 0, "a"); return err },
			"Release":    func(c *Client) error { return c.Release(t.Context(), NewLeaseID(), "a") },
			"Events": func(c *Client) (last error) {
				for _, err := range c.Events(t.Context(), "") {
					last = err
				}
				return last
			},
		} {
			before := one.handshakes.Load() + two.handshakes.Load()
			err := do(trusting(t, a, one, two))
			var why *tls.CertificateVerificationError
			if !errors.Is(err, ErrUnreachable) || !errors.As(err, &why) {
				t.Errorf("%s, %s: %v", what, call, err)
			}
			if n := one.handshakes.Load() + two.handshakes.Load() - before; n != 2 {
				t.Errorf("%s, %s: two gateways were asked %d times", what, call, n)
			}
		}
	}
}

// TestUntrustedBesideAnother: a gateway whose certificate is not trusted keeps nobody from another one.
func TestUntrustedBesideAnother(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	a := newAuthority(t)
	bad := encrypt(t, a.certificate(t, "other.example", -time.Hour, time.Hour), s.Gateways[0].URL())
	good := encrypt(t, a.certificate(t, "", -time.Hour, time.Hour), s.Gateways[0].URL())
	l := must[*Lease](t)(trusting(t, a, bad, good).Acquire(t.Context(), "a"))
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestUntrustedForAWhile: who was answered before goes on, for certificates are being replaced. A lease that is held is
// renewed when a trusted one is there again, and an acquire waits for that.
func TestUntrustedForAWhile(t *testing.T) {
	t.Parallel()
	s, plain := start(t)
	a := newAuthority(t)
	good, bad := a.certificate(t, "", -time.Hour, time.Hour), newAuthority(t).certificate(t, "", -time.Hour, time.Hour)
	ofLease, ofAcquire := encrypt(t, good, s.Gateways[0].URL()), encrypt(t, good, s.Gateways[0].URL())
	both := []*encrypted{ofLease, ofAcquire}
	c := trusting(t, a, ofAcquire)
	must[Lock](t)(c.Inspect(t.Context(), "b"))
	l := must[*Lease](t)(trusting(t, a, ofLease).Acquire(t.Context(), "a", TTL(time.Minute)))
	for _, e := range both {
		e.shows.Store(bad)
		e.CloseClientConnections()
		e.handshakes.Store(0)
	}
	l.hurry() // to be renewed now
	acquired := make(chan error, 1)
	go func() {
		_, err := c.Acquire(t.Context(), "b")
		acquired <- err
	}()
	for _, e := range both {
		until(t, "it is asked again", func() bool { return e.handshakes.Load() >= 3 })
	}
	if err := l.Err(); err != nil {
		t.Fatal(err)
	}
	seen := must[Lock](t)(plain.Inspect(t.Context(), "a")).Holders[0].ExpiresAt
	for _, e := range both {
		e.shows.Store(good)
	}
	if err := <-acquired; err != nil {
		t.Errorf("an acquire meanwhile: %v", err)
	}
	until(t, "the lease is renewed", func() bool {
		return must[Lock](t)(plain.Inspect(t.Context(), "a")).Holders[0].ExpiresAt.After(seen)
	})
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// Of a gateway that serves TLS, and is asked without, the client says so.
func TestAskedWithoutTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	c := must[*Client](t)(New(Options{Addresses: []string{"http://" + server.Listener.Addr().String()}}))
	defer c.Close()
	if _, err := c.Inspect(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "it serves TLS: its address begins with https") {
		t.Error(err)
	}
}
