package http

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"

	"fencepost/internal/fencing"
)

// A break or an eviction whose line has no room is not carried out; one that has is, with its line where the room is, which is
// given back.
func TestNothingWithoutItsAudit(t *testing.T) {
	t.Parallel()
	var room bytes.Buffer
	var full error
	open := 0
	g := start(t, func(o *Options) {
		o.ReserveAudit = func() (*slog.Logger, func(), error) {
			if full != nil {
				return nil, nil, full
			}
			open++
			return slog.New(slog.NewJSONHandler(&room, nil)), func() { open-- }, nil
		}
	})
	held := g.do("POST", "/locks/a", "").want(t, 201)
	match := fmt.Sprintf(`If-Match: "%d"`, int64(held.number("fencing_token")))
	const waiter = "01AAAAAAAAAAAAAAAAAAAAAAAA"
	full = errors.New("nobody reads")
	for _, path := range []string{"/locks/a", "/locks/a?notice_ms=1000"} {
		a := g.do("DELETE", path, "", match).problem(t, 503, fencing.CodeUnavailable)
		if !strings.Contains(a.body, "nothing was done") || !strings.Contains(a.body, "FENCEPOST_AUDIT_REQUIRED") {
			t.Errorf("%s", a.body)
		}
	}
	g.do("DELETE", "/queues/a?lease="+waiter, "").problem(t, 503, fencing.CodeUnavailable)
	g.do("PUT", "/locks/a", "", "Lease-Id: "+held.text("lease_id")).want(t, 200) // it is held, without notice
	full = nil
	g.do("DELETE", "/queues/a?lease="+waiter, "").want(t, 404)
	g.do("DELETE", "/locks/a", "", match).want(t, 204)
	for _, event := range []string{"evict", "break"} {
		if n := strings.Count(room.String(), `"event":"`+event+`"`); n != 1 {
			t.Errorf("%d lines of %s:\n%s", n, event, &room)
		}
	}
	if open != 0 || strings.Contains(g.log.String(), `"msg":"audit"`) {
		t.Errorf("%d rooms are open; the log is\n%s", open, g.log)
	}
}

// The longest line about a break fits into the room that is set aside for it.
func TestMostAuditBytes(t *testing.T) {
	t.Parallel()
	var longest int
	for _, handler := range []func(io.Writer) slog.Handler{
		func(w io.Writer) slog.Handler { return slog.NewJSONHandler(w, nil) },
		func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) },
	} {
		var line bytes.Buffer
		g := startGuarded(t, func(o *Options) { o.Audit = slog.New(handler(&line)) })
		path := "/locks/ours/" + strings.Repeat("x", fencing.MaxNameBytes-len("ours/"))
		for _, char := range []string{"x", `\"`, "\u2028", "\U000e0001"} {
			line.Reset()
			reason := strings.Repeat(char, fencing.MaxBreakReasonBytes/len(strings.TrimPrefix(char, `\`)))
			g.do("DELETE", path, `{"reason":"`+reason+`"}`, g.as["admin"], `If-Match: "9007199254740991"`).want(t, 412)
			longest = max(longest, line.Len())
		}
	}
	if longest < 600 || longest > MostAuditBytes {
		t.Errorf("a line has %d bytes; %d are set aside", longest, MostAuditBytes)
	}
}

// /readyz?verbose says how the log is.
func TestLogFinding(t *testing.T) {
	t.Parallel()
	found := fencing.Finding{Check: "log", OK: true, Detail: "0 lines were lost"}
	g := start(t, func(o *Options) { o.LogFinding = func() fencing.Finding { return found } })
	check := func(want string) {
		t.Helper()
		a := g.do("GET", "/readyz?verbose", "").want(t, 200)
		var answer struct{ Checks []json.RawMessage }
		if err := json.Unmarshal([]byte(a.body), &answer); err != nil {
			t.Fatal(err)
		}
		for _, c := range answer.Checks {
			if string(c) == want {
				return
			}
		}
		t.Errorf("%s has no %s", a.body, want)
	}
	check(`{"name":"log","ok":true,"detail":"0 lines were lost"}`)
	found = fencing.Finding{Check: "log", Detail: "it hangs", Remedy: "read it"}
	check(`{"name":"log","ok":false,"detail":"it hangs","remedy":"read it"}`)
}
