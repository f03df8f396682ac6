package watchdog

import (
	"context"
	"time"

	"fencepost/internal/fencing"
)

const (
	// examinePause is how long an examination of the store is good for: Options.Examine.
	examinePause = time.Minute

	// reexaminePause is the same while something is at fault, so that a repair, or
	// the end of a fail-over, is seen soon.
	reexaminePause = 5 * time.Second

	// unexaminedPause is how soon a store that could not be examined is looked at
	// again.
	unexaminedPause = time.Second
)

// examination is what an examination has found.
type examination struct {
	at       time.Time
	findings []fencing.Finding
	refusal  error // nil if new leases may be granted
}

// Findings returns what the last examination of the store has found, and when
// that was: the zero time if it could not be examined yet.
func (w *Watchdog) Findings() ([]fencing.Finding, time.Time) {
	if e := w.examined.Load(); e != nil {
		return e.findings, e.at
	}
	return nil, time.Time{}
}

// Refusal says why nobody is to be granted a new lease: Options.Strict, and the
// store endangers a promise or could not be examined yet (CodeUnavailable). It is to
// be asked before an acquire is begun, so that there is nothing to take back; Join
// does not. Requests that wait already are served by whichever gateway hands on.
func (w *Watchdog) Refusal() error {
	if !w.strict {
		return nil
	}
	if e := w.examined.Load(); e != nil {
		return e.refusal
	}
	return strictly("it could not be examined yet")
}

// Endangering returns the findings that endanger a promise.
func Endangering(findings []fencing.Finding) (dangers []fencing.Finding) {
	for _, f := range findings {
		if !f.OK && f.Promise != "" {
			dangers = append(dangers, f)
		}
	}
	return dangers
}

// Examine examines the store now, and keeps what is found. A store that can't be
// examined is taken to be as it was. It may be called before Start. One waits for another.
func (w *Watchdog) Examine(ctx context.Context) ([]fencing.Finding, error) {
	select {
	case w.examining <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-w.examining }()
	findings, err := w.Store.Examine(ctx)
	if err == nil {
		w.note(findings)
	}
	return findings, err
}

// examine examines the store at once, or when what is known of it is old, and from
// time to time until the watchdog is stopped.
func (w *Watchdog) examine() {
	pause := time.Duration(0)
	if e := w.examined.Load(); e != nil {
		pause = w.examinePause(e)
	}
	for w.sleepUnless(w.outdated, pause) {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		_, err := w.Examine(ctx)
		cancel()
		pause = unexaminedPause
		if err == nil {
			pause = w.examinePause(w.examined.Load())
		}
	}
}

// Reexamine has the store examined soon: what is known of it is old. It may be called before Start.
func (w *Watchdog) Reexamine() {
	select {
	case w.outdated <- struct{}{}:
	default: // it will be anyway
	}
}

// examinePause says when to look again.
func (w *Watchdog) examinePause(e *examination) time.Duration {
	if len(faults(e.findings)) > 0 {
		return min(reexaminePause, w.examineEvery)
	}
	return w.examineEvery
}

// note keeps what was found, and logs what is new or gone.
func (w *Watchdog) note(findings []fencing.Finding) {
	before, _ := w.Findings()
	e := &examination{at: time.Now(), findings: findings}
	if dangers := Endangering(findings); len(dangers) > 0 {
		e.refusal = strictly(placed(dangers[0]))
	}
	w.examined.Store(e)

	known, found := faults(before), faults(findings)
	for _, f := range findings {
		was, ok := known[placeOf(f)]
		if f.OK || ok && was.Promise == f.Promise && was.Remedy == f.Remedy {
			continue // what else differs are figures
		}
		message := "the store needs attention"
		if f.Promise != "" {
			message = "the store endangers a promise"
		}
		w.log.Warn(message, findingAttrs(f, "promise", f.Promise, "detail", f.Detail, "remedy", f.Remedy)...)
	}
	for _, was := range before {
		if _, still := found[placeOf(was)]; !was.OK && !still {
			w.log.Info("a finding about the store is resolved", findingAttrs(was, "promise", was.Promise, "detail", was.Detail)...)
		}
	}
}

// place is where something is at fault.
type place struct{ node, check string }

func placeOf(f fencing.Finding) place { return place{f.Node, f.Check} }

func faults(findings []fencing.Finding) map[place]fencing.Finding {
	at := map[place]fencing.Finding{}
	for _, f := range findings {
		if !f.OK {
			at[placeOf(f)] = f
		}
	}
	return at
}

func findingAttrs(f fencing.Finding, more ...any) []any {
	attrs := []any{"check", f.Check}
	if f.Node != "" {
		attrs = append(attrs, "node", f.Node)
	}
	return append(attrs, more...)
}

// placed is what a finding says, and of which server.
func placed(f fencing.Finding) string {
	if f.Node == "" {
		return f.Detail
	}
	return f.Node + ": " + f.Detail
}

func strictly(why string) error {
	return &fencing.Error{
		Code: fencing.CodeUnavailable, RetryAfter: reexaminePause,
		Detail: "this gateway is strict and grants nothing while the store endangers a promise: " + why,
	}
}
