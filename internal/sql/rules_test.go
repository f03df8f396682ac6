package sql

import (
	"errors"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
	"fencepost/internal/sql/sqltest"
)

// inForce returns which rules are in force, as far as a gateway has carried out the log.
func inForce(s *Store) int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.memory.Rules()
}

// The rules are raised once all gateways that were heard of lately know later ones; who does not holds that back, and is named. From then on
// a gateway that does not know them stops, and none like it starts, with a sentence that says whom to start.
func TestTheRulesOfADatabase(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]*sqltest.Server{"PostgreSQL": sqltest.Postgres(t), "MariaDB": sqltest.MariaDB(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := initialised(t, server.Database(t))
			earlier := Options{URL: url, Version: "v1", rules: 1, rulesEvery: 15 * time.Second, Logger: testLog(t)}
			later := earlier
			later.Version, later.rules = "v2", 2
			silent := earlier
			silent.rulesEvery = time.Hour // it says something at its start, and then nothing
			quiet := openGateway(t, silent)
			a, b := openGateway(t, later), openGateway(t, earlier)
			acquire(t, b, "a", time.Minute)
			await(t, "who holds it back is named", func() bool {
				f := a.rules.Load()
				return f != nil && strings.Contains(f.Detail, string(b.gateway)) && strings.Contains(f.Detail, "version v1") && a.memorySince() > 2*later.rulesEvery
			})
			if is := inForce(a); is != 1 {
				t.Fatalf("rules %d are in force, and a gateway does not know them", is)
			}
			b.Close()
			await(t, "the rules are raised", func() bool { return inForce(a) == 2 })
			select {
			case <-quiet.Failed():
			case <-time.After(2 * time.Minute):
				t.Fatal("a gateway goes on that does not know the rules")
			}
			for what, err := range map[string]error{"running": quiet.Cause(), "started": func() error {
				s, err := Open(t.Context(), earlier)
				if err == nil {
					s.Close()
				}
				return err
			}()} {
				if !errors.Is(err, machine.ErrRules) || !strings.Contains(err.Error(), "start version v2") {
					t.Errorf("%s: %v", what, err)
				}
			}
			acquire(t, a, "b", time.Minute)
			if err := a.save(t.Context(), 0, 0); err != nil {
				t.Fatal(err)
			}
			if s, err := Open(t.Context(), earlier); !errors.Is(err, machine.ErrRules) {
				t.Errorf("behind a snapshot: %v", err)
				if err == nil {
					s.Close()
				}
			}
		})
	}
}

// The newest rules are in force from the first lease on in a new database, which nobody uses who does not know them.
func TestTheRulesOfANewDatabase(t *testing.T) {
	t.Parallel()
	for _, server := range []*sqltest.Server{sqltest.Postgres(t), sqltest.MariaDB(t)} {
		s := openGateway(t, Options{URL: initialised(t, server.Database(t)), Version: "v2", Logger: testLog(t)})
		acquire(t, s, "a", time.Minute)
		if is := inForce(s); is != fencing.NewestRules {
			t.Errorf("rules %d are in force", is)
		}
	}
}

// memorySince returns for how long a gateway has listened to what the others know.
func (s *Store) memorySince() time.Duration {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.memory.since == 0 {
		return 0
	}
	return s.memory.Now().Sub(s.memory.since)
}
