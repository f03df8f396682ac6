package deploy_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/oasdiff/yaml"
	"github.com/prometheus/client_golang/prometheus"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
	lockhttp "fencepost/internal/http"
	"fencepost/internal/observe"
	"fencepost/internal/redis/redistest"
	"fencepost/internal/sql"
	"fencepost/internal/sql/sqltest"
	"fencepost/internal/watchdog"
)

// described is a prometheus.Registerer that notes the labels of all metrics, by name.
type described struct {
	prometheus.Registerer
	labels map[string][]string
}

var desc = regexp.MustCompile(`^Desc\{fqName: "(\w+)", help: ".*", constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

func (d *described) Register(c prometheus.Collector) error {
	descriptions := make(chan *prometheus.Desc, 100)
	c.Describe(descriptions)
	close(descriptions)
	for one := range descriptions {
		match := desc.FindStringSubmatch(one.String())
		if match == nil {
			return fmt.Errorf("%s is not as expected", one)
		}
		labels := regexp.MustCompile(`=".*?"`).ReplaceAllString(match[2]+","+match[3], "")
		d.labels[match[1]] = strings.FieldsFunc(labels, func(r rune) bool { return r == ',' })
	}
	return d.Registerer.Register(c)
}

func (d *described) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := d.Register(c); err != nil {
			panic(err)
		}
	}
}

// exist returns all metrics that the packages of a gateway register, whether anything has
// been counted yet or not, with their labels.
func exist(t *testing.T) map[string][]string {
	t.Helper()
	all := &described{prometheus.NewRegistry(), map[string][]string{}}
	observe.RegisterBuild(all, "", "", "")
	observe.NewFiles(all)
	observe.RegisterPool(all, func() observe.Pool { return observe.Pool{} })
	observe.RegisterLog(all, func() uint64 { return 0 })
	observe.RegisterLosses(all, func() int64 { return 0 })
	observe.RegisterPanics(all, func() int64 { return 0 })
	observe.RegisterTurnsEnded(all, func() int64 { return 0 })
	observe.RegisterCluster(all, func() observe.Cluster { return observe.Cluster{} })
	model := fencingtest.NewModel(func() fencing.Instant { return fencingtest.Epoch })
	t.Cleanup(func() { model.Close() })
	dog := watchdog.New(observe.Wrap(model, all), watchdog.Options{Observer: observe.NewObserver(all)})
	lockhttp.New(lockhttp.Options{Watchdog: dog, Bounds: fencing.DefaultBounds(), Registerer: all})
	log := slog.New(slog.DiscardHandler)
	lockhttp.LimitConnections(lockhttp.NewHTTPServer(nil, log), nil, lockhttp.ConnectionOptions{Most: 1, Registerer: all, Logger: log})
	return all.labels
}

type rule struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

func alertRules(t *testing.T) (rules []rule) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	_, err := yaml.Unmarshal([]byte(readFile(t, "prometheus/rules.yaml")), &file, yaml.DecodeOpts{})
	must(t, err)
	for _, group := range file.Groups {
		rules = append(rules, group.Rules...)
	}
	if len(rules) < 10 {
		t.Fatalf("only %d rules", len(rules))
	}
	return rules
}

// expressions returns all that is asked of Prometheus, by who asks.
func expressions(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, rule := range alertRules(t) {
		all[rule.Alert] = append(all[rule.Alert], rule.Expr)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	must(t, json.Unmarshal([]byte(readFile(t, "grafana/fencepost.json")), &dashboard))
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			all["panel "+panel.Title] = append(all["panel "+panel.Title], target.Expr)
		}
	}
	return all
}

var (
	selector = regexp.MustCompile(`\b(fencepost_\w+)(\{[^\[]*?\})?`)
	matcher  = regexp.MustCompile(`(\w+) *(?:=~|!~|!=|=) *"`)
	grouping = regexp.MustCompile(`by \(([^)]*)\)`)
	suffix   = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// TestAskedForMetricsExist: a rule or a panel that asks for what is not there is silent.
func TestAskedForMetricsExist(t *testing.T) {
	t.Parallel()
	there := exist(t)
	for who, exprs := range expressions(t) {
		for _, expr := range exprs {
			labels := []string{"job", "instance", "le"}
			for _, match := range selector.FindAllStringSubmatch(expr, -1) {
				name := match[1]
				if _, ok := there[name]; !ok {
					name = suffix.ReplaceAllString(name, "")
				}
				own, ok := there[name]
				if !ok {
					t.Errorf("%s: there is no metric %s", who, match[1])
				}
				for _, label := range matcher.FindAllStringSubmatch(match[2], -1) {
					if !slices.Contains(slices.Concat(own, labels), label[1]) {
						t.Errorf("%s: %s has no label %s", who, name, label[1])
					}
				}
				labels = append(labels, own...)
			}
			for _, match := range grouping.FindAllStringSubmatch(expr, -1) {
				for label := range strings.SplitSeq(match[1], ",") {
					if label = strings.TrimSpace(label); !slices.Contains(labels, label) {
						t.Errorf("%s: nothing in %s has the label %s", who, expr, label)
					}
				}
			}
		}
	}
}

// TestMetricsPage: the packages' metrics are those of the gateway, and an alert on the increase
// of a counter sees the first event, since the counter was 0 before it.
func TestMetricsPage(t *testing.T) {
	t.Parallel()
	port, err := redistest.FreePort()
	must(t, err)
	database := sqltest.StartPostgres(t).Database(t)
	_, err = sql.Init(t.Context(), database, sql.Rights{})
	must(t, err)
	page := metricsPage(t, redistest.Start(t).URL()) + metricsPage(t, fmt.Sprintf("raft://127.0.0.1:%d", port)) + metricsPage(t, database)
	there := exist(t)
	shown := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^# TYPE (fencepost_\w+) `).FindAllStringSubmatch(page, -1) {
		shown[match[1]] = true
		if _, ok := there[match[1]]; !ok {
			t.Errorf("the gateway has %s, which no package of exist has: add it there", match[1])
		}
	}
	for name, labels := range there {
		if len(labels) == 0 && !shown[name] {
			t.Errorf("the gateway does not show %s", name)
		}
	}
	counted := regexp.MustCompile(`increase\((fencepost_\w+)(?:\{(\w+)=~?"([^"]*)"\})?`)
	found := 0
	for _, rule := range alertRules(t) {
		for _, match := range counted.FindAllStringSubmatch(rule.Expr, -1) {
			for value := range strings.SplitSeq(match[3], "|") {
				found++
				series := `(?m)^` + match[1] + `(\{.*\b` + match[2] + `="` + value + `".*\})? `
				if match[2] == "" {
					series = `(?m)^` + match[1] + ` `
				}
				if !regexp.MustCompile(series).MatchString(page) {
					t.Errorf("%s: %s with %s=%q is not there before the first event", rule.Alert, match[1], match[2], value)
				}
			}
		}
	}
	if found < 5 {
		t.Errorf("only %d counters are alerted on", found)
	}
}

// metricsPage returns what a gateway that has just started shows.
func metricsPage(t *testing.T, store string) string {
	t.Helper()
	gateway := exec.Command(buildGateway(t))
	gateway.Env = []string{"PATH=" + os.Getenv("PATH"), "FENCEPOST_LISTEN_ADDR=127.0.0.1:0", "FENCEPOST_STORE=" + store, "FENCEPOST_DATA_DIR=" + t.TempDir()}
	log, err := gateway.StderrPipe()
	must(t, err)
	must(t, gateway.Start())
	defer func() {
		gateway.Process.Signal(syscall.SIGTERM)
		io.Copy(io.Discard, log)
		if err := gateway.Wait(); err != nil {
			t.Error(err)
		}
	}()
	for lines := bufio.NewScanner(log); lines.Scan(); {
		var entry struct{ Msg, Address string }
		if json.Unmarshal(lines.Bytes(), &entry) == nil && entry.Msg == "serving" {
			response, err := http.Get("http://" + entry.Address + "/metrics")
			must(t, err)
			defer response.Body.Close()
			page, err := io.ReadAll(response.Body)
			must(t, err)
			return string(page)
		}
	}
	t.Fatal("the gateway does not serve")
	return ""
}

// TestAlertsAreDocumented: docs/failures.md has a row for each alert, those that page first, and none for what is not
// there; and each alert points into it.
func TestAlertsAreDocumented(t *testing.T) {
	t.Parallel()
	page := readFile(t, failures)
	rows := rowsOf(page, "Fencepost")
	var alerts []string
	paging := 0
	for _, rule := range alertRules(t) {
		alerts = append(alerts, rule.Alert)
		if rule.Labels["severity"] == "page" {
			paging++
		}
		path, anchor, _ := strings.Cut(rule.Annotations["runbook"], "#")
		heading := "\n#+ " + strings.ReplaceAll(anchor, "-", " ") + "\n"
		if path != strings.TrimPrefix(failures, "../") || !regexp.MustCompile("(?i)"+heading).MatchString(page) {
			t.Errorf("%s: there is no %s", rule.Alert, rule.Annotations["runbook"])
		}
		if rule.Annotations["summary"] == "" {
			t.Errorf("%s has no summary", rule.Alert)
		}
	}
	for _, rule := range alertRules(t) {
		if at := slices.Index(rows, rule.Alert); at >= 0 && (at < paging) != (rule.Labels["severity"] == "page") {
			t.Errorf("%s has the severity %s, and is row %d; %d page", rule.Alert, rule.Labels["severity"], at+1, paging)
		}
	}
	if paging != 6 || !strings.Contains(page, "The first six need you at once") {
		t.Errorf("%d alerts page", paging)
	}
	sameNames(t, "alerts", alerts, rows)
}

// rowsOf returns the names that begin the rows of tables, of those that begin with a text.
func rowsOf(page, prefix string) (names []string) {
	for _, match := range regexp.MustCompile("(?m)^\\| `("+prefix+"\\w+)` \\|").FindAllStringSubmatch(page, -1) {
		names = append(names, match[1])
	}
	return names
}

// sameNames fails the test unless all names that are there are documented, and no others.
func sameNames(t *testing.T, what string, there, documented []string) {
	t.Helper()
	for _, name := range there {
		if !slices.Contains(documented, name) {
			t.Errorf("%s: %s is not documented", what, name)
		}
	}
	for _, name := range documented {
		if !slices.Contains(there, name) {
			t.Errorf("%s: %s is documented, and is not there", what, name)
		}
	}
}
