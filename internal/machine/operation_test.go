package machine

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"

	"fencepost/internal/fencing"
)

// fill gives every field that v has a value of its own that is not zero.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Interface().(type) {
	case fencing.LeaseID:
		var hash fencing.SecretHash
		hash[0] = byte(*n)
		v.Set(reflect.ValueOf(fencing.HashedLeaseID(fencing.LeasePublic(fmt.Sprint("lease", *n)), hash)))
		return
	case fencing.Labels:
		v.Set(reflect.ValueOf(fencing.LabelsOf(map[string]string{"key": fmt.Sprint("text", *n)})))
		return
	case time.Time:
		return // Asked, which is never sent
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprint("text", *n))
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint64:
		v.SetUint(uint64(*n))
	case reflect.Uint8:
		v.SetUint(uint64(*n % 256))
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), n)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, n)
		fill(value, n)
		v.SetMapIndex(key, value)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), n)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), n)
			}
		}
	case reflect.Interface: // Error.Err, which a store has and Step never sets
	default:
		panic("no value for a " + v.Type().String())
	}
}

func filled[T any]() T {
	v, n := reflect.New(reflect.TypeFor[T]()).Elem(), 0
	fill(v, &n)
	return v.Interface().(T)
}

func TestEveryFieldOfARequestIsEncoded(t *testing.T) {
	for _, op := range []fencing.Op{
		filled[fencing.AcquireRequest](), filled[fencing.RenewRequest](), filled[fencing.ReleaseRequest](), filled[fencing.ConfirmRequest](),
		filled[fencing.LeaveRequest](), filled[fencing.TakeBackRequest](), filled[fencing.BreakRequest](), filled[fencing.ClaimRequest](),
		filled[fencing.AdmitRequest](), filled[fencing.JudgeRequest](), filled[fencing.InspectRequest](), filled[fencing.HistoryRequest](),
		filled[fencing.ExpireRequest](), filled[fencing.EvictRequest](),
	} {
		o, err := decodeOperation(EncodeOp(op))
		if err != nil {
			t.Fatal(err)
		}
		got, err := o.op()
		if err != nil || !reflect.DeepEqual(got, op) {
			t.Errorf("%T comes back as %+v, %v; it was %+v", op, got, err, op)
		}
	}
}

// The secret is in no log and no message.
func TestASecretIsNotEncoded(t *testing.T) {
	r := fencing.AcquireRequest{Name: "a", Lease: fencing.NewLeaseID(time.Now()), TTL: time.Minute}
	o, err := decodeOperation(EncodeOp(r))
	if err != nil {
		t.Fatal(err)
	}
	if id := o.leaseID(); id.Reveal() != "" || id.Public() != r.Lease.Public() || id.Hash() != r.Lease.Hash() {
		t.Errorf("the lease id comes back as %+v, revealed %q", id, id.Reveal())
	}
}

// What this version does not know it refuses: to leave it out would set it apart from nodes
// that do know it.
func TestWhatIsNotKnownIsRefused(t *testing.T) {
	for name, v := range map[string]any{
		"an entry of another version": Entry{Version: Format + 1},
		"a field":                     map[int]any{1: Format, 99: true},
		"an operation":                Entry{Version: Format, Batches: []Batch{{Ops: []cbor.RawMessage{plain(99)}}}},
	} {
		b, err := Encoding.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(b); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
