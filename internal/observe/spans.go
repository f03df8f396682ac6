package observe

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"fencepost/internal/fencing"
)

// scope names the instrumentation in every span; collectors may select by it, so it stays.
const scope = "fencepost/internal/tracing"

// Trace has each operation of a request be a span "store <operation>" from now on, a child of the
// span in its context, with its code and the kind of store (as in FENCEPOST_STORE, without what
// stands behind the colon). A context without a span gets none, nor does what a gateway does by
// itself: heartbeats, what is due, asking again for those who wait. It is called before the
// store is used.
func (s *Store) Trace(kind string, provider trace.TracerProvider) {
	s.tracer, s.kind = provider.Tracer(scope), attribute.String("fencepost.store", kind)
}

// beginTraced begins a call that has a span if its request has one.
func (s *Store) beginTraced(ctx context.Context, operation string) (context.Context, call) {
	c := begin(operation)
	if s.tracer != nil && trace.SpanContextFromContext(ctx).IsValid() {
		ctx, c.span = s.tracer.Start(ctx, "store "+operation, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(s.kind), trace.WithTimestamp(c.start))
	}
	return ctx, c
}

// endSpan ends the span of a call, if it has one. What the store has decided is no fault: a lock
// may be held.
func (c call) endSpan(took time.Duration, code fencing.Code) {
	if c.span == nil {
		return
	}
	c.span.SetAttributes(attribute.String("fencepost.code", string(code)))
	switch code {
	case fencing.CodeUnavailable, fencing.CodeClockSkew, fencing.CodeNotReplicated:
		c.span.SetStatus(codes.Error, string(code))
	}
	c.span.End(trace.WithTimestamp(c.start.Add(took)))
}
