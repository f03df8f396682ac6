package main

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"text/template"
	"time"

	"fencepost/verify/check"
)

//go:embed report.md.tmpl
var reportTemplate string

// writeReport writes what was run, on what, and what came of it.
func writeReport(path string, done []outcome, seed uint64, took time.Duration) error {
	format := template.Must(template.New("report").Funcs(template.FuncMap{
		"cell": func(s string) string { return strings.ReplaceAll(strings.ReplaceAll(s, "|", "\\|"), "\n", " ") },
	}).Parse(reportTemplate))
	type row struct {
		Name, Title, Result, Counts string
		Reached                     []check.Reached
		Took                        time.Duration
		Harms, Notes, Violations    []string
	}
	var rows []row
	failed, short := 0, 0
	for _, o := range done {
		n, violations := o.result.Violations()
		x := row{o.Name, o.Title, "0 violations", o.result.Counts(), o.result.Reached(), o.took.Round(time.Second), o.result.Harms.Lines(), o.result.Notes(), violations}
		switch {
		case o.err != nil:
			x.Result = "not run to its end"
			x.Violations = append(x.Violations, o.err.Error())
		case n > 0:
			x.Result = fmt.Sprintf("**%d violations**", n)
		}
		if !o.passed() {
			failed++
		}
		if slices.ContainsFunc(x.Reached, check.Reached.Short) {
			short++
		}
		rows = append(rows, x)
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	err = format.Execute(file, map[string]any{
		"Date": time.Now().UTC().Format(time.DateOnly), "Took": took.Round(time.Minute), "Seed": seed,
		"Cores": runtime.NumCPU(), "Memory": memory(), "Go": runtime.Version(), "Redis": output("redis-server", "--version"),
		"Kernel": output("uname", "-sr"), "Commit": output("git", "describe", "--always", "--dirty"),
		"Rows": rows, "Checks": len(rows), "Failed": failed, "Short": short,
	})
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return err
}

// output returns what a command says, in one line.
func output(name string, args ...string) string {
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

func memory() string {
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return "unknown"
	}
	var kib int
	if _, err := fmt.Sscanf(string(info), "MemTotal: %d kB", &kib); err != nil {
		return "unknown"
	}
	return fmt.Sprintf("%.0f GiB", float64(kib)/(1<<20))
}
