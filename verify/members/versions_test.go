package members

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fencepost/verify/system"
)

// otherRule returns how a gateway is built in which a release ends no lease.
func otherRule(t *testing.T) system.Build {
	t.Helper()
	const rule = `t.end(h, ReasonReleased, t.now, "")`
	path, err := filepath.Abs("../../internal/fencing/step.go")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(path)
	if err != nil || strings.Count(string(source), rule) != 1 {
		t.Fatalf("%q is not once in %s: %v", rule, path, err)
	}
	dir := t.TempDir()
	changed, overlay := filepath.Join(dir, "step.go"), filepath.Join(dir, "overlay.json")
	files, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{changed: strings.Replace(string(source), rule, "_ = h", 1), overlay: string(files)} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return system.Build{Overlay: overlay}
}

// Of two versions with different rules, side by side in a cluster, the one that most nodes do not have stops, and says why. The
// others go on.
func TestTwoVersionsThatDecideDifferently(t *testing.T) {
	s := system.StartTest(t, system.Options{Store: system.Raft, Gateways: 3})
	client := system.NewClient(1)
	defer client.Close()
	odd := s.Gateways[2]
	if err := odd.Kill(); err != nil {
		t.Fatal(err)
	}
	odd.Use(otherRule(t))
	if err := odd.Launch(); err != nil {
		t.Fatal(err)
	}
	pairs := 0
	for giveUp := time.Now().Add(patience); odd.Running(); pairs++ {
		if time.Now().After(giveUp) {
			t.Fatalf("it goes on after %d pairs:\n%s", pairs, odd.Log())
		}
		a, err := client.Acquire(t.Context(), s.Gateways[pairs%2], "orders/42", "", `{"ttl_ms":600000}`)
		if err != nil || a.Status != 201 {
			t.Logf("pair %d: %s, %v", pairs, a, err)
			system.Pause(100 * time.Millisecond)
			continue
		}
		if _, err := client.Release(t.Context(), s.Gateways[pairs%2], "orders/42", a.Lease.ID); err != nil {
			t.Log(err)
		}
	}
	if log := odd.Log(); !strings.Contains(log, "gave another result here than at the other nodes") {
		t.Errorf("it does not say why it stops:\n%s", log)
	}
	for _, g := range s.Gateways[:2] {
		if a, err := client.Acquire(t.Context(), g, "after-"+g.Node(), "", `{"ttl_ms":600000}`); err != nil || a.Status != 201 || !g.Running() {
			t.Errorf("%s does not go on: %s, %v", g.Node(), a, err)
		}
	}
}
