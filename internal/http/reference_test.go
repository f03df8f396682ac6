package http

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// reference returns docs/reference.md.
func reference(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// TestProblemsPage: docs/reference.md has a row for each code, with its status, and none for what is no code. The contract has the
// same codes: TestContractHasTheVocabulary.
func TestProblemsPage(t *testing.T) {
	t.Parallel()
	_, section, _ := strings.Cut(reference(t), "\n## Problem codes\n")
	section, _, _ = strings.Cut(section, "\n## ")
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (.*) \\| [A-Z][^|]+\\. \\|$").FindAllStringSubmatch(section, -1) {
		documented[row[1]+" "+row[2]] = true
	}
	for code, is := range problems {
		row := fmt.Sprintf("%s %d", code, is.status)
		if !documented[row] {
			t.Errorf("docs/reference.md has no row for %s that says what to do", row)
		}
		delete(documented, row)
	}
	for row := range documented {
		t.Errorf("docs/reference.md has a row for %s, which no answer has", row)
	}
	if rows := strings.Count(section, "\n| `"); rows != len(problems) {
		t.Errorf("docs/reference.md has %d rows for %d codes", rows, len(problems))
	}
}

// TestBoundsPage: what docs/reference.md says of a gateway's bounds is what they are.
func TestBoundsPage(t *testing.T) {
	t.Parallel()
	server := NewHTTPServer(nil, nil)
	if failureInterval != time.Second {
		t.Error("docs/reference.md has another allowance for requests without a known key")
	}
	page := reference(t)
	for _, row := range []string{
		fmt.Sprintf("| request, answer | headers %d KiB and body %d KiB within %.0f s; %.0f s for the answer, and for each write of a stream |",
			server.MaxHeaderBytes>>10, maxBodyBytes>>10, server.ReadTimeout.Seconds(), writeTimeout.Seconds()),
		fmt.Sprintf("| connection | %.0f min idle; over HTTP/2 %d requests in progress and %d MiB of unread bodies |",
			server.IdleTimeout.Minutes(), maxStreamsPerConnection, server.HTTP2.MaxReceiveBufferPerConnection>>20),
		fmt.Sprintf("| connections refused | %d answers a second (%d with TLS), %d at a time;", refusalRate, tlsRefusalRate, MaxRefusals),
		fmt.Sprintf("| 429 answers to one principal | each comes after %d ms, or later if more than %d wait: %d a second. While %s wait,",
			limitedPause.Milliseconds(), refusedAtOnce, int(refusedAtOnce/limitedPause.Seconds()), thousands(maxHeldBack)),
		fmt.Sprintf("| requests without a known key, of one address | %d are answered 401, and one more a second; others 429 |", failureBurst),
		fmt.Sprintf("| addresses counted apart | %s;", thousands(maxNetworks)),
		fmt.Sprintf("| `too_large` | 413 | Send at most %d KiB. |", maxBodyBytes>>10),
	} {
		if !strings.Contains(page, "\n"+row) {
			t.Errorf("docs/reference.md does not say %q", row)
		}
	}
}

func thousands(n int) string { return fmt.Sprintf("%d,%03d", n/1000, n%1000) }
