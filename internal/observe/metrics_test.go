package observe

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// measured is a store on a clock of the test's, with its metrics.
func measured(t *testing.T) (store *Store, clock *fencing.Instant, reg *prometheus.Registry) {
	now := fencingtest.Epoch
	reg = prometheus.NewPedanticRegistry()
	model := fencingtest.NewModel(func() fencing.Instant { return now })
	t.Cleanup(func() { model.Close() })
	return Wrap(model, reg), &now, reg
}

func acquire(t *testing.T, s *Store, name fencing.Name) fencing.AcquireRequest {
	t.Helper()
	r := fencing.AcquireRequest{
		Name: name, Lease: fencing.NewLeaseID(time.Now()), Stamp: fencing.NewStamp(),
		Mode: fencing.ModeExclusive, Hold: 1, TTL: 10 * time.Second,
	}
	if _, err := s.Do(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	return r
}

func expect(t *testing.T, reg *prometheus.Registry, want string, names ...string) {
	t.Helper()
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
}

func TestLivesAreCounted(t *testing.T) {
	s, clock, reg := measured(t)
	released, broken, expired := acquire(t, s, "released"), acquire(t, s, "broken"), acquire(t, s, "expired")
	retry := released
	retry.Stamp = fencing.NewStamp()
	if _, err := s.Do(t.Context(), retry); err != nil { // grants nothing new
		t.Fatal(err)
	}
	*clock = clock.Add(4 * time.Second)
	if _, err := s.Do(t.Context(), fencing.RenewRequest{Name: released.Name, Lease: released.Lease}); err != nil {
		t.Fatal(err)
	}
	expect(t, reg, `
# HELP fencepost_locks_held Names with a live lease, in the whole store; expired ones count until they are reaped.
# TYPE fencepost_locks_held gauge
fencepost_locks_held 3
# HELP fencepost_leases_granted_total Leases granted through this gateway.
# TYPE fencepost_leases_granted_total counter
fencepost_leases_granted_total 3
`, "fencepost_locks_held", "fencepost_leases_granted_total")
	if n, sum := histogram(t, reg, "fencepost_renew_margin_ratio"); n != 1 || sum != 0.6 {
		t.Errorf("renew margin: %d observations with the sum %v, want one of 0.6", n, sum)
	}

	if _, err := s.Do(t.Context(), fencing.ReleaseRequest{Name: released.Name, Lease: released.Lease}); err != nil {
		t.Fatal(err)
	}
	out, err := s.Do(t.Context(), fencing.InspectRequest{Name: broken.Name})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Do(t.Context(), fencing.BreakRequest{Name: broken.Name, Token: out.Lock.LastToken}); err != nil {
		t.Fatal(err)
	}
	*clock = clock.Add(8 * time.Second)
	if _, err := s.Expire(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Do(t.Context(), fencing.ReleaseRequest{Name: expired.Name, Lease: expired.Lease}); err == nil {
		t.Fatal("an expired lease was released")
	}
	expect(t, reg, `
# HELP fencepost_leases_ended_total Leases that this gateway ended or whose end it noticed, by reason.
# TYPE fencepost_leases_ended_total counter
fencepost_leases_ended_total{reason="broken"} 1
fencepost_leases_ended_total{reason="expired"} 1
fencepost_leases_ended_total{reason="released"} 1
# HELP fencepost_leases_lost_total Requests of former holders that came too late, by operation and reason.
# TYPE fencepost_leases_lost_total counter
fencepost_leases_lost_total{operation="release",reason="expired"} 1
fencepost_leases_lost_total{operation="release",reason="superseded"} 0
fencepost_leases_lost_total{operation="renew",reason="expired"} 0
fencepost_leases_lost_total{operation="renew",reason="superseded"} 0
# HELP fencepost_locks_held Names with a live lease, in the whole store; expired ones count until they are reaped.
# TYPE fencepost_locks_held gauge
fencepost_locks_held 0
`, "fencepost_leases_ended_total", "fencepost_leases_lost_total", "fencepost_locks_held")
	if n, sum := histogram(t, reg, "fencepost_lease_hold_seconds"); n != 3 || sum != 4+4+10 {
		t.Errorf("hold times: %d observations with the sum %v, want three of 18 s", n, sum)
	}
	if n, sum := histogram(t, reg, "fencepost_late_seconds"); n != 1 || sum != 2 {
		t.Errorf("lateness: %d observations with the sum %v, want one of 2 s", n, sum)
	}
}

// A store out of reach is counted as such, and leaves the other metrics alone.
func TestAStoreOutOfReach(t *testing.T) {
	s, _, reg := measured(t)
	r := acquire(t, s, "a")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := s.Do(t.Context(), fencing.RenewRequest{Name: r.Name, Lease: r.Lease})
	if refusal := new(fencing.Error); !errors.As(err, &refusal) || refusal.Code != fencing.CodeUnavailable {
		t.Fatalf("a closed store answered %v", err)
	}
	expect(t, reg, `
# HELP fencepost_store_errors_total Store operations answered with a 503, by code: refused (quarantined), or with an unknown outcome.
# TYPE fencepost_store_errors_total counter
fencepost_store_errors_total{code="unavailable",operation="renew"} 1
`, "fencepost_store_errors_total", "fencepost_locks_held")
}

// No label may have values without bound.
func TestNoMetricCarriesAName(t *testing.T) {
	s, _, reg := measured(t)
	r := acquire(t, s, "canary/name")
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, secret := range []string{"canary", string(r.Lease.Public()), r.Lease.Reveal()} {
			if strings.Contains(family.String(), secret) {
				t.Errorf("%s carries %q", family.GetName(), secret)
			}
		}
	}
}

func TestPoolAndBuild(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	RegisterBuild(reg, "v1", "go1", "redis")
	RegisterPool(reg, func() Pool { return Pool{Hits: 7, Total: 3, Idle: 2} })
	RegisterLosses(reg, func() int64 { return 64 })
	RegisterPanics(reg, func() int64 { return 2 })
	RegisterTurnsEnded(reg, func() int64 { return 5 })
	expect(t, reg, `
# HELP fencepost_store_panics_total Operations that could not be carried out because of a fault of the gateway; its log has each of them.
# TYPE fencepost_store_panics_total counter
fencepost_store_panics_total 2
# HELP fencepost_store_turns_ended_total Sessions in the database that this gateway ended because another gateway stood still in its turn and kept all others waiting.
# TYPE fencepost_store_turns_ended_total counter
fencepost_store_turns_ended_total 5
# HELP fencepost_store_losses_total Times that this gateway found a part of the store that may have lost leases; every restart or fail-over counts, even if nothing was lost.
# TYPE fencepost_store_losses_total counter
fencepost_store_losses_total 64
# HELP fencepost_build_info Version of the gateway; always 1.
# TYPE fencepost_build_info gauge
fencepost_build_info{go_version="go1",store="redis",version="v1"} 1
# HELP fencepost_store_pool_hits_total Times a free connection was found in the pool.
# TYPE fencepost_store_pool_hits_total counter
fencepost_store_pool_hits_total 7
# HELP fencepost_store_pool_idle_connections Idle connections in the pool.
# TYPE fencepost_store_pool_idle_connections gauge
fencepost_store_pool_idle_connections 2
`, "fencepost_store_panics_total", "fencepost_store_turns_ended_total", "fencepost_store_losses_total", "fencepost_build_info", "fencepost_store_pool_hits_total", "fencepost_store_pool_idle_connections")
}

// histogram returns the observations of a histogram, over all its labels.
func histogram(t *testing.T, reg *prometheus.Registry, name string) (count uint64, sum float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			for _, m := range family.GetMetric() {
				count += m.GetHistogram().GetSampleCount()
				sum += m.GetHistogram().GetSampleSum()
			}
		}
	}
	return count, sum
}
