package validate

import (
	"encoding/json"
	"os/exec"
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
