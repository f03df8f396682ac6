package clients

import (
	"testing"

	"fencepost/internal/seed"
	"fencepost/verify/check"
)

// The short version; go run ./verify -only clients-do,clients-lockctl has the long one.
func TestRounds(t *testing.T) {
	for _, kind := range []Holder{Do, Lockctl} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			r := check.NewResult(seed.Of(t))
			if err := (Rounds{Holder: kind, Rounds: 4}).Run(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if n, violations := r.Violations(); n > 0 {
				t.Errorf("%d violations, seed %d: %q", n, r.Seed, violations)
			}
			t.Log(r, r.Notes())
		})
	}
}

// The programs of docs/clients.md. Java is big: where it is not there its program is not run
// here, which the log says; go run ./verify -only languages then fails.
func TestLanguages(t *testing.T) {
	t.Parallel()
	r := check.NewResult(1)
	if err := (Languages{Page: "../../docs/clients.md"}).Run(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	for _, command := range (Languages{}).Missing() {
		if command != "java" {
			t.Errorf("%s is not there: make deps installs it", command)
		}
	}
	if n, violations := r.Violations(); n > 0 {
		t.Errorf("%d violations: %q", n, violations)
	}
	t.Log(r, r.Notes())
}
