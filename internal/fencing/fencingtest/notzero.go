package fencingtest

import (
	"reflect"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// NotZero returns a value of a type that is not the zero one, for tests that set one
// field of what is stored after the other.
func NotZero(t testing.TB, of reflect.Type) reflect.Value {
	t.Helper()
	v := reflect.New(of).Elem()
	if of == reflect.TypeFor[fencing.Labels]() {
		return reflect.ValueOf(fencing.LabelsOf(map[string]string{"k": "v"}))
	}
	switch of.Kind() {
	case reflect.Int: // a count: few bytes have room for it
		v.SetInt(7)
	case reflect.Int64:
		v.SetInt(int64(time.Millisecond))
	case reflect.String:
		v.SetString("shared")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"k": "v"}))
	case reflect.Array:
		v.Index(0).SetUint(1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(of, 1, 1))
		v.Index(0).Set(NotZero(t, of.Elem()))
	default:
		t.Fatalf("no %s is made here", of)
	}
	return v
}
