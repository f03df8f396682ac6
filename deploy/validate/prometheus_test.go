package validate

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
)

func TestRules(t *testing.T) {
	for _, args := range [][]string{{"check", "rules", "rules.yaml"}, {"test", "rules", "rules_test.yaml"}} {
		promtool := exec.Command("promtool", args...)
		promtool.Dir = "../prometheus"
		if out, err := promtool.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// TestScrape runs Prometheus as it is shipped, but for addresses, and wants it to be let in with
// its key, and not without.
func TestScrape(t *testing.T) {
	dir := t.TempDir()
	binary := build(t, dir)
	if out, err := makeSecrets(binary, filepath.Join(dir, "secrets")); err != nil {
		t.Fatal(err, string(out))
	}
	gateway := exec.Command(binary)
	gateway.Env = []string{"FENCEPOST_KEYS_FILE=" + filepath.Join(dir, "secrets/gateway/keys")}
	addr := serve(t, gateway, filepath.Join(dir, "data"))
	text := strings.Replace(string(read(t, "../prometheus/prometheus.yaml")), "127.0.0.1:8080", addr, 1)
	must(t, os.WriteFile(filepath.Join(dir, "rules.yaml"), read(t, "../prometheus/rules.yaml"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "prometheus.yaml"), []byte(text+"global: {scrape_interval: 1s}\n"), 0o600))
	must(t, os.Link(filepath.Join(dir, "secrets/prometheus.key"), filepath.Join(dir, "prometheus.key")))
	promtool := exec.Command("promtool", "check", "config", filepath.Join(dir, "prometheus.yaml"))
	if out, err := promtool.CombinedOutput(); err != nil {
		t.Fatalf("promtool: %v\n%s", err, out)
	}
	listen := freeAddr(t)
	run(t, exec.Command("prometheus", "--config.file="+filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path="+filepath.Join(dir, "tsdb"), "--web.listen-address="+listen))
	c := client{t, "http://" + listen, ""}
	c.until("/api/v1/targets", `"health":"up"`)
	c.until("/api/v1/rules", `"alerts":`)
	must(t, os.WriteFile(filepath.Join(dir, "prometheus.key"), []byte("fp_none\n"), 0o600))
	c.until("/api/v1/targets", `"health":"down".*|401`)
}

func TestDashboard(t *testing.T) {
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			Type    string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	must(t, json.Unmarshal(read(t, "../grafana/fencepost.json"), &dashboard))
	ids, places := map[int]bool{}, map[[2]int]bool{}
	for _, panel := range dashboard.Panels {
		place := [2]int{panel.GridPos.X, panel.GridPos.Y}
		if ids[panel.ID] || places[place] || panel.GridPos.X+panel.GridPos.W > 24 {
			t.Errorf("%s is in the way of another panel", panel.Title)
		}
		ids[panel.ID], places[place] = true, true
		if panel.Type != "row" && len(panel.Targets) == 0 {
			t.Errorf("%s shows nothing", panel.Title)
		}
		for _, target := range panel.Targets {
			expr := strings.NewReplacer("$__rate_interval", "5m", "$job", "fencepost", "$instance", ".*").Replace(target.Expr)
			if _, err := parser.NewParser(parser.Options{}).ParseExpr(expr); err != nil {
				t.Errorf("%s: %s: %v", panel.Title, target.Expr, err)
			}
		}
	}
	if len(dashboard.Panels) < 20 {
		t.Errorf("only %d panels", len(dashboard.Panels))
	}
}
