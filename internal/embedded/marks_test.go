package embedded

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"testing"
)

// noteMarks and marksOf know the mark of which slot an operation moves from its type. Another request with a slot
// would move marks that are not written: an older token would pass after a restart.
func TestRequestsThatMoveMarks(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../fencing/op.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, d := range file.Decls {
		group, ok := d.(*ast.GenDecl)
		if !ok || group.Tok != token.TYPE {
			continue
		}
		for _, spec := range group.Specs {
			kind := spec.(*ast.TypeSpec)
			of, ok := kind.Type.(*ast.StructType)
			if ok && slices.ContainsFunc(of.Fields.List, func(f *ast.Field) bool {
				return slices.ContainsFunc(f.Names, func(name *ast.Ident) bool { return name.Name == "Slot" })
			}) {
				found = append(found, kind.Name.Name)
			}
		}
	}
	if !slices.Equal(found, []string{"AdmitRequest"}) {
		t.Errorf("%v have a slot; marks.go knows AdmitRequest", found)
	}
}
