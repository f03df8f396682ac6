package fencingtest

import (
	"cmp"
	"testing"

	"fencepost/internal/fencing"
)

// servedOp is an operation that every store is asked for.
type servedOp struct {
	op     fencing.Op
	refuse bool                        // CodeUnsupportedByStore is the answer
	code   fencing.Code                // else this one; empty for CodeOK
	shows  func(*fencing.Outcome) bool // what it came to, if the code is CodeOK
}

// everyOp returns an operation of each kind, to be asked for in this order, where held has been
// granted with token, and released as well. No other lease is there. Only a store with a queue, or
// one that claims, serves all of them.
func everyOp(held, released fencing.AcquireRequest, token fencing.Token, queue, claims bool) []servedOp {
	holder := func(out *fencing.Outcome) bool { return out.Holder.Lease == held.Lease.Public() }
	lock := func(out *fencing.Outcome) bool {
		return out.Lock != nil && out.Lock.Name == held.Name && out.Lock.Held()
	}
	fence := func(out *fencing.Outcome) bool { return out.Fence != nil }
	ended := func(out *fencing.Outcome) bool { return len(out.Ended) == 1 }
	name, nobody := held.Name, leaseOf("Z")
	return []servedOp{
		{op: held, shows: holder}, // again
		{op: fencing.RenewRequest{Name: name, Lease: held.Lease}, shows: holder},
		{op: fencing.ConfirmRequest{Name: name, Lease: held.Lease, Stamp: held.Stamp}, refuse: !queue, shows: holder},
		{op: fencing.LeaveRequest{Name: name, Lease: held.Lease, Stamp: held.Stamp}, refuse: !queue, shows: holder},
		{op: fencing.EvictRequest{Name: name, Waiter: nobody.Public()}, refuse: !queue, code: fencing.CodeNotFound},
		{op: fencing.TakeBackRequest{Name: name, Lease: nobody, Stamp: stampOf("Z")}, shows: func(out *fencing.Outcome) bool { return out.Now != 0 }},
		{op: fencing.InspectRequest{Name: name}, shows: lock},
		{op: fencing.HistoryRequest{Name: name}, shows: lock},
		{op: fencing.JudgeRequest{Name: name, Token: token}, shows: fence},
		{op: fencing.AdmitRequest{Name: name, Token: token, Slot: fencing.NoSlot}, shows: fence},
		{op: fencing.ClaimRequest{Name: name, Lease: held.Lease, Token: token}, refuse: !claims, shows: holder},
		{op: fencing.BreakRequest{Name: name, Token: token}, shows: ended},
		{op: fencing.ReleaseRequest{Name: released.Name, Lease: released.Lease}, shows: ended},
		{op: fencing.ExpireRequest{Name: name}, refuse: true},
	}
}

// foreignOp is an operation that no store knows.
type foreignOp struct{ fencing.InspectRequest }

// runServed asks a store for an operation of each kind: it carries it out, or says that it does
// not serve it, and that only where its Capabilities say so.
func runServed(t *testing.T, open Open, caps Capabilities) {
	b := open(t)
	b.SetTime(Epoch)
	store := b.Store(0)
	held, released := acquireOf("held", leaseOf("A")), acquireOf("released", leaseOf("B"))
	var token fencing.Token
	for _, request := range []fencing.AcquireRequest{released, held} {
		out, err := store.Do(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		token = out.Holder.Token
	}
	_, node := store.(fencing.Node)
	ops := everyOp(held, released, token, store.Capabilities().Queue, node || caps.Claims)
	for _, unknown := range []fencing.Op{foreignOp{}, &fencing.InspectRequest{Name: held.Name}} {
		ops = append(ops, servedOp{op: unknown, refuse: true})
	}
	for _, s := range ops {
		out, err := store.Do(t.Context(), s.op)
		want := cmp.Or(s.code, fencing.CodeOK)
		if s.refuse {
			want = fencing.CodeUnsupportedByStore
		}
		switch code := codeOf(err); {
		case code != want:
			t.Errorf("%T came to %v, want %s", s.op, err, want)
		case code == fencing.CodeOK && !s.shows(&out):
			t.Errorf("%T came to %+v, which is not what it asks for", s.op, out)
		}
	}
}
