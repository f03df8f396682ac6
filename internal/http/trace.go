package http

import (
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"fencepost/internal/fencing"
)

// Spans carry names of locks and public lease ids, which metrics never do: a trace is kept
// for a while and by sampling, and its reader looks for one lock. Attributes of HTTP are
// those of OpenTelemetry's semantic conventions 1.23 and later. Nothing here runs without
// Options.TracerProvider.

// tracerScope names the instrumentation in every span.
const tracerScope = "fencepost/internal/http"

// w3c reads the traceparent and tracestate of a request (W3C Trace Context).
var w3c propagation.TraceContext

// startSpan begins the span of a request, a child of its client's if it names one. What
// machines ask for all the time has none, nor what matched no route.
func (c *call) startSpan() {
	if c.s.tracer == nil || c.quiet {
		return
	}
	ctx := w3c.Extract(c.r.Context(), propagation.HeaderCarrier(c.r.Header))
	ctx, c.span = c.s.tracer.Start(ctx, c.endpoint.method+" "+c.endpoint.path, trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(attribute.String("http.request.method", c.endpoint.method), attribute.String("http.route", c.endpoint.path)))
	c.r = c.r.WithContext(ctx)
}

// traceNames notes which names a request is about.
func (c *call) traceNames(names ...fencing.Name) {
	if c.span == nil || !c.span.IsRecording() {
		return
	}
	if len(names) == 1 {
		c.span.SetAttributes(attribute.String("fencepost.lock", string(names[0])))
		return
	}
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = string(name)
	}
	c.span.SetAttributes(attribute.StringSlice("fencepost.locks", all))
}

// startWaitSpan begins the span of the time that a request spends in a queue.
func (c *call) startWaitSpan() {
	if c.span != nil {
		_, c.waitSpan = c.s.tracer.Start(c.r.Context(), "wait")
	}
}

func (c *call) endWaitSpan() {
	if c.waitSpan != nil {
		c.waitSpan.End()
		c.waitSpan = nil
	}
}

// endSpan says what the request came to.
func (c *call) endSpan() {
	if c.span == nil {
		return
	}
	c.endWaitSpan() // after a panic
	c.span.SetAttributes(attribute.String("fencepost.code", string(c.code)))
	if c.status != 0 { // 0: nobody was there to answer
		c.span.SetAttributes(attribute.Int("http.response.status_code", c.status))
	}
	if c.lease != "" {
		c.span.SetAttributes(attribute.String("fencepost.lease", string(c.lease)))
	}
	if c.status >= http.StatusInternalServerError {
		c.span.SetStatus(codes.Error, string(c.code))
		c.span.SetAttributes(attribute.String("error.type", string(c.code)))
	}
	c.span.End()
}

// traceID returns the id of the request's trace for its line in the log; empty if nobody
// keeps the trace.
func (c *call) traceID() string {
	if c.span == nil || !c.span.SpanContext().IsSampled() {
		return ""
	}
	return c.span.SpanContext().TraceID().String()
}
