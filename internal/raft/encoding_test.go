package raft

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
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

func TestEveryFieldOfAnAnswerIsEncoded(t *testing.T) {
	want := filled[answer]()
	b, err := machine.Encoding.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got answer
	if err := machine.Lenient.Unmarshal(b, &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("an answer comes back as %+v, %v; it was %+v", got, err, want)
	}
}

func TestEveryFieldOfAMessageIsEncoded(t *testing.T) {
	want := filled[message]()
	want.Op, want.Batch.Ops[0] = machine.Tick(), machine.Beat() // CBOR
	b, err := machine.Encoding.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got message
	if err := machine.Strict.Unmarshal(b, &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("a message comes back as %+v, %v; it was %+v", got, err, want)
	}
}
