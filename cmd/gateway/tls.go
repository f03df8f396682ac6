package main

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"fencepost/internal/auth"
	"fencepost/internal/raft/peer"
	"fencepost/internal/redis"
)

// security is what the files of the settings say of who comes in, and how.
type security struct {
	keys   *auth.Keys         // nil: everybody may do everything
	server *tls.Config        // nil: no TLS
	redis  func() *tls.Config // for a Redis with TLS; nil: what the system has
	nodes  *peer.Credentials  // of a cluster; nil: none, or there is no cluster
	audit  *slog.Logger
}

// watchSecurity reads the files, which are watched from then on.
func watchSecurity(cfg config, watched *files, log *slog.Logger) (s security, err error) {
	s.audit = watched.audit
	var keysErr, serverErr, redisErr, nodesErr error
	s.keys, keysErr = watchKeys(cfg, watched, log)
	s.server, serverErr = watchTLS(cfg, watched, log)
	s.redis, redisErr = watchRedisTLS(cfg, watched, log)
	s.nodes, nodesErr = watchClusterTLS(cfg, watched, log)
	if err := errors.Join(keysErr, serverErr, redisErr, nodesErr); err != nil {
		return s, usageError{err}
	}
	return s, nil
}

// serve serves what comes to a listener, over TLS if there is any.
func (s security) serve(server *http.Server, listener net.Listener) error {
	if s.server == nil {
		return server.Serve(listener)
	}
	server.TLSConfig = s.server.Clone()
	return server.ServeTLS(listener, "", "")
}

// warn says what is dangerous about an address that is served so.
func (s security) warn(cfg config, log *slog.Logger) {
	loopback, _ := isLoopback(cfg.ListenAddr)
	switch {
	case s.keys != nil && s.server == nil && !loopback:
		log.Warn("keys and leases cross the network unencrypted, unless a proxy in front of this address speaks TLS: set FENCEPOST_TLS_CERT_FILE")
	case cfg.InsecureNoAuth:
		log.Warn("there is no authentication: anyone who can reach this address can acquire and break every lock")
	}
}

// watchTLS returns what the gateway serves TLS with, nil if it does not. The certificate,
// and the authorities of clients, are read again when they change; connections that are
// open stay as they are.
func watchTLS(cfg config, watched *files, log *slog.Logger) (*tls.Config, error) {
	if cfg.TLSCertFile == "" {
		return nil, nil
	}
	var certificate atomic.Pointer[tls.Certificate]
	var clients atomic.Pointer[x509.CertPool]
	if err := watched.add(pairFile("FENCEPOST_TLS_CERT_FILE", cfg.TLSCertFile, cfg.TLSKeyFile, &certificate, watched, log)); err != nil {
		return nil, err
	}
	if cfg.TLSClientCAFile != "" {
		if err := watched.add(authoritiesFile("FENCEPOST_TLS_CLIENT_CA_FILE", cfg.TLSClientCAFile, &clients, watched.audit)); err != nil {
			return nil, err
		}
	}
	current := func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c := &tls.Config{
			MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, Certificates: []tls.Certificate{*certificate.Load()},
		}
		if pool := clients.Load(); pool != nil {
			c.ClientAuth, c.ClientCAs = tls.VerifyClientCertIfGiven, pool
			c.SessionTicketsDisabled = true // a ticket would outlive the authority that has signed the client's certificate
		}
		return c, nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: current}, nil
}

// watchRedisTLS returns what connections to Redis are encrypted with, nil for what the
// system has. It is asked for each connection.
func watchRedisTLS(cfg config, watched *files, log *slog.Logger) (func() *tls.Config, error) {
	if cfg.RedisTLSCertFile == "" && cfg.RedisTLSCaFile == "" {
		return nil, nil
	}
	var certificate atomic.Pointer[tls.Certificate]
	var servers atomic.Pointer[x509.CertPool]
	if cfg.RedisTLSCertFile != "" {
		if err := watched.add(pairFile("FENCEPOST_REDIS_TLS_CERT_FILE", cfg.RedisTLSCertFile, cfg.RedisTLSKeyFile, &certificate, watched, log)); err != nil {
			return nil, err
		}
	}
	if cfg.RedisTLSCaFile != "" {
		if err := watched.add(authoritiesFile("FENCEPOST_REDIS_TLS_CA_FILE", cfg.RedisTLSCaFile, &servers, watched.audit)); err != nil {
			return nil, err
		}
	}
	return func() *tls.Config {
		c := &tls.Config{RootCAs: servers.Load()}
		if own := certificate.Load(); own != nil {
			c.Certificates = []tls.Certificate{*own}
		}
		return c
	}, nil
}

// pairFile reads a certificate with its key.
func pairFile(setting, certFile, keyFile string, into *atomic.Pointer[tls.Certificate], watched *files, log *slog.Logger) file {
	return file{setting: setting, paths: []string{certFile, keyFile}, private: 1, apply: func(contents [][]byte) error {
		pair, err := tls.X509KeyPair(contents[0], contents[1])
		if err == nil {
			_, err = certificates(contents[0])
		}
		if err != nil {
			return fmt.Errorf("%s with %s: %w", certFile, keyFile, err)
		}
		if err := inTime(pair.Leaf); err != nil {
			if now := into.Load(); now != nil && inTime(now.Leaf) == nil {
				return fmt.Errorf("%s %w", certFile, err)
			}
			log.Warn("a certificate is not valid now", "setting", setting, "error", err)
		}
		watched.state.Expires(setting, pair.Leaf.NotAfter)
		if into.Swap(&pair) != nil {
			log.Info("a certificate is in force", "setting", setting, "expires", pair.Leaf.NotAfter)
		}
		return nil
	}}
}

// inTime says why a certificate is of no use at this time.
func inTime(cert *x509.Certificate) error {
	switch now := time.Now(); {
	case now.After(cert.NotAfter):
		return fmt.Errorf("has expired at %s", cert.NotAfter.Format(time.RFC3339))
	case now.Before(cert.NotBefore):
		return fmt.Errorf("is not valid before %s", cert.NotBefore.Format(time.RFC3339))
	}
	return nil
}

// authoritiesFile reads the certificates of authorities. Who comes in by them is for the
// audit: it has a line for each that comes or goes.
func authoritiesFile(setting, path string, into *atomic.Pointer[x509.CertPool], audit *slog.Logger) file {
	var before map[string]*x509.Certificate // by fingerprint; nil at start
	return file{setting: setting, paths: []string{path}, public: true, apply: func(contents [][]byte) error {
		certs, err := certificates(contents[0])
		if err == nil && len(certs) == 0 {
			err = errors.New("there is no certificate in PEM")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		pool, after := x509.NewCertPool(), map[string]*x509.Certificate{}
		for _, cert := range certs {
			pool.AddCert(cert)
			after[fmt.Sprintf("%x", sha256.Sum256(cert.Raw))] = cert
		}
		into.Store(pool)
		if before != nil {
			auditAuthorities(audit, setting, "removed", before, after)
			auditAuthorities(audit, setting, "added", after, before)
		}
		before = after
		return nil
	}}
}

// auditAuthorities writes the lines of authorities that are in one file and not in the other.
func auditAuthorities(audit *slog.Logger, setting, kind string, in, notIn map[string]*x509.Certificate) {
	for fingerprint, cert := range in {
		if notIn[fingerprint] == nil {
			audit.Info("audit", slog.Group("audit", slog.String("event", "authority "+kind), slog.String("setting", setting),
				slog.String("authority", cert.Subject.String()), slog.String("sha256", fingerprint)))
		}
	}
}

// certificates returns those of a file in PEM. A block that is damaged or cut, and what
// follows the last one, is an error: readers of PEM pass it over, and the rest of half a file
// would count for the whole.
func certificates(content []byte) (certs []*x509.Certificate, err error) {
	begun := bytes.Count(append([]byte("\n"), content...), []byte("\n-----BEGIN "))
	for {
		block, rest := pem.Decode(content)
		if block == nil {
			break
		}
		begun, content = begun-1, rest
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(certs)+1, err)
		}
		certs = append(certs, cert)
	}
	if begun != 0 || len(bytes.TrimSpace(content)) > 0 {
		return nil, errors.New("part of it is not PEM: the file may be damaged or half written")
	}
	return certs, nil
}

// validateTLS judges which files are set.
func (cfg *config) validateTLS() (faults []error) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	for _, pair := range []struct{ name, cert, key string }{
		{"TLS", cfg.TLSCertFile, cfg.TLSKeyFile}, {"REDIS_TLS", cfg.RedisTLSCertFile, cfg.RedisTLSKeyFile},
	} {
		if (pair.cert == "") != (pair.key == "") {
			fault("FENCEPOST_%s_CERT_FILE, FENCEPOST_%s_KEY_FILE: one is set and the other is not", pair.name, pair.name)
		}
	}
	switch {
	case cfg.TLSClientCAFile == "":
	case cfg.TLSCertFile == "":
		fault("FENCEPOST_TLS_CLIENT_CA_FILE: is set, and FENCEPOST_TLS_CERT_FILE is not")
	case cfg.KeysFile == "":
		fault("FENCEPOST_TLS_CLIENT_CA_FILE: is set, and FENCEPOST_KEYS_FILE is not, which says what each certificate may do")
	}
	if (cfg.RedisTLSCertFile != "" || cfg.RedisTLSCaFile != "") && !redis.Encrypted(cfg.Store) {
		fault("FENCEPOST_REDIS_TLS_CERT_FILE, FENCEPOST_REDIS_TLS_CA_FILE: are for rediss, and FENCEPOST_STORE is something else")
	}
	return faults
}
