package watchdog

import (
	"slices"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// A waiter whose lease the store refuses to make firm is told so at once, and the next one has the lock: it does not ask again and again.
func TestFutile(t *testing.T) {
	for what, refuses := range map[string][]string{"confirmation": {"confirm"}, "question": {"confirm", "acquire"}} {
		for _, code := range []fencing.Code{fencing.CodeUnavailable, fencing.CodeInvalidRequest} {
			inWorld(t, func(w *world) {
				holder := w.ask(0, request("a"))
				first, next := w.ask(1, request("a")), w.ask(0, request("a"))
				w.wires[1].Set(func(wire *fencingtest.Wire) {
					wire.Before = func(op string) error {
						if slices.Contains(refuses, op) {
							return &fencing.Error{Code: code, Futile: true}
						}
						return nil
					}
				})
				if what == "question" { // the grant is not heard of
					w.wires[1].Set(func(wire *fencingtest.Wire) { wire.Message = func(fencing.Grant, func()) {} })
				}
				began := time.Now()
				w.release(0, holder)
				if what == "question" {
					advance(2 * fencing.HeartbeatInterval)
				}
				w.refused(first, code)
				w.holds(next)
				if took := time.Since(began); took > 2*fencing.HeartbeatInterval+time.Second {
					t.Errorf("%s: the next one has the lock after %s", what, took)
				}
				w.release(0, next)
			})
		}
	}
}
