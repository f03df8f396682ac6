package machine

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

var update = flag.Bool("update", false, "write down anew what entries of this Format come to")

// A log of all kinds of operations leads to the state that it led to before, and what the rules reckon with is as it was.
// Where this test is red, this version and the one before come to different states for the same log: nodes of both, side
// by side, stop, and a log that was not stopped cleanly is not read by the other one. Where that is meant, the changelog says so, and
//
//	go test ./internal/machine -run TestFormat -update
//
// writes down what the new one comes to. Where the encoding has changed, Format is raised as well.
func TestFormat(t *testing.T) {
	path := filepath.Join("testdata", "format", fmt.Sprint(Format)+".txt")
	var b strings.Builder
	for _, c := range []struct {
		name string
		is   any
	}{
		{"AnyNumber", fencing.AnyNumber},
		{"ForgetAfter", fencing.ForgetAfter},
		{"GatewayTTL", fencing.GatewayTTL},
		{"HearInterval", fencing.HearInterval},
		{"LongestQuarantine", fencing.LongestQuarantine},
		{"MaxBroken", fencing.MaxBroken},
		{"MaxFloorLead", fencing.MaxFloorLead},
		{"MaxHistory", fencing.MaxHistory},
		{"MaxHoldDepth", fencing.MaxHoldDepth},
		{"MaxLimit", fencing.MaxLimit},
		{"MaxNames", fencing.MaxNames},
		{"MaxToken", int64(fencing.MaxToken)},
		{"RestTTL", fencing.RestTTL},
		{"StallAfter", fencing.StallAfter},
		{"StepLimit", fencing.StepLimit},
		{"TTLPeriod", fencing.TTLPeriod},
		{"TombstoneTTL", fencing.TombstoneTTL},
		{"goOn", goOn},
		{"maxPast", maxPast},
		{"tombstonesPerEntry", tombstonesPerEntry},
	} {
		fmt.Fprintf(&b, "%s %v\n", c.name, c.is)
	}
	for seed := range uint64(6) {
		m := testMachine(t)
		for i, l := range logOf(seed, 200) {
			l.apply(t, m)
			if (i+1)%100 == 0 {
				fmt.Fprintf(&b, "log %d, entry %d: %x\n", seed, i+1, sha256.Sum256(encoded(t, m)))
			}
		}
	}
	m := testMachine(t)
	for i, l := range crowdLog() {
		l.apply(t, m)
		fmt.Fprintf(&b, "a crowd, entry %d: %x\n", i+1, sha256.Sum256(encoded(t, m)))
	}
	got := b.String()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(got) {
		if !strings.Contains(string(want), line) {
			t.Errorf("it is now: %s", line)
		}
	}
	if t.Failed() || got != string(want) {
		t.Errorf("what entries of format %d come to is not what %s says: if that is meant, say so in the changelog, raise Format if the encoding has changed, and run go test ./internal/machine -run TestFormat -update", Format, path)
	}
}

// crowdLog returns a log in which more comes due at once than a step does, than an entry goes on with, and than an entry
// forgets.
func crowdLog() (log []logged) {
	now := fencing.Instant(1_000_000_000)
	add := func(after time.Duration, ops ...fencing.Op) {
		now = now.Add(after)
		b := Batch{Gateway: "0000000000000001"}
		for _, op := range ops {
			if op == nil {
				b.Ops = append(b.Ops, Prune())
			} else {
				b.Ops = append(b.Ops, EncodeOp(op))
			}
		}
		e := Entry{Term: 1, Now: int64(now), Batches: []Batch{b}}
		log = append(log, logged{uint64(len(log) + 1), must(e.Encode())})
	}
	const many = goOn*fencing.StepLimit + fencing.StepLimit + 1
	var all []fencing.Op
	for i := range many {
		all = append(all, fencing.AcquireRequest{
			Name: "a", Lease: fencing.HashedLeaseID(fencing.LeasePublic(fmt.Sprintf("%026d", i)), fencing.SecretHash{}), Stamp: "0000000000000001",
			Mode: fencing.ModeShared, Hold: 1, TTL: time.Second, LockDelay: time.Duration(i%2) * time.Second,
		})
	}
	add(0, all...)
	add(2*time.Second, fencing.ExpireRequest{Name: "a"})
	add(0, fencing.ExpireRequest{Name: "a"})
	add(0, all[0])
	for i := range all {
		r := all[i].(fencing.AcquireRequest)
		r.Name, r.Mode = fencing.Name(fmt.Sprint("b", i)), fencing.ModeExclusive
		all[i] = r
	}
	for range 4 {
		add(fencing.TombstoneTTL/8, all...)
	}
	add(2*fencing.TombstoneTTL, nil)
	add(0, nil)
	return log
}
