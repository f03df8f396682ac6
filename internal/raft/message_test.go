package raft

import (
	"maps"
	"testing"

	"github.com/fxamacker/cbor/v2"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// withMore returns an encoded struct or map, and all those in it, with a field that this version does not know.
func withMore(t *testing.T, encoded []byte) []byte {
	t.Helper()
	var v any
	if err := machine.Lenient.Unmarshal(encoded, &v); err != nil {
		t.Fatal(err)
	}
	fields := 0
	var more func(v any) any
	more = func(v any) any {
		switch v := v.(type) {
		case map[any]any:
			added := maps.Clone(v)
			for key, value := range v {
				added[key] = more(value)
			}
			for key := range v {
				switch key := key.(type) {
				case uint64:
					added[uint64(999)] = "more"
					fields++
				case string:
					if key[0] < 'a' { // not of metadata
						added["Later"] = "more"
						fields++
					}
				}
			}
			return added
		case []any:
			all := make([]any, len(v))
			for i := range v {
				all[i] = more(v[i])
			}
			return all
		}
		return v
	}
	b, err := machine.Encoding.Marshal(more(v))
	if err != nil || fields == 0 {
		t.Fatalf("%d fields, %v", fields, err)
	}
	return b
}

// handled has a node handle a request as another node sends it, with an answer that has to be there.
func handled(t *testing.T, n *node, request []byte) *answer {
	t.Helper()
	b, err := n.handle(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	var a answer
	if err := machine.Lenient.Unmarshal(withMore(t, b), &a); err != nil {
		t.Fatalf("an answer in which a later version says more can't be read: %v", err)
	}
	if a.Verdict != done {
		t.Fatalf("it is answered %+v", a)
	}
	return &a
}

// In what nodes ask each other, and what they answer, a later version may say more: it is passed over.
func TestWhatALaterVersionSaysMore(t *testing.T) {
	leader := newCluster(t, 1, nil).nodes[0]
	term := leader.leading.Load().term
	if _, err := leader.Do(t.Context(), acquire("a", fencing.LongestTTL)); err != nil {
		t.Fatal(err)
	}
	holder := filled[fencing.Holder]()
	for _, m := range []message{
		{Errand: errandBatch, Batch: machine.Batch{Gateway: "0000000000000002", Number: 1}},
		{Errand: errandHeartbeat, Batch: machine.Batch{Gateway: "0000000000000002", Number: 2}, Names: []fencing.Name{"a"}},
		{Errand: errandList, List: &fencing.ListRequest{Limit: 1}},
		{Errand: errandTold, Told: []machine.Told{{Index: 1, Gateway: "0000000000000002", Grant: fencing.Grant{Name: "b", Holder: holder}}}},
	} {
		m.Version, m.Term = machine.Format, term
		a := handled(t, leader, withMore(t, must(machine.Encoding.Marshal(m))))
		if m.Errand == errandList && len(a.Page.Locks) != 1 {
			t.Errorf("a list is answered %+v", a.Page)
		}
	}
}

// An operation that this node can't read, of a later version, is refused by itself: in the log it would end every node.
func TestAnUnknownOperationDoesNotComeIntoTheLog(t *testing.T) {
	leader := newCluster(t, 1, nil).nodes[0]
	known := func(name fencing.Name) cbor.RawMessage { return machine.EncodeOp(acquire(name, fencing.LongestTTL)) }
	m := message{
		Version: machine.Format, Errand: errandBatch, Term: leader.leading.Load().term,
		Batch: machine.Batch{Gateway: "0000000000000002", Number: 1, Ops: []cbor.RawMessage{known("a"), unknownOp(), known("b"), withMore(t, known("c"))}},
	}
	a := handled(t, leader, must(machine.Encoding.Marshal(m)))
	for i, want := range []fencing.Code{fencing.CodeOK, fencing.CodeUnavailable, fencing.CodeOK, fencing.CodeUnavailable} {
		var err error
		if a.Outcomes[i].Err != nil {
			err = a.Outcomes[i].Err
		}
		if got := code(err); got != want {
			t.Errorf("operation %d: %s, want %s", i, got, want)
		}
	}
	m.Batch.Number, m.Batch.Ops = 2, []cbor.RawMessage{unknownOp()}
	if a := handled(t, leader, must(machine.Encoding.Marshal(m))); len(a.Outcomes) != 1 || a.Outcomes[0].Err == nil {
		t.Errorf("alone it is answered %+v", a)
	}
	look := message{Version: machine.Format, Errand: errandLook, Term: m.Term, Op: unknownOp()}
	if b, err := leader.handle(t.Context(), must(machine.Encoding.Marshal(look))); err != nil {
		t.Errorf("a look that is not known: %x, %v", b, err)
	}
	if _, err := leader.Do(t.Context(), acquire("d", fencing.LongestTTL)); err != nil {
		t.Errorf("the node does not go on: %v", err)
	}
	if cause := leader.Cause(); cause != nil {
		t.Error(cause)
	}
}
