package sql

import (
	"context"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
	"fencepost/internal/machine"
	"fencepost/internal/sql/sqltest"
)

// In the tests that every change has to pass one case in so many is played.
const sampled = 12

func TestConformance(t *testing.T) {
	t.Parallel()
	testConformance(t, sqltest.Postgres(t), sampled)
}

func TestConformanceMariaDB(t *testing.T) {
	t.Parallel()
	testConformance(t, sqltest.MariaDB(t), sampled)
}

func TestSystemConformance(t *testing.T) {
	t.Parallel()
	testConformance(t, sqltest.Postgres(t), 0)
}

func TestSystemConformanceMariaDB(t *testing.T) {
	t.Parallel()
	testConformance(t, sqltest.MariaDB(t), 0)
}

// testConformance plays one in so many cases, 0 is all, and those where bounds are low. It does so where each turn asks first, and
// where turns are tried without, though another gateway may have written.
func testConformance(t *testing.T, server *sqltest.Server, sample int) {
	of := fencingtest.Capabilities{OwnClock: true, Gateways: true, OneState: true, Quarantine: true, Sample: sample}
	run := func(name string, o Options, c fencingtest.Capabilities) {
		t.Run(name, func(t *testing.T) {
			place := newPlace(t, server)
			fencingtest.Run(t, func(t testing.TB) fencingtest.Backend { return place.open(t, o) }, c)
		})
	}
	run("usual", Options{}, of)
	few := of
	few.StepLimit = 2
	run("small steps", Options{stepLimit: few.StepLimit}, few)
	few = of
	few.MaxHolders = 2
	run("few holders", Options{MaxHolders: few.MaxHolders}, few)
	if sample == 0 {
		t.Run("four gateways", func(t *testing.T) {
			place := newPlace(t, server)
			place.gateways = 4
			some := of
			some.Sample = 4
			fencingtest.Run(t, func(t testing.TB) fencingtest.Backend { return place.open(t, Options{}) }, some)
		})
	}
	if server != sqltest.Postgres(t) { // the others have no such turns
		return
	}
	few.Histories = 8
	run("few holders, alone", Options{MaxHolders: few.MaxHolders, aloneAfter: time.Nanosecond}, few)
	if sample == 0 {
		run("alone", Options{aloneAfter: time.Nanosecond}, of)
	}
}

// arriveBy has the log say that somebody serves.
func (s *Store) arriveBy(a fencing.Arrival) (fencing.Quarantine, error) {
	it := &item{ops: []operation{{encoded: machine.Arrive(a)}}}
	var q fencing.Quarantine
	it.look = func(l *looked) { q = l.machine.State().Quarantine }
	err := s.await(context.Background(), it)
	return q, err
}
