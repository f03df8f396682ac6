package sql

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/watchdog"
)

// awaited is what a request that waits came to.
type awaited struct {
	out fencing.Outcome
	err error
	at  time.Time
}

// waitsBy has a request wait by a watchdog, and returns when it does.
func waitsBy(t *testing.T, dog *watchdog.Watchdog, name fencing.Name, owner string) <-chan awaited {
	t.Helper()
	r := request(name, time.Minute)
	r.Wait, r.Owner = time.Minute, owner
	out, w, err := dog.Join(t.Context(), r)
	if err != nil || w == nil {
		t.Fatalf("it does not wait: %+v, %v", out, err)
	}
	came := make(chan awaited, 1)
	go func() {
		out, err := w.Wait(context.Background())
		is := awaited{err: err, at: time.Now()}
		if err == nil {
			is.out = *out
		}
		came <- is
	}()
	return came
}

// A waiter's row that the database refuses is the fault of nobody else: who releases is answered, or what is over ends, the waiter is told why,
// the next one has the lock, and others go on; wherever they wait.
func TestAWaiterWhomTheDatabaseRefuses(t *testing.T) {
	t.Parallel()
	onBothPlaces(t, func(t *testing.T, p *place) {
		refuseOwner(t, p, "refused")
		for _, ends := range []string{"release", "expiry"} {
			for _, alone := range []time.Duration{time.Nanosecond, -1} {
				for at := range 2 {
					t.Run(fmt.Sprint(ends, alone, at), func(t *testing.T) {
						o := Options{URL: p.url, Logger: testLog(t), aloneAfter: alone}
						var stores []*Store
						var dogs []*watchdog.Watchdog
						for range 2 {
							s := openGateway(t, o)
							dog := watchdog.New(s, watchdog.Options{Logger: testLog(t)})
							dog.Start()
							t.Cleanup(dog.Stop)
							stores, dogs = append(stores, s), append(dogs, dog)
						}
						name, other := fencing.Name("a/"+fencing.NewStamp()), fencing.Name("b/"+fencing.NewStamp())
						first, second := request(name, time.Minute), request(other, time.Minute)
						for _, r := range []fencing.AcquireRequest{first, second} {
							if _, err := dogs[0].Do(t.Context(), r); err != nil {
								t.Fatal(err)
							}
						}
						refused := waitsBy(t, dogs[at], name, "refused")
						next, beside := waitsBy(t, dogs[1-at], name, "next"), waitsBy(t, dogs[at], other, "beside")
						over := time.Now()
						for _, r := range []fencing.AcquireRequest{first, second} {
							op := fencing.Op(fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease})
							if ends == "expiry" { // soon
								op = fencing.RenewRequest{Name: r.Name, Lease: r.Lease, TTL: time.Second}
							}
							if _, err := dogs[0].Do(t.Context(), op); err != nil {
								t.Errorf("who holds is told %v", err)
							}
						}
						if is := <-refused; code(is.err) != fencing.CodeUnavailable || !strings.Contains(is.err.Error(), "the database refuses what this request is to write") {
							t.Errorf("who is refused is told %v, %v", is.out, is.err)
						} else {
							t.Logf("who is refused is told after %s", is.at.Sub(over))
						}
						for who, came := range map[string]<-chan awaited{"the next one": next, "another name": beside} {
							is := <-came
							if is.err != nil {
								t.Errorf("%s is told %v", who, is.err)
							}
							t.Logf("%s has the lock after %s", who, is.at.Sub(over))
							if is.at.Sub(over) > 40*time.Second { // before it would wait no longer
								t.Errorf("%s has it only then", who)
							}
						}
						theSame(t, o, stores...)
					})
				}
			}
		}
	})
}

// refuseDeletes has the database refuse to delete rows of a name.
func refuseDeletes(t *testing.T, p *place, name fencing.Name) {
	t.Helper()
	statements := []string{"create trigger keeps before delete on lease for each row if old.name = '" + string(name) + "' then signal sqlstate '45000'; end if"}
	if p.postgres() {
		statements = []string{
			"create function fencepost.keep() returns trigger language plpgsql as $$ begin if old.name = '" + string(name) + "' then raise exception 'kept'; end if; return old; end $$",
			"create trigger keeps before delete on fencepost.lease for each row execute function fencepost.keep()",
		}
	}
	for _, statement := range statements {
		if _, err := p.db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
}

// A sign of life is in the log whatever the database refuses of what comes with it, and so is what it does not refuse.
func TestHeartbeatBesideWhatIsRefused(t *testing.T) {
	t.Parallel()
	onBothPlaces(t, func(t *testing.T, p *place) {
		refuseOwner(t, p, "refused")
		refuseDeletes(t, p, "kept")
		for _, alone := range []time.Duration{time.Nanosecond, -1} {
			s := openGateway(t, Options{URL: p.url, Logger: testLog(t), aloneAfter: alone})
			leases := map[fencing.Name]fencing.LeaseID{}
			if alone > 0 {
				leases["kept"] = acquire(t, s, "kept", time.Minute).lease
			}
			names := []fencing.Name{"kept"}
			for i := range 6 {
				name := fencing.Name(fmt.Sprint("n", i))
				names = append(names, name)
				leases[name] = acquire(t, s, name, time.Minute).lease
				r := request(name, time.Minute)
				if r.Wait = time.Minute; i%3 == 0 {
					r.Owner = "refused"
				}
				if out, err := s.Do(t.Context(), r); err != nil || !out.Waits() {
					t.Fatalf("%+v, %v", out, err)
				}
			}
			for name, lease := range leases {
				mustDo(t, s, fencing.RenewRequest{Name: name, Lease: lease, TTL: time.Second})
			}
			over(t, time.Now().Add(time.Second+mostLate)) // so are all leases
			before := fencing.InstantOf(time.Now())
			if err := s.Heartbeat(t.Context(), names); err != nil {
				t.Errorf("the heartbeat: %v", err)
			}
			var seen fencing.Instant
			var holders [6]int
			if err := s.peek(t.Context(), func() {
				seen = s.memory.State().Gateways.Seen[s.gateway]
				for i := range holders {
					holders[i] = s.memory.State().Records[names[1+i]].Holders.Len()
				}
			}); err != nil {
				t.Fatal(err)
			}
			if seen < before.Add(-fencing.HearInterval) {
				t.Errorf("the sign of life is %s old", before.Sub(seen))
			}
			if holders != [6]int{1, 1, 1, 1, 1, 1} {
				t.Errorf("the names have %v holders", holders)
			}
			if _, err := s.Expire(t.Context(), 100); err != nil {
				t.Errorf("what is due: %v", err)
			}
			for _, name := range names[1:] {
				breakLease(t, s, name)
			}
			theSame(t, Options{URL: p.url, Logger: testLog(t)}, s)
		}
	})
}
