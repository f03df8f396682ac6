package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"unicode"

	"fencepost/client"
)

// The variables of who comes in, and how. They are no flags: ps shows those to everybody.
const (
	keyVariable      = "FENCEPOST_KEY"
	keyFileVariable  = "FENCEPOST_KEY_FILE"
	caFileVariable   = "FENCEPOST_CA_FILE"
	certFileVariable = "FENCEPOST_CERT_FILE"
	certKeyVariable  = "FENCEPOST_CERT_KEY_FILE"
)

const accessHelp = `
Environment, for gateways that have keys or TLS; an unknown variable FENCEPOST... is an error:
  FENCEPOST_KEY            the key; or FENCEPOST_KEY_FILE, a file with the key
  FENCEPOST_CA_FILE        file with the authorities of the gateways; by default those of the system
  FENCEPOST_CERT_FILE      a client certificate, with its key in FENCEPOST_CERT_KEY_FILE
TRACEPARENT and TRACESTATE (W3C Trace Context) are sent along with every request.
`

// setAccess fills in what the environment says of keys and certificates. What is in files is read again before each request, so
// that a job outlives their being replaced; what is not right then, as while they are being written, changes nothing.
func setAccess(o *client.Options) error {
	o.Key = os.Getenv(keyVariable)
	if file := os.Getenv(keyFileVariable); file != "" {
		if o.Key != "" {
			return usage("%s and %s are both set; which one is meant?", keyVariable, keyFileVariable)
		}
		latest := newest[string]{make: func() (string, error) { return readKey(file) }}
		if _, err := latest.get(); err != nil {
			return usage("%s: %w", keyFileVariable, err)
		}
		o.KeyFunc = latest.get
	}
	files := [...]string{os.Getenv(caFileVariable), os.Getenv(certFileVariable), os.Getenv(certKeyVariable)}
	if files == [3]string{} {
		return nil
	}
	var read [3]string // what config was made of
	var config *tls.Config
	latest := newest[*tls.Config]{make: func() (*tls.Config, error) {
		var content [3]string
		for i, file := range files {
			if file == "" {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			content[i] = string(text)
		}
		if config != nil && content == read {
			return config, nil
		}
		made, err := tlsOf(files, content)
		if err == nil {
			config, read = made, content
		}
		return made, err
	}}
	if _, err := latest.get(); err != nil {
		return usage("%s, %s, %s: %w", caFileVariable, certFileVariable, certKeyVariable, err)
	}
	o.TLSFunc = latest.get
	return nil
}

// newest has what is made of files, or what was made of them last when they were right.
type newest[T any] struct {
	make func() (T, error)
	mu   sync.Mutex
	last T
	made bool
}

func (n *newest[T]) get() (T, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	made, err := n.make()
	if err == nil {
		n.last, n.made = made, true
	} else if n.made {
		err = nil
	}
	return n.last, err
}

// readKey reads a file with a key.
func readKey(file string) (string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	key := strings.TrimSpace(string(content))
	if key == "" {
		return "", fmt.Errorf("%s is empty", file)
	}
	if strings.ContainsFunc(key, unicode.IsSpace) {
		return "", fmt.Errorf("%s has more than a key, which gateway keygen prints on stderr; what it prints on stdout is for the gateway", file)
	}
	return key, nil
}

// tlsOf makes a configuration of files with authorities, a certificate and its key, and what they contain.
func tlsOf(files, content [3]string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if files[0] != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(content[0])) {
			return nil, fmt.Errorf("%s has no certificate in PEM", files[0])
		}
	}
	if files[1] == "" && files[2] == "" {
		return config, nil
	}
	pair, err := tls.X509KeyPair([]byte(content[1]), []byte(content[2]))
	if err != nil {
		return nil, fmt.Errorf("the certificate %q and its key %q: %w", files[1], files[2], err)
	}
	config.Certificates = []tls.Certificate{pair}
	return config, nil
}

// accessAdvice says what to set after a failure for a key or a certificate; empty: nothing is known.
func accessAdvice(err error) string {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch file := os.Getenv(caFileVariable); {
	case errors.Is(err, client.CodeUnauthenticated) && os.Getenv(keyVariable) == "" && os.Getenv(keyFileVariable) == "":
		if os.Getenv("LEASE") != "" {
			return fmt.Sprintf("set $%s or $%s to a key; lockctl run keeps them from its command unless it has -with-key", keyVariable, keyFileVariable)
		}
		return fmt.Sprintf("set $%s or $%s to a key", keyVariable, keyFileVariable)
	case errors.As(err, &authority) && file != "":
		return fmt.Sprintf("the certificate is not from an authority in %s, which $%s names", file, caFileVariable)
	case errors.As(err, &authority):
		return fmt.Sprintf("set $%s to a file with the authorities of the gateways; by default those of the system count", caFileVariable)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the certificate of the gateway has to be renewed, or the clock of this machine is wrong"
	case errors.As(err, &name):
		var names []string
		for _, ip := range name.Certificate.IPAddresses {
			names = append(names, ip.String())
		}
		names = append(slices.Clone(name.Certificate.DNSNames), names...)
		if len(names) == 0 {
			return "the certificate has no name that counts: it needs an alternative name (subjectAltName)"
		}
		return fmt.Sprintf("the certificate is for %s: use one of these in $FENCEPOST or -gateway", printable(strings.Join(names[:min(len(names), mostNames)], ", ")))
	}
	return ""
}

// mostNames is how many names of a certificate are told.
const mostNames = 10
