package fencing

import (
	"reflect"
	"testing"
	"time"
	"unsafe"
)

// Whatever a holding has, it comes back as it was packed: each of its fields alone, and beside what most have.
func TestPackedHoldingsComeBack(t *testing.T) {
	usual := Holding{Gateway: "g", Stamp: "s", Seq: 101, JoinedAt: 100}
	usual.Holder = Holder{
		Lease: "l", Owner: "o", Metadata: LabelsOf(map[string]string{"a": "b"}), Mode: ModeExclusive, Limit: 1, Permits: 1, Slot: NoSlot, Hold: 1, Token: 7,
		TTL: time.Minute, GrantTTL: time.Minute, AcquiredAt: 100, ExpiresAt: 200,
	}
	for _, from := range []Holding{{}, usual} {
		back := func(h Holding) {
			t.Helper()
			p := pack(&h)
			if is := p.holding(); is != h {
				t.Fatalf("%+v has become %+v", h, is)
			}
			slots := 0
			for range h.AllSlots() {
				slots++
			}
			for range p.slots() {
				slots--
			}
			if p.permits() != h.Permits || p.tolerates() != tolerates(h.Mode, h.Limit) || p.delays() != (h.LockDelay > 0) || slots != 0 {
				t.Fatalf("%+v is taken for another one", h)
			}
		}
		back(from)
		for _, part := range []func(*Holding) reflect.Value{
			func(h *Holding) reflect.Value { return reflect.ValueOf(h).Elem() },
			func(h *Holding) reflect.Value { return reflect.ValueOf(&h.Holder).Elem() },
		} {
			for i := range part(&usual).NumField() {
				h := from
				switch f := part(&h).Field(i); f.Kind() {
				case reflect.String:
					f.SetString("2,5")
				case reflect.Bool:
					f.SetBool(!f.Bool())
				case reflect.Int, reflect.Int64:
					f.SetInt(f.Int() + 3)
				case reflect.Array:
					f.Index(3).SetUint(9)
				case reflect.Struct: // Holder
				default:
					t.Fatalf("a %s", f.Type())
				}
				back(h)
			}
		}
	}
	p := pack(&usual)
	usual.ExpiresAt += 50 // as a renewal sets it
	usual.Told = true
	if q := pack(&usual); p.few != nil || q.few != nil {
		t.Error("what is usual is kept as what is not")
	}
}

// There may be millions of records with one lease: these are sizes for which the allocator has a class.
func TestRecordsAreSmall(t *testing.T) {
	if is := unsafe.Sizeof(node{}); is > 176 {
		t.Errorf("a lease takes %d bytes", is)
	}
	if is := unsafe.Sizeof(Record{}); is > 192 {
		t.Errorf("a record takes %d bytes", is)
	}
}
