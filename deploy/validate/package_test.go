package validate

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestPackage builds the packages, unpacks the one for Debian, and runs the gateway in it as its
// unit says, but for the directory of its state.
func TestPackage(t *testing.T) {
	const version = "0.0.0-test"
	command := exec.Command("make", "-C", "../..", "package", "PACKAGE_VERSION="+version)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("make package: %v\n%s", err, out)
	}
	found, err := filepath.Glob("../../bin/fencepost_0.0.0~test_*.deb")
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	defer os.Remove(found[0])
	rpms, _ := filepath.Glob("../../bin/fencepost-0.0.0~test*.rpm")
	if len(rpms) != 1 {
		t.Errorf("packages for rpm: %q", rpms)
	}
	for _, rpm := range rpms {
		defer os.Remove(rpm)
	}
	list, err := exec.Command("dpkg-deb", "--contents", found[0]).Output()
	must(t, err)
	for _, want := range []string{
		`-rwxr-xr-x root/root .* \./usr/bin/fencepost-gateway`, `-rwxr-xr-x root/root .* \./usr/bin/lockctl`,
		`drwx------ root/root .* \./etc/fencepost/secrets/`, `-rw-r--r-- root/root .* \./etc/fencepost/fencepost\.env`, `-rw-r--r-- root/root .* \./etc/fencepost/keys`,
		`\./usr/lib/systemd/system/fencepost\.service`, `\./usr/lib/sysusers\.d/fencepost\.conf`, `\./usr/share/doc/fencepost/copyright`,
	} {
		if !regexp.MustCompile(want).Match(list) {
			t.Errorf("the package has no %s:\n%s", want, list)
		}
	}
	conffiles, err := exec.Command("dpkg-deb", "--info", found[0], "conffiles").Output()
	if err != nil || strings.TrimSpace(string(conffiles)) != "/etc/fencepost/fencepost.env\n/etc/fencepost/keys" {
		t.Errorf("configuration that an upgrade keeps: %q %v", conffiles, err)
	}
	root := t.TempDir()
	if out, err := exec.Command("dpkg-deb", "--extract", found[0], root).CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	billOfMaterials(t, filepath.Join(root, "usr/share/doc/fencepost/fencepost.cdx.json"))
	if out, err := exec.Command("systemd-sysusers", "--dry-run", filepath.Join(root, "usr/lib/sysusers.d/fencepost.conf")).CombinedOutput(); err != nil {
		t.Errorf("systemd-sysusers: %v\n%s", err, out)
	}

	unit := string(read(t, filepath.Join(root, "usr/lib/systemd/system/fencepost.service")))
	value := func(key string) string {
		match := regexp.MustCompile(`(?m)^` + key + `=(.*)$`).FindStringSubmatch(unit)
		if match == nil {
			t.Fatalf("the unit has no %s", key)
		}
		return match[1]
	}
	settings := strings.Fields(value("Environment"))
	for line := range strings.Lines(string(read(t, filepath.Join(root, value("EnvironmentFile"))))) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			settings = append(settings, strings.Replace(line, "=/etc/", "="+root+"/etc/", 1))
		}
	}
	if !slices.Contains(settings, "FENCEPOST_DATA_DIR=/var/lib/"+value("StateDirectory")) {
		t.Errorf("the state directory is not the gateway's: %q", settings)
	}
	installed := func(args ...string) *exec.Cmd {
		command := exec.Command(filepath.Join(root, value("ExecStart")), args...)
		command.Env = slices.Clone(settings)
		return command
	}
	// Before there is a key it does not start, and says how to make one. The unit does not try again.
	out, err := installed().CombinedOutput()
	if exit := new(exec.ExitError); !errors.As(err, &exit) || fmt.Sprint(exit.ExitCode()) != value("RestartPreventExitStatus") || !strings.Contains(string(out), "keygen") {
		t.Errorf("without a key: %v\n%s", err, out)
	}
	keygen := installed("keygen", "-name", "ops", "-scope", "read,lock,fence,admin", "-prefix", "*")
	var key bytes.Buffer
	keygen.Stderr = &key
	line, err := keygen.Output()
	must(t, err)
	keys := filepath.Join(root, "etc/fencepost/keys")
	must(t, os.WriteFile(keys, append(read(t, keys), line...), 0o644))
	keyFile := filepath.Join(root, "ops.key")
	must(t, os.WriteFile(keyFile, key.Bytes(), 0o600))

	gateway := installed()
	addr := serve(t, gateway, filepath.Join(root, "var/lib/fencepost"))
	for env, want := range map[string]int{"NONE=": 77, "FENCEPOST_KEY_FILE=" + keyFile: 0} {
		lockctl := exec.Command(filepath.Join(root, "usr/bin/lockctl"), "run", "packaged", "--", "true")
		lockctl.Env = []string{"PATH=" + os.Getenv("PATH"), "FENCEPOST=http://" + addr, env}
		if out, _ := lockctl.CombinedOutput(); lockctl.ProcessState.ExitCode() != want {
			t.Errorf("lockctl: %v, want %d\n%s", lockctl.ProcessState, want, out)
		}
	}
	stop(t, gateway)
}

// billOfMaterials wants the modules in the gateway, and nothing of what tests it.
func billOfMaterials(t *testing.T, path string) {
	t.Helper()
	var bom struct {
		BOMFormat  string
		Components []struct{ Name, Version, PURL string }
	}
	must(t, json.Unmarshal(read(t, path), &bom))
	var names []string
	for _, component := range bom.Components {
		names = append(names, component.Name)
	}
	if bom.BOMFormat != "CycloneDX" || !slices.Contains(names, "github.com/redis/go-redis/v9") || slices.Contains(names, "github.com/chromedp/chromedp") {
		t.Errorf("the bill of materials: %s %q", bom.BOMFormat, names)
	}
}

// build returns the path of a gateway.
func build(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "gateway")
	command := exec.Command("go", "build", "-o", path, "./cmd/gateway")
	command.Dir = "../.."
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	return path
}

// serve starts a gateway on an address of its own and with a directory of its own, whatever
// its settings say, and returns the address when it serves. It ends with the test.
func serve(t *testing.T, gateway *exec.Cmd, dataDir string) (addr string) {
	t.Helper()
	gateway.Env = append(gateway.Env, "FENCEPOST_DATA_DIR="+dataDir)
	return serveOn(t, gateway, "127.0.0.1:0")
}

// serveOn is serve with an address, and the store that is set.
func serveOn(t *testing.T, gateway *exec.Cmd, listen string) (addr string) {
	t.Helper()
	gateway.Env = append(gateway.Env, "PATH="+os.Getenv("PATH"), "FENCEPOST_LISTEN_ADDR="+listen)
	gateway.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // with strace, if there is one
	log, err := gateway.StderrPipe()
	must(t, err)
	must(t, gateway.Start())
	t.Cleanup(func() { syscall.Kill(-gateway.Process.Pid, syscall.SIGKILL) })
	var said []string
	for lines := bufio.NewScanner(log); lines.Scan(); {
		said = append(said, lines.Text())
		var entry struct{ Msg, Address string }
		if json.Unmarshal(lines.Bytes(), &entry) == nil && entry.Msg == "serving" {
			go io.Copy(io.Discard, log)
			response, err := http.Get("http://" + entry.Address + "/readyz")
			must(t, err)
			response.Body.Close()
			if response.StatusCode != http.StatusOK {
				t.Errorf("/readyz: %s", response.Status)
			}
			return entry.Address
		}
	}
	t.Fatalf("the gateway does not serve: %q", said)
	return ""
}

// stop ends a gateway as a supervisor does, and wants a clean end.
func stop(t *testing.T, gateway *exec.Cmd) {
	t.Helper()
	must(t, syscall.Kill(-gateway.Process.Pid, syscall.SIGTERM))
	if err := gateway.Wait(); err != nil {
		t.Errorf("the gateway's end: %v", err)
	}
}
