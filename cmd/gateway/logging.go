package main

import (
	"context"
	"io"
	"log/slog"
)

// loggers returns the log of the settings and that of the audit, which has every line
// whatever the level of the log. Both write whole lines to w.
func (cfg *config) loggers(w io.Writer) (log, audit *slog.Logger) {
	everything := &slog.HandlerOptions{Level: slog.LevelDebug}
	handler := slog.Handler(slog.NewJSONHandler(w, everything))
	if cfg.LogFormat == "text" {
		handler = slog.NewTextHandler(w, everything)
	}
	return slog.New(threshold{handler, cfg.LogLevel}), slog.New(handler)
}

// threshold leaves out what is below a level.
type threshold struct {
	slog.Handler
	least slog.Level
}

func (t threshold) Enabled(_ context.Context, level slog.Level) bool { return level >= t.least }

func (t threshold) WithAttrs(attrs []slog.Attr) slog.Handler {
	return threshold{t.Handler.WithAttrs(attrs), t.least}
}

func (t threshold) WithGroup(name string) slog.Handler {
	return threshold{t.Handler.WithGroup(name), t.least}
}
