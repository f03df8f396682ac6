package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"time"

	"fencepost/internal/fencing"
	lockhttp "fencepost/internal/http"
	"fencepost/internal/lines"
)

const (
	// mostLogLines and mostLogBytes bound what of the log waits for its reader.
	mostLogLines = 10_000
	mostLogBytes = 1 << 20

	// endOfLog bounds how long the end of the process waits for it.
	endOfLog = time.Second
)

// logs are where all that a gateway says goes while it serves. No line waits for its reader.
type logs struct {
	queue *lines.Queue
	log   *slog.Logger // of the settings
	audit *slog.Logger // has every line, whatever the level of the log

	// reserve sets room aside for a line of the audit: see lockhttp.Options. Nil: without room it is dropped.
	reserve func() (audit *slog.Logger, done func(), err error)
}

// logTo returns the logs that write to a queue, and has those libraries write there that use Go's default log.
func (cfg *config) logTo(queue *lines.Queue) logs {
	queue.Remark(func(l lines.Loss) []byte {
		var line bytes.Buffer
		slog.New(cfg.handler(&line)).Warn("lines of the log were lost: nobody read them, or they could not be written",
			"lines", l.Lines, "from", l.From, "until", l.Until)
		return line.Bytes()
	})
	handler := cfg.handler(queue)
	l := logs{queue: queue, log: slog.New(threshold{handler, cfg.LogLevel}), audit: slog.New(handler)}
	if cfg.AuditRequired {
		l.reserve = func() (*slog.Logger, func(), error) {
			room, err := queue.Reserve(lockhttp.MostAuditBytes)
			if err != nil {
				return nil, nil, err
			}
			return slog.New(cfg.handler(room)), room.Close, nil
		}
	}
	slog.SetDefault(l.log)
	return l
}

// handler writes every line to w, whole.
func (cfg *config) handler(w io.Writer) slog.Handler {
	everything := &slog.HandlerOptions{Level: slog.LevelDebug}
	if cfg.LogFormat == "text" {
		return slog.NewTextHandler(w, everything)
	}
	return slog.NewJSONHandler(w, everything)
}

// lost returns how many lines were lost.
func (l logs) lost() uint64 { return l.queue.State().Lost }

// condition returns the same, and whether lines can't be written now.
func (l logs) condition() (lost uint64, hangs bool) {
	s := l.queue.State()
	return s.Lost, !s.Well()
}

// finding says how the log is.
func (l logs) finding() fencing.Finding { return logFinding(l.condition()) }

// logFinding says how the log of a gateway is.
func logFinding(lost uint64, hangs bool) fencing.Finding {
	f := fencing.Finding{Check: "log", OK: !hangs, Detail: plural(int(lost), "line was", "lines were") + " lost since the start"}
	if hangs {
		f.Detail = "its lines can't be written, and are dropped once 1 MiB of them waits; " + f.Detail
		f.Remedy = "find out what reads the gateway's standard error (a container runtime, journald, a collector) and restart that, or make room on its disk"
	}
	return f
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
