package sessions

import (
	"testing"

	"fencepost/internal/seed"
	"fencepost/verify/check"
	"fencepost/verify/system"
)

// The short version; go run ./verify -only sessions-redis and so on have the long ones.
func TestSessions(t *testing.T) {
	for _, o := range []system.Options{
		{Store: system.Embedded},
		{Store: system.Redis, Gateways: 2},
		{Store: system.Raft, Gateways: 3},
	} {
		t.Run(string(o.Store), func(t *testing.T) {
			t.Parallel()
			s := system.StartTest(t, o)
			r := check.NewResult(seed.Of(t))
			if err := (Sessions{Rounds: 1}).Run(t.Context(), s, r); err != nil {
				t.Fatal(err)
			}
			if n, violations := r.Violations(); n > 0 {
				t.Errorf("%d violations: %q", n, violations)
			}
			t.Log(r, r.Notes())
		})
	}
}
