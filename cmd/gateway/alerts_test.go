package main

import (
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// shows waits until /metrics has a line.
func shows(t *testing.T, what, addr string, header map[string]string, line string) {
	t.Helper()
	var page []byte
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-time.After(look) {
		if _, page, err = request(http.MethodGet, "http://"+addr+"/metrics", "", header); regexp.MustCompile("(?m)^" + regexp.QuoteMeta(line) + "$").Match(page) {
			return
		}
	}
	t.Fatalf("%s: %s is not there, but, %v,\n%s", what, line, err, strings.Join(regexp.MustCompile(`(?m)^fencepost_(cluster|file|cert|store_findings).*$`).FindAllString(string(page), -1), "\n"))
}

// What FencepostCertificateExpires, FencepostCertificateExpired and FencepostFileNotInForce ask for: a certificate's end, and 0
// of a file that is broken while the gateway runs.
func TestGaugesOfFiles(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	certificate := func(end time.Time) (line string) {
		a.sign("server", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: end})
		return fmt.Sprintf(`fencepost_certificate_expiry_timestamp_seconds{setting="FENCEPOST_CLUSTER_TLS_CERT_FILE"} %s`, prometheusNumber(end))
	}
	soon := certificate(time.Now().Add(2 * time.Hour))
	path := filepath.Join(t.TempDir(), "keys")
	line, key := newKey(t, "-name", "prometheus", "-scope", "read", "-prefix", "none/")
	writeFile(t, path, line)
	node := loner(t)
	if err := node.start(append(clusterCertificate(a, "server"), "FENCEPOST_STORE=raft://"+node.addr, "FENCEPOST_KEYS_FILE="+path)...); err != nil {
		t.Fatal(err)
	}
	const keysInForce, certificateInForce = `fencepost_file_in_force{setting="FENCEPOST_KEYS_FILE"} `, `fencepost_file_in_force{setting="FENCEPOST_CLUSTER_TLS_CERT_FILE"} `
	shows(t, "a certificate that ends soon", node.gateway.addr, key, soon)
	shows(t, "a keys file", node.gateway.addr, key, keysInForce+"1")
	later := certificate(time.Now().Add(90 * 24 * time.Hour))
	shows(t, "the next certificate", node.gateway.addr, key, later)
	writeFile(t, path, "key broken\n")
	shows(t, "a broken keys file", node.gateway.addr, key, keysInForce+"0")
	shows(t, "beside it", node.gateway.addr, key, certificateInForce+"1")
	certificate(time.Now().Add(-time.Minute))
	shows(t, "a certificate that has expired", node.gateway.addr, key, certificateInForce+"0")
	shows(t, "the certificate before it", node.gateway.addr, key, later)
	writeFile(t, path, line)
	shows(t, "a keys file that was mended", node.gateway.addr, key, keysInForce+"1")
}

// prometheusNumber is how the text format of metrics writes a time.
func prometheusNumber(at time.Time) string { return fmt.Sprint(float64(at.Unix())) }

// What FencepostNoLeader and FencepostVoterMissing ask for, at a cluster of three of which one node is stopped, and then a second one.
func TestGaugesOfACluster(t *testing.T) {
	t.Parallel()
	all := certified(t, newAuthority(t))
	last := all[0]
	const leader, members, voters, missing = "fencepost_cluster_has_leader ", "fencepost_cluster_members ", "fencepost_cluster_voters ", `fencepost_store_findings{check="member"} `
	const majority = `fencepost_store_findings{check="majority"} `
	for _, line := range []string{leader + "1", members + "3", voters + "3", missing + "0", majority + "0"} {
		shows(t, "a cluster of three", last.gateway.addr, nil, line)
	}
	all[2].stop()
	for _, line := range []string{leader + "1", members + "3", voters + "3", missing + "1", majority + "1"} {
		shows(t, "one of three is stopped", last.gateway.addr, nil, line)
	}
	all[1].stop()
	for _, line := range []string{leader + "0", missing + "2", majority + "1"} {
		shows(t, "two of three are stopped", last.gateway.addr, nil, line)
	}
	if err := all[1].start(); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{leader + "1", missing + "1"} {
		shows(t, "one is back", last.gateway.addr, nil, line)
	}
}
