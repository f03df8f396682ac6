package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestTraceParent: the trace of the environment goes with every request, if it is one.
func TestTraceParent(t *testing.T) {
	const good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	var got http.Header
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header
		w.Write([]byte(`{"locks":[]}`))
	}))
	defer gateway.Close()
	t.Setenv("FENCEPOST", gateway.URL)
	for _, c := range []struct{ parent, state, sent, sentState string }{
		{good, "", good, ""}, {good, "a=1,b=2", good, "a=1,b=2"}, {"", "a=1", "", ""},
		{"nonsense", "a=1", "", ""}, {good + "-x", "", "", ""}, {strings.ToUpper(good), "", "", ""}, {"01" + good[2:], "", "", ""}, {good + "\nX: y", "", "", ""},
		{"00-00000000000000000000000000000000-00f067aa0ba902b7-01", "", "", ""}, {"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", "", "", ""},
		{good, "a=1\nX: y", good, ""}, {good, strings.Repeat("a", maxTraceState+1), good, ""},
	} {
		t.Setenv(parentVariable, c.parent)
		t.Setenv(stateVariable, c.state)
		var out bytes.Buffer
		if status := run(t.Context(), []string{"ls"}, &out, &out); status != 0 {
			t.Errorf("%q %q: status %d: %s", c.parent, c.state, status, &out)
			continue
		}
		if got.Get("Traceparent") != c.sent || got.Get("Tracestate") != c.sentState {
			t.Errorf("%q %q: sent are %q %q", c.parent, c.state, got["Traceparent"], got["Tracestate"])
		}
	}
}
