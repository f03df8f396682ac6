package machine

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// poisoned is an operation that panics when it has changed the state: no list has so many slots.
func poisoned(name fencing.Name) Op {
	return EncodeOp(fencing.AcquireRequest{
		Name: name, Lease: fencing.HashedLeaseID("01ZZZZZZZZZZZZZZZZZZZZZZZZ", fencing.SecretHash{}), Stamp: "s",
		Mode: fencing.ModeShared, Limit: 1 << 60, Permits: 1 << 59, Hold: 1, TTL: time.Minute,
	})
}

// carriedOut carries out a log as every driver does: what panics is refused, in a machine that begins anew.
func carriedOut(t *testing.T, log []logged, refused Refused) *Machine {
	t.Helper()
	return tryOut(t, log, refused, false, new(int), new(int))
}

// tryOut is carriedOut, which tries or does not, and counts how often it begins again, and what it finds in place.
func tryOut(t *testing.T, log []logged, refused Refused, tries bool, again, found *int) *Machine {
	t.Helper()
again:
	for {
		m := testMachine(t)
		m.Refuse(refused)
		for _, l := range log {
			e, err := Decode(l.data)
			if err == nil {
				told := &Telling{Tries: tries}
				_, err = m.Apply(l.index, e, told, false)
				*found += len(told.Panics)
			}
			if p, panicked := errors.AsType[*Panic](err); panicked {
				if !refused.Add(p) {
					t.Fatal(err)
				}
				*again++
				continue again
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		return m
	}
}

// mixed is a log that has operations which panic among others: those of logOf.
func mixed(t *testing.T, seed uint64) (mixed []logged, poisons int) {
	t.Helper()
	mixed = logOf(seed, 60)
	for i := 5; i < len(mixed); i += 20 {
		d, err := Decode(mixed[i].data)
		if err != nil {
			t.Fatal(err)
		}
		e := *d.Entry
		e.Batches = slices.Clone(e.Batches)
		b := &e.Batches[len(e.Batches)-1]
		at := len(b.Ops) / 2
		b.Ops = slices.Insert(slices.Clone(b.Ops), at, poisoned(fencing.Name(fmt.Sprint("poison", i))))
		if mixed[i].data, err = e.Encode(); err != nil {
			t.Fatal(err)
		}
		poisons++
	}
	return mixed, poisons
}

// What is refused leaves nothing behind but that its name rests, whatever it had changed by then; the others of its entry count.
func TestWhatPanicsIsAsIfItHadNotBegun(t *testing.T) {
	for seed := range uint64(20) {
		plain := logOf(seed, 60)
		mixed, poisons := mixed(t, seed)
		refused := Refused{}
		with, without := carriedOut(t, mixed, refused), carriedOut(t, plain, Refused{})
		if len(refused) != poisons {
			t.Fatalf("seed %d: %d operations of %d were refused", seed, len(refused), poisons)
		}
		if !bytes.Equal(encoded(t, with), encoded(t, carriedOut(t, mixed, Refused{}))) {
			t.Errorf("seed %d: another machine comes to something else", seed)
		}
		if with.digest == without.digest {
			t.Errorf("seed %d: the hash has nothing of it", seed)
		}
		with.resting, with.digest, with.digests = nil, without.digest, without.digests
		if !bytes.Equal(encoded(t, with), encoded(t, without)) {
			t.Errorf("seed %d: something is left of what was refused", seed)
		}
	}
}

func TestANameRestsAfterAPanic(t *testing.T) {
	now := fencingtest.Epoch
	entry := func(index uint64, at fencing.Instant, ops ...Op) logged {
		e := Entry{Term: 1, Now: int64(at), Batches: []Batch{{Gateway: "g", Ops: ops}}}
		data, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return logged{index, data}
	}
	lease := fencing.HashedLeaseID("01YYYYYYYYYYYYYYYYYYYYYYYY", fencing.SecretHash{})
	take := EncodeOp(fencing.AcquireRequest{Name: "a", Lease: lease, Stamp: "s", Mode: fencing.ModeShared, Limit: 1 << 61, Hold: 1, TTL: time.Second})
	m := carriedOut(t, []logged{entry(1, now, take), entry(2, now.Add(time.Millisecond), poisoned("a"))}, Refused{})
	for what, m := range map[string]*Machine{"the log": m, "a snapshot": anew(t, bytes.NewReader(encoded(t, m)))} {
		late := now.Add(RestAfterPanic / 2)
		if due, next := m.Due(late, 5), m.NextDue(late); len(due) != 0 || next <= 0 {
			t.Errorf("%s: %v is due, and again in %s", what, due, next)
		}
		part, ok := m.Part([]fencing.Op{fencing.RenewRequest{Name: "a", Lease: lease}})
		if !ok || len(part.resting) != 1 {
			t.Errorf("%s: a part of it does not rest", what)
		}
		renew := func(at fencing.Instant) *fencing.Error {
			m.BeginEntry(at, 0)
			return m.Step(3, &Telling{}, fencing.Guard{Gateway: "g"}, fencing.RenewRequest{Name: "a", Lease: lease}).Err
		}
		if err := renew(late); err == nil || err.Code != fencing.CodeUnavailable || err.RetryAfter != RestAfterPanic/2+time.Millisecond {
			t.Errorf("%s: a renewal while it rests is answered %v", what, err)
		}
		if out := m.Step(3, &Telling{}, fencing.Guard{}, fencing.InspectRequest{Name: "a"}); out.Err != nil || out.Lock == nil {
			t.Errorf("%s: a look: %+v", what, out)
		}
		late = now.Add(RestAfterPanic + time.Millisecond)
		if due := m.Due(late, 5); len(due) != 1 {
			t.Errorf("%s: %v is due when it has rested", what, due)
		}
		if err := renew(late); err == nil || err.Code != fencing.CodeLeaseLost {
			t.Errorf("%s: a renewal when it has rested is answered %v", what, err)
		}
	}
}

// Once a name rests, what panics is found out by a copy, and comes to the same: nobody has to begin anew but once.
func TestPanicsInARowAreRefusedInPlace(t *testing.T) {
	for seed := range uint64(20) {
		log, poisons := mixed(t, seed)
		for tries, want := range map[bool]int{true: 1, false: poisons} {
			refused, again, panics := Refused{}, 0, 0
			m := tryOut(t, log, refused, tries, &again, &panics)
			if len(refused) != poisons || again != want || panics != poisons-again {
				t.Errorf("seed %d, %v: %d of %d are refused; began anew %d times, %d found in place", seed, tries, len(refused), poisons, again, panics)
			}
			if !bytes.Equal(encoded(t, m), encoded(t, carriedOut(t, log, Refused{}))) {
				t.Errorf("seed %d, %v: it comes to something else", seed, tries)
			}
		}
	}
}

// What the log itself needs can't be left out: whoever carries it out stops.
func TestAPanicInNoOperationIsNotRefused(t *testing.T) {
	e := Entry{Term: 1, Now: int64(fencingtest.Epoch), Batches: []Batch{{Gateway: "g", Ops: []Op{Loss(time.Minute)}}}}
	data, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	d, err := Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	m := testMachine(t)
	m.state = nil
	_, err = m.Apply(1, d, &Telling{}, false)
	p, panicked := errors.AsType[*Panic](err)
	if !panicked || (Refused{}).Add(p) {
		t.Errorf("%v", err)
	}
	if !strings.Contains(p.Stack, "Lose") {
		t.Errorf("the stack is %s", p.Stack)
	}
}
