// Package proxytest starts the proxies that tests put before a gateway: real processes that
// end with the test, each in a directory of its own.
package proxytest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// readyTimeout bounds how long a proxy takes to listen.
const readyTimeout = 30 * time.Second

// Nginx starts nginx at an address before a gateway. It has nothing but a proxy_pass and the
// directives, which may be none, in its one location; all else is nginx's default.
func Nginx(t testing.TB, address, gateway, directives string) {
	t.Helper()
	dir := t.TempDir()
	NginxWith(t, address, dir, fmt.Sprintf(`events {}
http {
%sserver { listen %s; location / { proxy_pass http://%s; %s } }
}
`, Within(dir), address, gateway, directives))
}

// Within returns settings of nginx that keep it within a directory, for its http block.
func Within(dir string) (settings string) {
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		settings += fmt.Sprintf("%s_temp_path %s/%s;\n", kind, dir, kind)
	}
	return settings + "access_log off;\n"
}

// NginxWith starts nginx with a configuration, in a directory where nothing else is, and waits
// until it listens at an address.
func NginxWith(t testing.TB, address, dir, config string) {
	t.Helper()
	config = "daemon off; worker_processes 1; pid " + dir + "/pid; error_log " + dir + "/errors;\n" + config
	if os.Getuid() == 0 {
		config = "user root;\n" + config
	}
	path := write(t, dir, "nginx.conf", config)
	start(t, address, dir+"/errors", find(t, "nginx", "nginx-light"), "-p", dir, "-e", dir+"/errors", "-c", path)
}

// HAProxy starts HAProxy with a configuration, which has it listen at an address.
func HAProxy(t testing.TB, address, config string) {
	t.Helper()
	dir := t.TempDir()
	path := write(t, dir, "haproxy.cfg", config)
	start(t, address, dir+"/errors", find(t, "haproxy", "haproxy"), "-db", "-f", path)
}

// find returns the path of a program that a Debian package has, which may be where only root's
// PATH leads.
func find(t testing.TB, program, debian string) string {
	t.Helper()
	if path, err := exec.LookPath(program); err == nil {
		return path
	}
	path := "/usr/sbin/" + program
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s is not installed: apt-get install %s", program, debian)
	}
	return path
}

func write(t testing.TB, dir, name, content string) (path string) {
	t.Helper()
	path = filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// start starts a proxy whose faults come to a file, and waits until it listens.
func start(t testing.TB, address, errors, program string, args ...string) {
	t.Helper()
	log, err := os.OpenFile(errors, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	proxy := exec.Command(program, args...)
	proxy.Stdout, proxy.Stderr = log, log
	proxy.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} // HAProxy's master and nginx take their workers along
	if err := proxy.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() { _ = proxy.Wait(); close(exited) }()
	t.Cleanup(func() {
		_ = proxy.Process.Signal(syscall.SIGTERM)
		<-exited
		log.Close()
		if said, err := os.ReadFile(errors); t.Failed() && err == nil && len(said) > 0 {
			t.Logf("%s: %s", program, said)
		}
	})
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for deadline := time.After(readyTimeout); ; {
		if conn, err := net.Dial("tcp", address); err == nil {
			conn.Close()
			return
		}
		select {
		case <-look.C:
		case <-exited:
			t.Fatalf("%s has ended before it listened", program)
		case <-deadline:
			t.Fatalf("%s does not listen at %s", program, address)
		}
	}
}
