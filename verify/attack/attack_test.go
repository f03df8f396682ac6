package attack

import (
	"os"
	"testing"

	"fencepost/internal/seed"
	"fencepost/verify/check"
	"fencepost/verify/system"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

// The short version; go run ./verify -only attack-redis has the long one.
func TestAttack(t *testing.T) {
	s := system.StartTest(t, system.Options{Store: system.Redis, Gateways: 2})
	for title, o := range map[string]Attack{"fenced": {Pauses: 12}, "unfenced": {Pauses: 12, Unfenced: true}} {
		t.Run(title, func(t *testing.T) {
			r := check.NewResult(seed.Of(t))
			if err := o.Run(t.Context(), s, r); err != nil {
				t.Fatal(err)
			}
			if n, violations := r.Violations(); n > 0 {
				t.Errorf("%d violations, seed %d: %q", n, r.Seed, violations)
			}
			t.Log(r)
		})
	}
}

// Storage that takes what is stale is found out, and so is an attack that attempts
// nothing.
func TestJudge(t *testing.T) {
	storage, err := startPart("unfenced storage")
	if err != nil {
		t.Fatal(err)
	}
	defer storage.stop()
	url := <-storage.lines
	client := system.NewClient(1)
	defer client.Close()
	for _, tt := range []struct {
		token      string
		violations int
	}{{"2", 1}, {"1", 1}} { // nothing stale was attempted; one was admitted
		a, err := client.Do(t.Context(), "PUT", url+"/a?chunk=0&token="+tt.token, "", "")
		if err != nil || a.Status != 204 {
			t.Fatalf("%s, %v", a, err)
		}
		r := check.NewResult(1)
		if err := (Attack{Pauses: 1}).judge(t.Context(), url, r); err != nil {
			t.Fatal(err)
		}
		if n, violations := r.Violations(); n != tt.violations {
			t.Errorf("after token %s: %d violations %q", tt.token, n, violations)
		}
	}
}
