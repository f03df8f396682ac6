package deploy_test

import (
	"regexp"
	"strings"
	"testing"
)

// TestMetricsAreInTheReference: each metric is in a row of docs/reference.md, with all its labels, and nothing else is.
func TestMetricsAreInTheReference(t *testing.T) {
	t.Parallel()
	_, section, _ := strings.Cut(readFile(t, "../docs/reference.md"), "\n## Metrics\n")
	section, _, _ = strings.Cut(section, "\n## ")
	there := exist(t)
	documented := map[string]bool{}
	quoted := regexp.MustCompile("`(\\w+)`")
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]+) \\| ([^|]+) \\|$").FindAllStringSubmatch(section, -1) {
		for _, name := range quoted.FindAllStringSubmatch(row[1], -1) {
			labels, ok := there[name[1]]
			if !ok {
				t.Errorf("%s is documented, and is not there", name[1])
			}
			if documented[name[1]] {
				t.Errorf("%s is documented twice", name[1])
			}
			documented[name[1]] = true
			for _, label := range labels {
				if !strings.Contains(row[2], "`"+label+"`") {
					t.Errorf("the label %s of %s is not documented", label, name[1])
				}
			}
		}
	}
	for name := range there {
		if !documented[name] {
			t.Errorf("%s is not documented", name)
		}
	}
}
