package validate

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

func TestCompose(t *testing.T) {
	for files, services := range map[string]int{"embedded.yaml": 1, "redis.yaml": 4, "sentinel.yaml": 9, "raft.yaml": 4, "postgres.yaml": 5, "embedded.yaml tls.yaml": 1} {
		file := files
		project, err := load(t, strings.Fields(files)...)
		if err != nil {
			t.Error(file, err)
			continue
		}
		if len(project.Services) != services {
			t.Errorf("%s has %d services", file, len(project.Services))
		}
		for name, service := range project.Services {
			if !service.ReadOnly || !slices.Contains(service.CapDrop, "ALL") || !slices.Contains(service.SecurityOpt, "no-new-privileges:true") {
				t.Errorf("%s: %s may do more than it needs", file, name)
			}
			secured := service.Environment["FENCEPOST_TLS_CERT_FILE"] != nil
			for _, port := range service.Ports {
				if port.HostIP != "127.0.0.1" && !secured {
					t.Errorf("%s: %s publishes %s beyond loopback, without TLS", file, name, port.Published)
				}
			}
			if secured != (len(service.Ports) == 1 && service.Ports[0].HostIP == "") {
				t.Errorf("%s: %s publishes %+v", file, name, service.Ports)
			}
			if strings.HasPrefix(name, "gateway") {
				keys, insecure := service.Environment["FENCEPOST_KEYS_FILE"], service.Environment["FENCEPOST_INSECURE_NO_AUTH"]
				mounted := slices.ContainsFunc(service.Volumes, func(v types.ServiceVolumeConfig) bool {
					return keys != nil && v.Target == filepath.Dir(*keys) && v.ReadOnly && !bool(v.Bind.CreateHostPath)
				})
				if !mounted || insecure != nil {
					t.Errorf("%s: %s has no keys: %+v", file, name, service.Volumes)
				}
			}
			for _, volume := range service.Volumes { // made by make-secrets, or shipped
				if volume.Type == types.VolumeTypeBind && !strings.Contains(volume.Source, "/secrets/") && len(read(t, volume.Source)) == 0 {
					t.Errorf("%s: %s mounts an empty %s", file, name, volume.Source)
				}
			}
		}
	}
}

// makeSecrets makes what the Compose files want, with keys by a gateway.
func makeSecrets(gateway, dir string) ([]byte, error) {
	command := exec.Command("../compose/make-secrets", dir)
	command.Env = append(os.Environ(), "GATEWAY="+gateway)
	return command.CombinedOutput()
}

// TestComposeSecrets: each file that the Compose files want is made, and no place for a
// password is left open.
func TestComposeSecrets(t *testing.T) {
	gateway, dir := build(t, t.TempDir()), filepath.Join(t.TempDir(), "secrets")
	if out, err := makeSecrets("/none/gateway", dir); err == nil || !strings.Contains(string(out), "docker build") {
		t.Errorf("without a gateway: %v %s", err, out)
	}
	if out, err := makeSecrets(gateway, dir); err != nil {
		t.Fatal(err, string(out))
	}
	if _, err := makeSecrets(gateway, dir); err == nil {
		t.Error("it makes new passwords over old ones")
	}
	if keys := string(read(t, filepath.Join(dir, "gateway/keys"))); strings.Count(keys, "\n") != 2 || !strings.Contains(keys, "key prometheus ") {
		t.Errorf("the keys are\n%s", keys)
	}
	for file, mode := range map[string]os.FileMode{".": 0o700, "gateway": 0o755, "gateway/keys": 0o644, "admin.key": 0o600, "prometheus.key": 0o644} {
		info, err := os.Stat(filepath.Join(dir, file))
		must(t, err)
		if info.Mode().Perm() != mode {
			t.Errorf("%s has the mode %v", file, info.Mode())
		}
		if strings.HasSuffix(file, ".key") && !regexp.MustCompile(`^fp_\S+\n$`).Match(read(t, filepath.Join(dir, file))) {
			t.Errorf("%s is no key", file)
		}
	}
	for _, file := range []string{"redis.yaml", "sentinel.yaml", "raft.yaml", "postgres.yaml"} {
		project, err := load(t, file)
		must(t, err)
		var wanted []string
		for _, secret := range project.Secrets {
			wanted = append(wanted, secret.File)
		}
		for _, service := range project.Services {
			for _, volume := range service.Volumes {
				wanted = append(wanted, volume.Source)
			}
		}
		for _, path := range wanted {
			if _, name, ok := strings.Cut(path, "/secrets/"); ok && name != "gateway" {
				if text := string(read(t, filepath.Join(dir, name))); strings.Contains(text, "password") && !strings.HasSuffix(name, ".conf") ||
					strings.Contains(text, "s-password") || text == "" {
					t.Errorf("%s: %s is not filled", file, name)
				}
			}
		}
	}
}

func load(t *testing.T, names ...string) (*types.Project, error) {
	dir, err := filepath.Abs("../compose")
	must(t, err)
	var files []types.ConfigFile
	for _, name := range names {
		files = append(files, types.ConfigFile{Filename: filepath.Join(dir, name)})
	}
	return loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: dir, ConfigFiles: files, Environment: types.Mapping{},
	})
}
