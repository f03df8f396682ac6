package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/raft/cluster"
	"fencepost/internal/redis/redistest"
)

// ready is what /readyz?verbose has of a gateway that serves.
const ready = `"status":"ready"`

// member is a gateway that is a node of a cluster, and can be stopped and started with other settings.
type member struct {
	t       *testing.T
	addr    string
	dir     string
	env     []string
	gateway *gatewayProcess // nil: it does not run
}

func (m *member) start(env ...string) error {
	g, err := launch(m.dir, append(slices.Clone(m.env), env...))
	if err == nil {
		m.gateway = g
	}
	return err
}

func (m *member) stop() {
	if m.gateway != nil {
		m.gateway.end(syscall.SIGKILL)
		m.gateway = nil
	}
}

// says waits until /readyz?verbose has a text.
func (m *member) says(text string) {
	m.t.Helper()
	var last string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-time.After(look) {
		_, answer, err := request("GET", "http://"+m.gateway.addr+"/readyz?verbose", "", nil)
		if last = fmt.Sprint(string(answer), err); strings.Contains(last, text) {
			return
		}
	}
	m.t.Fatalf("it never says %q, but\n%s\nand has logged\n%s", text, last, m.gateway.warnings())
}

// certified starts a cluster of three whose nodes know each other by certificates.
func certified(t *testing.T, ca *authority) (all []*member) {
	t.Helper()
	var list []string
	for range 3 {
		list = append(list, redistest.FreeAddr(t))
	}
	for i, addr := range list {
		name := fmt.Sprintf("node%d", i)
		ca.server(name)
		m := &member{t: t, addr: addr, dir: t.TempDir(), env: append([]string{
			"PATH=" + os.Getenv("PATH"), "FENCEPOST_LISTEN_ADDR=127.0.0.1:0", "FENCEPOST_STORE=raft://" + strings.Join(list, ","), "FENCEPOST_CLUSTER_ADDR=" + addr,
		}, clusterCertificate(ca, name)...)}
		t.Cleanup(m.stop)
		if err := m.start(); err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	for _, m := range all {
		m.says(ready)
	}
	return all
}

// clusterCertificate are the settings of a node with a certificate.
func clusterCertificate(ca *authority, name string) []string {
	return []string{
		"FENCEPOST_CLUSTER_TLS_CERT_FILE=" + ca.file(name+".crt"), "FENCEPOST_CLUSTER_TLS_KEY_FILE=" + ca.file(name+".key"),
		"FENCEPOST_CLUSTER_TLS_CA_FILE=" + ca.file("authority.crt"),
	}
}

// A cluster whose nodes have certificates serves. One that comes with a wrong one has no part in it, both sides say
// why, and it has again when the file has a right one: it is not started for that.
func TestClusterCertificates(t *testing.T) {
	t.Parallel()
	clusterCertificates(t, false)
}

// There are several kinds of wrong ones.
func TestSystemClusterCertificates(t *testing.T) {
	t.Parallel()
	clusterCertificates(t, true)
}

func clusterCertificates(t *testing.T, allKinds bool) {
	ca, other := newAuthority(t), newAuthority(t)
	all := certified(t, ca)
	odd, here := all[2], []net.IP{net.IPv4(127, 0, 0, 1)}
	odd.stop()
	ca.sign("node2", &x509.Certificate{IPAddresses: here, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)})
	if err := odd.start(); err != nil {
		t.Fatal(err)
	}
	odd.says("remote error: tls: expired certificate")
	if allKinds {
		ca.sign("node2", &x509.Certificate{DNSNames: []string{"node9"}})
		odd.says("the certificate is not for the address of its node")
		other.dir = ca.dir
		other.sign("node2", &x509.Certificate{IPAddresses: here})
		odd.says("remote error: tls: unknown certificate authority")
	}
	if status, _, err := request("POST", "http://"+odd.gateway.addr+"/locks/a", `{"ttl_ms":1000}`, nil); err != nil || status != 503 {
		t.Errorf("it answers %d, %v", status, err)
	}
	if logged := all[0].gateway.warnings(); !strings.Contains(logged, "certificate has expired") { // later ones within 10 s are not logged
		t.Errorf("another one has logged\n%s", logged)
	}
	ca.server("node2")
	odd.says(ready)
}

// A node does not start with the data of another member, nor with that of a cluster of one that had its address.
func TestDataOfAnotherNode(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	all := certified(t, ca)
	odd := all[2]
	odd.stop()
	alone := &member{t: t, dir: t.TempDir(), env: odd.env}
	t.Cleanup(alone.stop)
	if err := alone.start("FENCEPOST_STORE=raft://" + odd.addr); err != nil {
		t.Fatal(err)
	}
	alone.says(ready)
	alone.stop()
	all[1].stop()
	for _, c := range []struct{ what, dir, says string }{
		{"the data of a cluster of one", alone.dir, "is in a cluster that does not have this node"},
		{"the data of another member", all[1].dir, "is that of the member"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		cmd := exec.CommandContext(ctx, "gateway")
		cmd.Dir, cmd.Env = c.dir, append(slices.Clone(odd.env), exitAtOnce)
		out, err := cmd.CombinedOutput()
		cancel()
		if err == nil || !strings.Contains(string(out), c.says) || strings.Contains(string(out), "leads the cluster") {
			t.Errorf("with %s it ends with %v:\n%s", c.what, err, out)
		}
	}
	doctor := exec.CommandContext(t.Context(), "gateway", "doctor")
	doctor.Dir, doctor.Env = all[1].dir, odd.env
	if out, err := doctor.Output(); err == nil || !strings.Contains(string(out), "has the data of the member "+all[1].addr) {
		t.Errorf("doctor with the data of another member: %v\n%s", err, out)
	}
	for _, m := range all[1:] {
		if err := m.start(); err != nil {
			t.Fatal(err)
		}
		m.says(ready)
	}
}

// A slow disk is a finding, and another member is to lead only where there is one and this one leads.
func TestDiskFinding(t *testing.T) {
	t.Parallel()
	const transfer = "gateway cluster transfer"
	leads := cluster.Member{Seat: cluster.Seat{Addr: "a", Voter: true}, Reached: true, Follows: true, State: "leader", DiskTime: 700}
	follows := leads
	follows.Addr, follows.State = "b", "follower"
	for _, members := range [][]cluster.Member{{leads}, {leads, follows}} {
		of := 0
		for _, f := range clusterFindings(cluster.Status{Node: "a", Leader: "a", Members: members, MayFail: 0}) {
			if f.Check != "disk" {
				continue
			}
			of++
			if f.OK || !strings.Contains(f.Detail, "takes 700 ms") || !strings.Contains(f.Remedy, "replace") {
				t.Errorf("of %d: %+v", len(members), f)
			}
			if want := f.Node == "a" && len(members) > 1; strings.Contains(f.Remedy, transfer) != want {
				t.Errorf("of %d: of %s %s is advised, want %t: %s", len(members), f.Node, transfer, want, f.Remedy)
			}
		}
		if of != len(members) {
			t.Errorf("of %d members %d disks are told of", len(members), of)
		}
	}
}
