package validate

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

func TestCompose(t *testing.T) {
	for file, services := range map[string]int{"embedded.yaml": 1, "redis.yaml": 4, "sentinel.yaml": 9} {
		project, err := load(t, file)
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
			for _, port := range service.Ports {
				if port.HostIP != "127.0.0.1" {
					t.Errorf("%s: %s publishes %s beyond loopback, without keys", file, name, port.Published)
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

// TestComposeSecrets: each file that the Compose files want is made, and no place for a
// password is left open.
func TestComposeSecrets(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "secrets")
	out, err := exec.Command("../compose/make-secrets", dir).CombinedOutput()
	if err != nil {
		t.Fatal(err, string(out))
	}
	if err := exec.Command("../compose/make-secrets", dir).Run(); err == nil {
		t.Error("it makes new passwords over old ones")
	}
	for _, file := range []string{"redis.yaml", "sentinel.yaml"} {
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
			if _, name, ok := strings.Cut(path, "/secrets/"); ok {
				if text := string(read(t, filepath.Join(dir, name))); strings.Contains(text, "password") && !strings.HasSuffix(name, ".conf") ||
					strings.Contains(text, "s-password") || text == "" {
					t.Errorf("%s: %s is not filled", file, name)
				}
			}
		}
	}
}

func load(t *testing.T, file string) (*types.Project, error) {
	dir, err := filepath.Abs("../compose")
	must(t, err)
	return loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: dir, ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(dir, file)}}, Environment: types.Mapping{},
	})
}
