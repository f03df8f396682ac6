package main

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
)

// remarks is a slog.Handler that keeps warnings as text, each once. It is for who
// asks the store something once, and says why there was no answer.
type remarks struct {
	about string // which node, if that is said
	said  *said
}

type said struct {
	mu   sync.Mutex
	list []remark
}

// remark is a warning, and the error that it was about.
type remark struct{ message, err string }

// mostRemarks bounds what is kept: the first says what the matter is.
const mostRemarks = 10

func newRemarks() *remarks { return &remarks{said: &said{}} }

// Enabled is slog.Handler.Enabled.
func (r *remarks) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

// Handle is slog.Handler.Handle.
func (r *remarks) Handle(_ context.Context, record slog.Record) error {
	next := remark{message: r.about + record.Message}
	record.Attrs(func(a slog.Attr) bool {
		if a.Key == "error" {
			next.err = a.Value.String()
		}
		return true
	})
	r.said.mu.Lock()
	defer r.said.mu.Unlock()
	if len(r.said.list) < mostRemarks && !slices.Contains(r.said.list, next) {
		r.said.list = append(r.said.list, next)
	}
	return nil
}

// WithAttrs is slog.Handler.WithAttrs.
func (r *remarks) WithAttrs(attrs []slog.Attr) slog.Handler {
	about := r.about
	for _, a := range attrs {
		if a.Key == "node" {
			about += a.Value.String() + ": "
		}
	}
	return &remarks{about: about, said: r.said}
}

// WithGroup is slog.Handler.WithGroup. Groups are of no use here.
func (r *remarks) WithGroup(string) slog.Handler { return r }

// beside is what was kept, a line each, but for what only repeats err; "" if there
// is nothing.
func (r *remarks) beside(err error) string {
	r.said.mu.Lock()
	defer r.said.mu.Unlock()
	var b strings.Builder
	for _, one := range r.said.list {
		if one.err == err.Error() {
			continue
		}
		text := one.message
		if one.err != "" {
			text += ": " + one.err
		}
		b.WriteString("\n  " + strings.ReplaceAll(text, "\n", "\n    "))
	}
	return b.String()
}
