package raft

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// A member that is away does not fill the log: what hashicorp/raft says of it comes once a minute.
func TestRepeatedWarnings(t *testing.T) {
	var said bytes.Buffer
	now := time.Unix(0, 0)
	logger := hclog.New(&hclog.LoggerOptions{Name: "raft", DisableTime: true,
		Output: newLogWriter(slog.New(slog.NewTextHandler(&said, nil)), func() time.Time { return now })})
	fail := func(peer string, backoff time.Duration) {
		logger.Error("failed to heartbeat to", "peer", peer, "backoff time", backoff, "error", errors.New("refused after "+backoff.String()))
	}
	want := func(lines int, what string) {
		t.Helper()
		if got := strings.Count(said.String(), "failed to heartbeat to"); got != lines {
			t.Errorf("%s: %d lines, want %d\n%s", what, got, lines, &said)
		}
	}
	for i := range 20 {
		fail("a:7001", time.Duration(i)*time.Second)
	}
	want(1, "one member")
	fail("b:7001", time.Second)
	want(2, "another")
	now = now.Add(warningPause)
	fail("a:7001", time.Second)
	want(3, "a minute later")
	for range 3 {
		logger.Info("entering follower state")
	}
	if got := strings.Count(said.String(), "follower"); got != 3 {
		t.Errorf("%d of 3 lines that warn of nothing", got)
	}
}
