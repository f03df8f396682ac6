package fencetest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"
)

// verdict is what a write may come to.
type verdict int

const (
	admitted verdict = iota
	refused
	notAdmitted // refused, or an error: what is no token may be both
	either
)

// value returns a value that was not written before.
func (r *run) value() string {
	r.values++
	return "v" + strconv.Itoa(r.values)
}

// try makes one write of a new value: see write.
func (r *run) try(w Write, stored string, want verdict) (string, error) {
	w.Value = r.value()
	return r.write(w, stored, want)
}

// write makes one write while nobody else writes the resource, which has stored, and
// judges what came of it. It returns what is stored then.
func (r *run) write(w Write, stored string, want verdict) (string, error) {
	err := r.storage.Write(r.ctx, w)
	r.now.count(err)
	if r.ctx.Err() != nil {
		return stored, r.ctx.Err()
	}
	switch {
	case err == nil && (want == refused || want == notAdmitted):
		r.through("%s was admitted", described(w))
	case err != nil && want == admitted:
		r.through("%s was not admitted: %v", described(w), err)
	case want == refused && !errors.Is(err, ErrRefused):
		r.through("%s was not refused, but failed: %v", described(w), err)
	}
	content, readErr := r.storage.Read(r.ctx, w.Resource)
	switch {
	case errors.Is(readErr, errors.ErrUnsupported):
		r.report.Blind = true
		return stored, nil
	case readErr != nil:
		return stored, fmt.Errorf("reading: %w", readErr)
	case err == nil && content != w.Value:
		r.through("%s was admitted, and not written: %q is stored", described(w), content)
	case err != nil && content == w.Value && want != either:
		r.through("%s was written, whatever was answered (%v)", described(w), err)
	case err != nil && content != stored && content != w.Value:
		r.through("%s was not admitted (%v), and %q became %q", described(w), err, stored, content)
	}
	return content, nil
}

func described(w Write) string {
	text := fmt.Sprintf("%s, token %q", w.Resource, w.Token)
	if w.Slot >= 0 {
		text += fmt.Sprintf(" in slot %d", w.Slot)
	}
	return text
}

// through notes something that should not be.
func (r *run) through(format string, args ...any) {
	r.now.Through++
	if r.now.Through <= keptFindings {
		r.report.Findings = append(r.report.Findings, r.now.Attack+": "+fmt.Sprintf(format, args...))
	}
}

// call is a write of several at once.
type call struct {
	Write
	token      int64
	start, end time.Time
	err        error
}

// concurrent lets writers at a new resource at once. Each writes some times with its token, but for
// the newest, which writes once: what is written late by another stands then.
func (r *run) concurrent() error {
	for range r.Rounds {
		resource, tokens, err := r.resource(r.Writers)
		if err != nil {
			return err
		}
		calls := r.crowd(resource, tokens)
		for _, c := range calls {
			r.now.count(c.err)
		}
		if err := r.ctx.Err(); err != nil {
			return err
		}
		if err := r.judgeCrowd(resource, calls); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) crowd(resource string, tokens []int64) []call {
	calls := make([]call, repeats*(len(tokens)-1)+1)
	begin := make(chan struct{})
	var writers sync.WaitGroup
	for i, token := range tokens {
		own := calls[repeats*i : min(repeats*(i+1), len(calls))]
		writers.Go(func() {
			<-begin
			for k := range own {
				c := call{token: token, Write: r.plain(resource, token)}
				c.Value = fmt.Sprintf("v%d-%d", token, k)
				c.start = time.Now()
				c.err = r.storage.Write(r.ctx, c.Write)
				c.end = time.Now()
				own[k] = c
			}
		})
	}
	close(begin)
	writers.Wait()
	return calls
}

// judgeCrowd judges what came of writers at once: no answer contradicts those that were
// given before its write began, and what is stored is of the highest token.
func (r *run) judgeCrowd(resource string, calls []call) error {
	var highest call
	var failed error // the last of those that were neither admitted nor refused: contention may do that
	for _, c := range calls {
		if c.err == nil && c.token >= highest.token {
			highest = c
		}
		overtaken, explained := false, false
		for _, other := range calls {
			if other.token > c.token && !errors.Is(other.err, ErrRefused) {
				overtaken = overtaken || other.err == nil && other.end.Before(c.start)
				explained = explained || other.start.Before(c.end)
			}
		}
		switch {
		case c.err == nil && overtaken:
			r.through("%s was admitted after a newer one had been", described(c.Write))
		case errors.Is(c.err, ErrRefused) && !explained:
			r.through("%s was refused, and nothing newer had come", described(c.Write))
		case c.err != nil && !errors.Is(c.err, ErrRefused):
			failed = c.err
		}
	}
	if last := calls[len(calls)-1]; highest.token < last.token {
		r.through("%s was never admitted, though nothing is newer: %v", described(last.Write), failed)
	}
	content, err := r.storage.Read(context.WithoutCancel(r.ctx), resource)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		r.report.Blind = true
		return nil
	case err != nil:
		return fmt.Errorf("reading: %w", err)
	}
	for _, c := range calls {
		if c.Value == content {
			if c.token < highest.token {
				r.through("%s is still stored, though %d was admitted", described(c.Write), highest.token)
			}
			if errors.Is(c.err, ErrRefused) {
				r.through("%s was refused, and is stored", described(c.Write))
			}
			return nil
		}
	}
	r.through("%s: %q is stored, which nobody wrote", resource, content)
	return nil
}
