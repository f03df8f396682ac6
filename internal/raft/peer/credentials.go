package peer

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

// MinSecret is how many characters a shared secret has at least. Whoever can connect is shown
// the public key that is derived from it, and can test guesses on a machine of their own: it
// has to be made by chance (32 hexadecimal digits are 128 bits), not thought up.
const MinSecret = 32

const (
	protocol   = "fencepost-cluster/1"           // in TLS, so that no other service is taken for a node
	derivation = "fencepost cluster identity v1" // of the key, from the secret
)

// Credentials are what the nodes of a cluster know each other by. They make the settings of
// each connection, so that what is read again counts for the next one.
type Credentials struct {
	config func() (*tls.Config, error)

	// named reports whether certificates have names: then each is held against the address
	// that its node says it has.
	named bool
}

// FromSecret returns the credentials of nodes that share a secret: an identity that only who
// has it can make, which both sides of each connection prove to have. An error: it is shorter
// than MinSecret.
func FromSecret(secret string) (*Credentials, error) {
	if len(secret) < MinSecret {
		return nil, fmt.Errorf("the secret has %d characters; it must have at least %d, chosen at random, as by openssl rand -hex 32: "+
			"anyone who can connect to a node could guess a shorter one unnoticed", len(secret), MinSecret)
	}
	seed, err := hkdf.Key(sha256.New, []byte(secret), nil, derivation, ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	key := ed25519.NewKeyFromSeed(seed)
	public := key.Public().(ed25519.PublicKey)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "fencepost cluster"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC), // only the key counts
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, key)
	if err != nil {
		return nil, err
	}
	own := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	verify := func(state tls.ConnectionState) error {
		shown, ok := state.PeerCertificates[0].PublicKey.(ed25519.PublicKey)
		if !ok || subtle.ConstantTimeCompare(shown, public) != 1 {
			return errors.New("the other side has another secret")
		}
		return nil
	}
	return &Credentials{config: func() (*tls.Config, error) {
		return &tls.Config{
			Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAnyClientCert,
			InsecureSkipVerify: true, VerifyConnection: verify, // which replaces the check of names and authorities
		}, nil
	}}, nil
}

// FromCertificates returns the credentials of nodes that have a certificate each, of
// authorities that they share. Both are asked for at each connection. A certificate must have
// the host of its node's address as a subjectAltName, and be good for servers and clients. The
// authorities are to sign for this cluster only: whom they sign comes in.
func FromCertificates(certificate func() *tls.Certificate, authorities func() *x509.CertPool) *Credentials {
	return &Credentials{named: true, config: func() (*tls.Config, error) {
		own, pool := certificate(), authorities()
		if own == nil || pool == nil {
			return nil, errors.New("the certificate of this node, or of its authority, was not read")
		}
		return &tls.Config{
			Certificates: []tls.Certificate{*own}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, RootCAs: pool,
		}, nil
	}}
}

// secured returns the settings of one connection. No session is resumed: what has been
// withdrawn would go on to count.
func (c *Credentials) secured() (*tls.Config, error) {
	config, err := c.config()
	if err != nil {
		return nil, err
	}
	config.MinVersion, config.NextProtos = tls.VersionTLS13, []string{protocol}
	config.SessionTicketsDisabled = true
	return config, nil
}

// client wraps a connection that this node has made to an address.
func (c *Credentials) client(conn net.Conn, addr string) (net.Conn, error) {
	if c == nil {
		return conn, nil
	}
	config, err := c.secured()
	if err != nil {
		return nil, err
	}
	config.ServerName, _, _ = net.SplitHostPort(addr)
	return c.shake(tls.Client(conn, config))
}

// server wraps a connection that came.
func (c *Credentials) server(conn net.Conn) (net.Conn, error) {
	if c == nil {
		return conn, nil
	}
	config, err := c.secured()
	if err != nil {
		return nil, err
	}
	return c.shake(tls.Server(conn, config))
}

// shake ends the handshake; the connection has its deadline.
func (c *Credentials) shake(conn *tls.Conn) (net.Conn, error) {
	if err := conn.Handshake(); err != nil {
		return nil, fmt.Errorf("TLS: %w", err)
	}
	if conn.ConnectionState().NegotiatedProtocol != protocol {
		return nil, errors.New("the other side is not a node of a cluster")
	}
	return conn, nil
}

// checkName holds the certificate of a connection that came against the address that its
// node says it has.
func (c *Credentials) checkName(conn net.Conn, addr string) error {
	if c == nil || !c.named {
		return nil
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].VerifyHostname(host)
}
