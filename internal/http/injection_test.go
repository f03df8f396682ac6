package http

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"fencepost/internal/fencing"
)

// injections returns texts that somewhere are more than text. The page's tests have the
// same.
func injections(t *testing.T) (all []string) {
	t.Helper()
	content, err := os.ReadFile("testdata/injections.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(content)) {
		var text string
		if err := json.Unmarshal([]byte(line), &text); err != nil {
			t.Fatal(line, err)
		}
		all = append(all, text)
	}
	if len(all) != 200 {
		t.Fatalf("%d texts", len(all))
	}
	return all
}

// injected marks a text of the corpus, so that it is found wherever it comes out.
const injected = "<zq7x>" // no name has it

// cut returns the begin of a text that has at most so many bytes.
func cut(text string, most int) string {
	for len(text) > most {
		_, size := utf8.DecodeLastRuneInString(text)
		text = text[:len(text)-size]
	}
	return text
}

var (
	sample       = regexp.MustCompile(`^(# (HELP|TYPE) [a-z_]+ .*|[a-z_]+(\{([a-z_]+="([^"\\]|\\.)*",?)*\})? [-+0-9.e]+|[a-z_]+(\{([a-z_]+="([^"\\]|\\.)*",?)*\})? \+Inf)$`)
	headerTokens = regexp.MustCompile(`[^\t\x20-\x7e\x80-\x{10ffff}]`)
)

// TestInjections: owners and metadata come back as they were sent, in one event each; what
// is refused is echoed nowhere. Nothing of all that is in the log or in the metrics, whose
// lines stay lines.
func TestInjections(t *testing.T) { areOnlyText(t, 8) }

// TestSystemInjections is TestInjections with each text in each place.
func TestSystemInjections(t *testing.T) { areOnlyText(t, 1) }

// areOnlyText sends all texts where they belong, and one of so many also where none does.
func areOnlyText(t *testing.T, of int) {
	t.Parallel()
	g := startGuarded(t)
	watch := g.stream("GET", "/events", "", g.as["all"])
	accepted := 0
	for i, text := range injections(t) {
		marked := injected + text
		name := fmt.Sprintf("ours/%d", i)
		owner, key, value := cut(marked, fencing.MaxOwnerBytes), cut(marked, fencing.MaxMetadataKeyBytes), cut(marked, fencing.MaxMetadataValueBytes)
		body, err := json.Marshal(map[string]any{"owner": owner, "metadata": map[string]string{key: value}})
		if err != nil {
			t.Fatal(err)
		}
		switch a := g.do("POST", "/locks/"+name, string(body), g.as["all"]); a.status {
		case 201:
			accepted++
			lock := g.do("GET", "/locks/"+name, "", g.as["all"]).want(t, 200)
			holder := lock.json["holders"].([]any)[0].(map[string]any)
			if holder["owner"] != owner || holder["metadata"].(map[string]any)[key] != value {
				t.Errorf("%q came back as %q", text, holder)
			}
			if e := watch.next("granted"); e.text("owner") != owner || e.text("name") != name {
				t.Errorf("the event of %q has %q", text, e.data)
			}
		case 400:
			wantNoEcho(t, "owner", text, a)
		default:
			t.Fatalf("%q: %d %s", text, a.status, a.body)
		}
		if i%of == 0 {
			g.wantEchoNowhere(t, marked)
		}
	}
	if accepted < 150 {
		t.Errorf("only %d texts were accepted", accepted)
	}
	for line := range strings.Lines(g.log.String()) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Errorf("a line of the log is none: %q", line)
		}
		if strings.Contains(line, injected) {
			t.Errorf("the log has what came from a client: %s", line)
		}
	}
	metrics := g.do("GET", "/metrics", "", g.as["all"]).want(t, 200).body
	for line := range strings.Lines(metrics) {
		if !sample.MatchString(strings.TrimSpace(line)) || strings.Contains(line, injected) {
			t.Errorf("a line of the metrics is %q", line)
		}
	}
}

// wantEchoNowhere sends a text in every place where none belongs.
func (g *guarded) wantEchoNowhere(t *testing.T, marked string) {
	t.Helper()
	for _, method := range []string{"GET", "POST", "DELETE"} {
		wantNoEcho(t, "name", marked, g.plain(method, "/locks/"+url.PathEscape(marked), "", g.as["ours"]))
		wantNoEcho(t, "name", marked, g.plain(method, "/fences/ours%2F"+url.PathEscape(marked), "", g.as["ours"]))
	}
	query := url.QueryEscape(marked)
	for _, path := range []string{"/locks?prefix=" + query, "/events?prefix=" + query, "/locks?cursor=" + query, "/locks?limit=" + query, "/locks?" + query + "=1", "/fences/ours/a?token=" + query} {
		wantNoEcho(t, path, marked, g.plain("GET", path, "", g.as["ours"]))
	}
	wantNoEcho(t, "names", marked, g.plain("DELETE", "/locks?name="+query, "", g.as["ours"], "Lease-Id: "+newID()))
	quoted, _ := json.Marshal(marked)
	for _, body := range []string{`{"mode":` + string(quoted) + `}`, `{"ttl_ms":` + string(quoted) + `}`, marked, string(quoted), `{"metadata":` + string(quoted) + `}`} {
		wantNoEcho(t, body, marked, g.plain("POST", "/locks/ours/refused", body, g.as["ours"]))
	}
	if headerTokens.MatchString(marked) || strings.TrimSpace(marked) != marked {
		return
	}
	for _, header := range []string{"Lease-Id", "If-Match", "Lease-Hold", "Authorization", "Last-Event-ID"} {
		headers := []string{header + ": " + marked}
		if header != "Authorization" {
			headers = append(headers, g.as["ours"])
		}
		path, method := "/locks/ours/refused", "DELETE"
		if header == "Last-Event-ID" {
			path, method = "/events", "GET"
		}
		g.clock.advance(failureInterval)
		wantNoEcho(t, header, marked, g.plain(method, path, "", headers...))
	}
}

// plain sends a request, without a look at the contract, which costs more than all else.
func (g *guarded) plain(method, path, body string, headers ...string) *answered {
	g.t.Helper()
	r, err := http.NewRequest(method, g.url+path, strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Set(name, value)
	}
	response, err := g.client.Do(r)
	if err != nil {
		g.t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	return &answered{status: response.StatusCode, header: response.Header, body: string(data)}
}

// wantNoEcho fails the test if an answer has a text, or is no refusal.
func wantNoEcho(t *testing.T, where, text string, a *answered) {
	t.Helper()
	if a.status < 400 || a.status >= 500 {
		t.Errorf("%q as %s: %d %s", text, where, a.status, a.body)
	}
	if strings.Contains(a.body, injected) || strings.Contains(fmt.Sprint(a.header), injected) {
		t.Errorf("%q as %s is echoed: %v %s", text, where, a.header, a.body)
	}
}
