package planted

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Every bug has a name of its own, and can be planted in the source as it is, which
// compiles then.
func TestEveryBugCanBePlanted(t *testing.T) {
	names := map[string]bool{}
	for _, bug := range Bugs() {
		if names[bug.Name] || bug.Name == "" || bug.What == "" {
			t.Errorf("%q: the name is not its own, or nothing is said of it", bug.Name)
		}
		names[bug.Name] = true
		if (bug.Test == "") == (bug.Promise == "") {
			t.Errorf("%s: either a test or histories have to catch it", bug.Name)
		}
		path, err := bug.overlay(t.TempDir())
		if err != nil {
			t.Error(err)
			continue
		}
		for _, p := range bug.Patches {
			if !strings.HasSuffix(p.File, ".go") {
				continue
			}
			build := exec.Command("go", "build", "-overlay", path, "./"+filepath.Dir(p.File))
			build.Dir = "../.."
			if out, err := build.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", bug.Name, err, out)
			}
		}
	}
}

// A patch that does not fit any more is told.
func TestPatchesHaveToFit(t *testing.T) {
	for what, patches := range map[string][]Patch{
		"is nowhere":     {{File: "internal/fencing/own.go", Old: "no such text"}},
		"is there twice": {{File: "internal/fencing/own.go", Old: "return nil"}},
		"is in no file":  {{File: "internal/fencing/nowhere.go", Old: "package"}},
		"is missing":     nil,
	} {
		bug := Bug{Name: what, Patches: patches}
		if path, err := bug.overlay(t.TempDir()); err == nil {
			t.Errorf("the text %s, and there is an overlay %s", what, path)
		}
	}
}
