package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// spans is an OpenTelemetry collector: it keeps what it is sent.
type spans struct {
	t    *testing.T
	mu   sync.Mutex
	raw  bytes.Buffer
	list []*trace.Span
	from []string // service names
}

func collect(t *testing.T) (*spans, string) {
	s := &spans{t: t}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return s, server.URL
}

func (s *spans) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		unpacked, err := gzip.NewReader(r.Body)
		if err != nil {
			s.t.Error(err)
			return
		}
		body = unpacked
	}
	content, err := io.ReadAll(body)
	var export collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(content, &export)
	}
	if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Tenant") != "locks" {
		s.t.Errorf("%s, Tenant %q: %v", r.URL.Path, r.Header.Get("Tenant"), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.raw.Write(content)
	for _, of := range export.ResourceSpans {
		for _, a := range of.Resource.Attributes {
			if a.Key == "service.name" {
				s.from = append(s.from, a.Value.GetStringValue())
			}
		}
		for _, scope := range of.ScopeSpans {
			s.list = append(s.list, scope.Spans...)
		}
	}
}

// of returns the spans of a trace by name; the names sorted.
func (s *spans) of(traceID string) (byName map[string][]*trace.Span, names []string) {
	byName = map[string][]*trace.Span{}
	for _, span := range s.list {
		if fmt.Sprintf("%x", span.TraceId) == traceID {
			byName[span.Name] = append(byName[span.Name], span)
			names = append(names, span.Name)
		}
	}
	slices.Sort(names)
	return byName, names
}

func attributes(span *trace.Span) map[string]string {
	all := map[string]string{}
	for _, a := range span.Attributes {
		all[a.Key] = a.Value.GetStringValue()
		if n := a.Value.GetIntValue(); n != 0 {
			all[a.Key] = fmt.Sprint(n)
		}
	}
	return all
}

// A request is a span in its client's trace, with what it asked of the store and its time
// in the queue below it; probes and requests without a trace's parent are apart.
func TestTraces(t *testing.T) {
	t.Parallel()
	const (
		holds, waits   = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
		parent, secret = "cccccccccccccccc", "abcdefghijklmnopqrstuv"
	)
	got, url := collect(t)
	g := start(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+url, "OTEL_EXPORTER_OTLP_HEADERS=tenant=locks", "FENCEPOST_LOG_LEVEL=debug")
	ask := func(traceID, method, path, body, lease string, want int) []byte {
		t.Helper()
		header := map[string]string{"Lease-Id": lease}
		if traceID != "" {
			header["Traceparent"] = "00-" + traceID + "-" + parent + "-01"
		}
		status, answer, err := request(method, "http://"+g.addr+path, body, header)
		if err != nil || status != want {
			t.Errorf("%s %s: %d %s, %v", method, path, status, answer, err)
		}
		return answer
	}
	first, second := "01KB0000000000000000000000."+secret, "01KB0000000000000000000001."+secret
	ask(holds, "POST", "/locks/a", "", first, 201)
	queued := make(chan struct{})
	go func() {
		defer close(queued)
		ask(waits, "POST", "/locks/a", `{"wait_ms":30000}`, second, 201)
	}()
	for body := []byte(nil); !bytes.Contains(body, []byte(`"waiting":1`)); {
		body = eventually(t, http.MethodGet, "http://"+g.addr+"/locks/a", http.StatusOK)
	}
	ask(holds, "DELETE", "/locks/a", "", first, 204)
	<-queued
	ask(holds, "POST", "/locks", `{"names":["b","c"]}`, first, 201)
	ask("", "GET", "/readyz", "", "", 200)
	ask(holds, "GET", "/readyz", "", "", 200)
	if err := g.end(syscall.SIGTERM); err != nil { // sends what is left
		t.Fatal(err)
	}

	got.mu.Lock()
	defer got.mu.Unlock()
	for _, name := range got.from {
		if name != "fencepost" {
			t.Errorf("service.name %q", name)
		}
	}
	byName, names := got.of(holds)
	want := []string{"DELETE /locks/{name}", "POST /locks", "POST /locks/{name}", "store acquire", "store acquire", "store acquire", "store confirm", "store confirm", "store release"}
	if !slices.Equal(names, want) {
		t.Errorf("the holder's trace: %q, want %q", names, want)
		return
	}
	acquire := byName["POST /locks/{name}"][0]
	if fmt.Sprintf("%x", acquire.ParentSpanId) != parent || acquire.Kind != trace.Span_SPAN_KIND_SERVER {
		t.Errorf("the request's span: %v", acquire)
	}
	for key, value := range map[string]string{
		"http.request.method": "POST", "http.route": "/locks/{name}", "http.response.status_code": "201",
		"fencepost.lock": "a", "fencepost.code": "ok", "fencepost.lease": "01KB0000000000000000000000",
	} {
		if has := attributes(acquire)[key]; has != value {
			t.Errorf("%s is %q, want %q", key, has, value)
		}
	}
	children := 0
	for _, span := range byName["store acquire"] {
		if bytes.Equal(span.ParentSpanId, acquire.SpanId) {
			children++
		}
		if kind := attributes(span)["fencepost.store"]; kind != "embedded" {
			t.Errorf("fencepost.store is %q", kind)
		}
	}
	if children != 1 {
		t.Errorf("%d store operations below one acquire", children)
	}

	byName, names = got.of(waits)
	if want := []string{"POST /locks/{name}", "store acquire", "wait"}; !slices.Equal(names, want) {
		t.Errorf("the waiter's trace: %q, want %q", names, want)
		return
	}
	request, wait := byName["POST /locks/{name}"][0], byName["wait"][0]
	if !bytes.Equal(wait.ParentSpanId, request.SpanId) || wait.StartTimeUnixNano < request.StartTimeUnixNano || wait.EndTimeUnixNano > request.EndTimeUnixNano {
		t.Errorf("the wait %v is not within its request %v", wait, request)
	}
	if bytes.Contains(got.raw.Bytes(), []byte(secret)) {
		t.Error("a lease's secret is in the spans")
	}
	if log := g.warnings(); strings.Contains(log, "lost") {
		t.Errorf("the log says %s", log)
	}
}

// A collector that is away costs spans, and nothing else.
func TestTracesWithoutCollector(t *testing.T) {
	t.Parallel()
	g := start(t, "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "OTEL_BSP_SCHEDULE_DELAY=10", "OTEL_EXPORTER_OTLP_TIMEOUT=100")
	status, body, err := request(http.MethodPost, "http://"+g.addr+"/locks/a", "", nil)
	if err != nil || status != http.StatusCreated {
		t.Errorf("%d %s, %v", status, body, err)
	}
	if err := g.end(syscall.SIGTERM); err != nil {
		t.Errorf("the gateway's end: %v", err)
	}
	if log := g.warnings(); !strings.Contains(log, "could not be sent") {
		t.Errorf("the log says %s", log)
	}
}
