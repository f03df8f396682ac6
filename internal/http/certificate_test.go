package http

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"net/url"
	"testing"
)

// TestCertificateName: beside an alternative name of any kind the common name does not count,
// also of a kind that crypto/x509 does not read.
func TestCertificateName(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	encoded := func(value any, params string) []byte {
		b, err := asn1.MarshalWithParams(value, params)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	alternative := func(general []byte) x509.Certificate {
		names := encoded([]asn1.RawValue{{FullBytes: general}}, "")
		return x509.Certificate{ExtraExtensions: []pkix.Extension{{Id: alternativeNames, Value: names}}}
	}
	type otherName struct {
		Type  asn1.ObjectIdentifier
		Value asn1.RawValue
	}
	ofUser := otherName{asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 311, 20, 2, 3}, asn1.RawValue{
		Class: asn1.ClassContextSpecific, Tag: 0, IsCompound: true, Bytes: encoded("somebody@example.com", "utf8"),
	}}
	directory := asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 4, IsCompound: true, Bytes: encoded(pkix.Name{CommonName: "somebody"}.ToRDNSequence(), "")}
	for what, c := range map[string]struct {
		template x509.Certificate
		want     string
	}{
		"nothing else":     {x509.Certificate{}, "db.example"},
		"a DNS name":       {x509.Certificate{DNSNames: []string{"ci.example"}}, "ci.example"},
		"a mail address":   {x509.Certificate{EmailAddresses: []string{"somebody@example.com"}}, ""},
		"a URI":            {x509.Certificate{URIs: []*url.URL{{Scheme: "spiffe", Host: "example.com"}}}, ""},
		"an otherName":     {alternative(encoded(ofUser, "tag:0")), ""},
		"a directory name": {alternative(encoded(directory, "")), ""},
	} {
		c.template.SerialNumber, c.template.Subject = big.NewInt(1), pkix.Name{CommonName: "db.example"}
		der, err := x509.CreateCertificate(rand.Reader, &c.template, &c.template, &key.PublicKey, key)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		leaf, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if name := certificateName(leaf); name != c.want {
			t.Errorf("beside %s the name is %q, want %q", what, name, c.want)
		}
	}
}
