package fencing_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	"fencepost/internal/fencing"
)

// constants returns the values of the constants of a type in code.go.
func constants(t *testing.T, typeName string) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "code.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var values []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := spec.Type.(*ast.Ident); ok && id.Name == typeName {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, value)
		}
		return true
	})
	return values
}

func TestCodesAreAllOfThem(t *testing.T) {
	declared := slices.DeleteFunc(constants(t, "Code"), func(s string) bool { return s == string(fencing.CodeOK) })
	var listed []string
	for _, code := range fencing.Codes() {
		listed = append(listed, string(code))
	}
	if !slices.Equal(declared, listed) {
		t.Errorf("declared are %v, Codes() lists %v", declared, listed)
	}
	contract := strings.Fields(`invalid_request unsupported_by_store unauthenticated forbidden not_found
		method_not_allowed conflict replaced lease_lost stale_token too_large misdirected locked wait_timeout
		lease_id_required too_many_requests unavailable clock_skew not_replicated quarantined draining`)
	if !slices.Equal(contract, listed) {
		t.Errorf("the contract has %v, Codes() lists %v", contract, listed)
	}
}

func TestReasonsAreAllOfThem(t *testing.T) {
	var listed []string
	for _, reason := range fencing.Reasons() {
		listed = append(listed, string(reason))
	}
	if declared := constants(t, "Reason"); !slices.Equal(declared, listed) {
		t.Errorf("declared are %v, Reasons() lists %v", declared, listed)
	}
	if contract := strings.Fields("expired superseded broken released evicted unknown"); !slices.Equal(contract, listed) {
		t.Errorf("the contract has %v, Reasons() lists %v", contract, listed)
	}
}

func TestError(t *testing.T) {
	err := fencing.Unavailable(io.ErrUnexpectedEOF)
	if err.Code != fencing.CodeUnavailable || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%#v", err)
	}
	full := &fencing.Error{Code: fencing.CodeLeaseLost, Field: "Lease-Id", Reason: fencing.ReasonBroken, Detail: "gone", Err: io.EOF}
	for _, part := range []string{"lease_lost", "Lease-Id", "broken", "gone", "EOF"} {
		if !strings.Contains(full.Error(), part) {
			t.Errorf("%q lacks %s", full.Error(), part)
		}
	}
	if got := (&fencing.Error{Code: fencing.CodeLocked}).Error(); got != "locked" {
		t.Errorf("a bare error reads %q", got)
	}
	refused := fencing.Outcome{Err: full}
	if out, err := refused.Result(); err != error(full) || out.Code() != fencing.CodeLeaseLost {
		t.Errorf("Result() = %v, %v", out, err)
	}
	// A nil *Error must not become an error that is not nil.
	if out, err := (fencing.Outcome{}).Result(); err != nil || out.Code() != fencing.CodeOK {
		t.Errorf("Result() = %v, %v", out, err)
	}
}
