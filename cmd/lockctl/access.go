package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
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

// setAccess fills in what the environment says of keys and certificates.
func setAccess(o *client.Options) error {
	o.Key = os.Getenv(keyVariable)
	if file := os.Getenv(keyFileVariable); file != "" {
		if o.Key != "" {
			return usage("%s and %s are both set; which one is meant?", keyVariable, keyFileVariable)
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return usage("%s: %w", keyFileVariable, err)
		}
		if o.Key = strings.TrimSpace(string(content)); o.Key == "" {
			return usage("%s: %s is empty", keyFileVariable, file)
		}
		if strings.ContainsFunc(o.Key, unicode.IsSpace) {
			return usage("%s: %s has more than a key, which gateway keygen prints on stderr; what it prints on stdout is for the gateway", keyFileVariable, file)
		}
	}
	ca, cert, key := os.Getenv(caFileVariable), os.Getenv(certFileVariable), os.Getenv(certKeyVariable)
	if ca == "" && cert == "" && key == "" {
		return nil
	}
	o.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		content, err := os.ReadFile(ca)
		if err == nil {
			o.TLS.RootCAs = x509.NewCertPool()
			if !o.TLS.RootCAs.AppendCertsFromPEM(content) {
				err = fmt.Errorf("%s has no certificate in PEM", ca)
			}
		}
		if err != nil {
			return usage("%s: %w", caFileVariable, err)
		}
	}
	if cert == "" && key == "" {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return usage("%s, %s: %w", certFileVariable, certKeyVariable, err)
	}
	o.TLS.Certificates = []tls.Certificate{pair}
	return nil
}

// accessAdvice says what to set after a failure for a key or a certificate; empty: nothing is known.
func accessAdvice(err error) string {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch file := os.Getenv(caFileVariable); {
	case errors.Is(err, client.CodeUnauthenticated) && os.Getenv(keyVariable) == "" && os.Getenv(keyFileVariable) == "":
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
