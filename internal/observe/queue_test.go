package observe

import (
	"context"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

func TestWhatBecomesOfWaiters(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	o := NewObserver(reg)
	o.Waiting(3)
	o.Waiting(-1)
	o.Waited(2*time.Second, "granted")
	o.Waited(3*time.Second, "wait_timeout")
	o.HandedOver(time.Millisecond)
	o.TakenBack()
	o.FoundLost()
	o.FoundLost()
	o.Dropped("lapsed")
	expect(t, reg, `
# HELP fencepost_queue_drops_total Requests that were not admitted to the queue (name_full, process_full, draining), or lost their place and queued again (lapsed).
# TYPE fencepost_queue_drops_total counter
fencepost_queue_drops_total{reason="lapsed"} 1
fencepost_queue_drops_total{reason="name_full"} 0
fencepost_queue_drops_total{reason="process_full"} 0
# HELP fencepost_queue_grants_taken_back_total Grants to waiting requests whose client had already left; they were taken back.
# TYPE fencepost_queue_grants_taken_back_total counter
fencepost_queue_grants_taken_back_total 1
# HELP fencepost_queue_lost_messages_total Grants found by a heartbeat because no message or answer announced them.
# TYPE fencepost_queue_lost_messages_total counter
fencepost_queue_lost_messages_total 2
# HELP fencepost_queue_waiters Requests waiting at this gateway now.
# TYPE fencepost_queue_waiters gauge
fencepost_queue_waiters 2
`, "fencepost_queue_drops_total", "fencepost_queue_grants_taken_back_total", "fencepost_queue_lost_messages_total", "fencepost_queue_waiters")
	if n, sum := histogram(t, reg, "fencepost_queue_wait_seconds"); n != 2 || sum != 5 {
		t.Errorf("waits: %d observations with the sum %v, want two of 5 s", n, sum)
	}
	if n, sum := histogram(t, reg, "fencepost_queue_handoff_seconds"); n != 1 || sum != 0.001 {
		t.Errorf("hand-offs: %d observations with the sum %v, want one of 1 ms", n, sum)
	}
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("the names break conventions: %v, %v", problems, err)
	}
}

// listener is a fencing.Listener that keeps what it hears.
type listener struct {
	fencing.Listener
	heard []fencing.Grant
}

func (l *listener) Granted(g fencing.Grant, _ fencing.Instant, _ time.Time) {
	l.heard = append(l.heard, g)
}

// A lease counts once, whether it was had at once or handed over, here or by
// another gateway.
func TestHandedOverLeasesAreCounted(t *testing.T) {
	now := fencingtest.Epoch
	clock := func() fencing.Instant { return now }
	reg := prometheus.NewPedanticRegistry()
	model := fencingtest.NewModel(clock)
	elsewhere := model.Second()
	s, heard := Wrap(model, reg), &listener{}
	s.Listen(heard)
	ask := func(store fencing.Store) fencing.AcquireRequest {
		r := fencing.AcquireRequest{
			Name: "a", Lease: fencing.NewLeaseID(time.Now()), Stamp: fencing.NewStamp(),
			Mode: fencing.ModeExclusive, Hold: 1, TTL: 10 * time.Second, Wait: time.Second,
		}
		if _, err := store.Do(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	release := func(store fencing.Store, r fencing.AcquireRequest) {
		if _, err := store.Do(t.Context(), fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease}); err != nil {
			t.Fatal(err)
		}
	}
	granted := func(want float64) {
		t.Helper()
		if got := testutil.ToFloat64(s.granted); got != want {
			t.Errorf("%v leases were granted, want %v", got, want)
		}
	}
	first, second, far, last := ask(s), ask(s), ask(elsewhere), ask(s)
	granted(1)
	release(s, first)
	granted(2)
	release(s, second)
	granted(2) // the other gateway's
	if _, err := elsewhere.Do(t.Context(), fencing.ConfirmRequest{Name: "a", Lease: far.Lease, Stamp: far.Stamp}); err != nil {
		t.Fatal(err)
	}
	release(elsewhere, far)
	granted(2) // not confirmed yet
	if _, err := s.Do(t.Context(), fencing.ConfirmRequest{Name: "a", Lease: last.Lease, Stamp: last.Stamp}); err != nil {
		t.Fatal(err)
	}
	granted(3)
	if len(heard.heard) != 2 {
		t.Errorf("%d grants were heard of, want 2", len(heard.heard))
	}
}

// Every method that asks the store is timed.
func TestAllOperationsAreTimed(t *testing.T) {
	s, _, reg := measured(t)
	ctx := context.Background()
	r := fencing.NewLeaseID(time.Now())
	s.Do(ctx, fencing.AcquireRequest{Name: "a", Lease: r, Stamp: "1", Mode: fencing.ModeExclusive, Hold: 1, TTL: time.Second})
	s.Do(ctx, fencing.RenewRequest{Name: "a", Lease: r})
	s.Do(ctx, fencing.ConfirmRequest{Name: "a", Lease: r, Stamp: "1"})
	s.Do(ctx, fencing.LeaveRequest{Name: "a", Lease: r, Stamp: "1"})
	s.Do(ctx, fencing.TakeBackRequest{Name: "a", Lease: r, Stamp: "1"})
	s.Do(ctx, fencing.ReleaseRequest{Name: "a", Lease: r})
	s.Do(ctx, fencing.BreakRequest{Name: "a", Token: 1})
	s.Do(ctx, fencing.EvictRequest{Name: "a"})
	s.Do(ctx, fencing.AdmitRequest{Name: "a", Token: 1, Slot: fencing.NoSlot})
	s.Do(ctx, fencing.JudgeRequest{Name: "a", Token: 1})
	s.Do(ctx, fencing.InspectRequest{Name: "a"})
	s.Do(ctx, fencing.HistoryRequest{Name: "a"})
	s.List(ctx, fencing.ListRequest{Limit: 1})
	s.Expire(ctx, 1)
	s.Heartbeat(ctx, []fencing.Name{"a"})
	s.Examine(ctx)
	s.Check(ctx)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	timed := 0
	for _, family := range families {
		if family.GetName() != "fencepost_store_operation_duration_seconds" {
			continue
		}
		for _, m := range family.GetMetric() {
			timed++
			if n := m.GetHistogram().GetSampleCount(); n != 1 {
				t.Errorf("%v was timed %d times", m.GetLabel(), n)
			}
		}
	}
	if timed != len(operations) {
		t.Errorf("%d operations are timed, want %d", timed, len(operations))
	}
	source, err := os.ReadFile("../fencing/op.go")
	if err != nil {
		t.Fatal(err)
	}
	verbs := regexp.MustCompile(`return "([a-z_]+)"`).FindAllStringSubmatch(string(source), -1)
	if len(verbs) < 14 {
		t.Fatalf("fencing.Verb returns only %v", verbs)
	}
	for _, verb := range verbs {
		if verb[1] != "claim" && !slices.Contains(operations, verb[1]) { // a gateway claims nothing
			t.Errorf("%s is not among the operations", verb[1])
		}
	}
}
