// Package tracing makes a span of each thing that a request asks of a store, as a
// fencing.Store around a fencing.Store. What a gateway does by itself (heartbeats, what is
// due, asking again for those who wait) belongs to no request and has no span.
package tracing

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"fencepost/internal/fencing"
)

// scope names the instrumentation in every span.
const scope = "fencepost/internal/tracing"

// Store is a fencing.Store that traces another one.
type Store struct {
	fencing.Store
	tracer trace.Tracer
	kind   attribute.KeyValue
}

// Wrap returns store traced: each operation of a request is a span "store <operation>",
// a child of the span in its context, with its code and the kind of store (as in
// FENCEPOST_STORE, without what stands behind the colon). A context without a span gets none.
func Wrap(store fencing.Store, kind string, provider trace.TracerProvider) *Store {
	return &Store{Store: store, tracer: provider.Tracer(scope), kind: attribute.String("fencepost.store", kind)}
}

// traced runs one operation in a span.
func traced[R, Out any](s *Store, ctx context.Context, operation string, r R, run func(context.Context, R) (Out, error)) (Out, error) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return run(ctx, r)
	}
	ctx, span := s.tracer.Start(ctx, "store "+operation, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(s.kind))
	defer span.End()
	out, err := run(ctx, r)
	code := codeOf(err)
	span.SetAttributes(attribute.String("fencepost.code", string(code)))
	if !decided(code) {
		span.SetStatus(codes.Error, string(code))
	}
	return out, err
}

// codeOf returns the code of an error; an error without one is that of a store that could
// not be asked.
func codeOf(err error) fencing.Code {
	if err == nil {
		return fencing.CodeOK
	}
	if refusal, ok := errors.AsType[*fencing.Error](err); ok {
		return refusal.Code
	}
	return fencing.CodeUnavailable
}

// decided reports whether the store came to a decision: a lock that is held is no fault.
func decided(code fencing.Code) bool {
	switch code {
	case fencing.CodeUnavailable, fencing.CodeClockSkew, fencing.CodeNotReplicated:
		return false
	}
	return true
}

// Do implements fencing.Store.
func (s *Store) Do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	return traced(s, ctx, fencing.Verb(op), op, s.Store.Do)
}

// List implements fencing.Store.
func (s *Store) List(ctx context.Context, r fencing.ListRequest) (fencing.ListPage, error) {
	return traced(s, ctx, "list", r, s.Store.List)
}
