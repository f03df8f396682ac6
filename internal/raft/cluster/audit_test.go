package cluster

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// text is written to by several nodes.
type text struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *text) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(b)
}

func (w *text) has(line ...string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range strings.Lines(w.b.String()) {
		all := true
		for _, part := range line {
			all = all && strings.Contains(l, part)
		}
		if all {
			return true
		}
	}
	return false
}

// A change of the cluster is in the audit, with who asked for it, from where, and what came of it.
func TestChangesAreAudited(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	said := &text{}
	first, more := alone(t), alone(t)
	more.list = []string{first.addr, more.addr}
	for _, n := range []*node{first, more} {
		n.audit = slog.New(slog.NewTextHandler(said, nil))
		n.start()
	}
	serves(t, first)
	command := commandOf(t, first, more)
	if _, err := command.Add(ctx, more.addr); err != nil {
		t.Fatal(err)
	}
	if _, err := command.Transfer(ctx, "127.0.0.1:1"); err == nil {
		t.Error("the leadership was handed to nobody")
	}
	removed(t, command, more.addr)
	for _, event := range []string{"cluster add", "cluster remove"} {
		if !said.has("msg=audit", `audit.event="`+event+`"`, "audit.node="+more.addr, "audit.client=127.0.0.1", "audit.by="+whoami(), "audit.code=ok") {
			t.Errorf("%s is not in the audit:\n%s", event, said.b.String())
		}
	}
	if !said.has(`audit.event="cluster transfer"`, "audit.node=127.0.0.1:1", "audit.code=refused") {
		t.Errorf("a refusal is not in the audit:\n%s", said.b.String())
	}
}
