package fence

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// The table that the guard makes is that of the recipes, word for word.
func TestSQLTableOfTheRecipes(t *testing.T) {
	for file, dialect := range map[string]Dialect{"postgresql": PostgreSQL, "sqlite": SQLite, "mariadb": MySQL} {
		s, err := SQL{Dialect: dialect}.statements()
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile("../docs/storage/" + file + ".sql")
		if err != nil {
			t.Fatal(err)
		}
		of := strings.Count(string(text), "TABLE IF NOT EXISTS fences (")
		if n := strings.Count(string(text), s.create+";\n"); n == 0 || n != of {
			t.Errorf("%s.sql makes the table %d times, %d of them as the guard does:\n%s", file, of, n, s.create)
		}
	}
}

// A row holds any mark, and token is the highest of all.
func TestSQLRows(t *testing.T) {
	for _, mark := range []Mark{{Token: 5}, {Token: 5, Slots: map[int]int64{3: 9}}, {Slots: map[int]int64{0: 7, 9999: 8}}, {Token: MaxToken}} {
		token, slots, err := mark.columns()
		if err != nil || token != mark.highest(NoSlot) {
			t.Errorf("%v: token %d, %v", mark, token, err)
		}
		if got, err := markOf(token, slots); err != nil || !reflect.DeepEqual(got, mark) {
			t.Errorf("%v is read as %v, %v", mark, got, err)
		}
	}
	for _, of := range []struct {
		token int64
		slots string
		want  Mark
	}{
		{5, `{"3":9}`, Mark{5, map[int]int64{3: 9}}},       // of an earlier version
		{10, `{"token":5,"slots":{"3":9}}`, Mark{10, nil}}, // raised without regard to slots
		{9, `{"token":9}`, Mark{9, nil}},                   // nobody writes that, and it is clear
		{9, `{"token":0,"slots":{"3":9}}`, Mark{0, map[int]int64{3: 9}}},
	} {
		if got, err := markOf(of.token, of.slots); err != nil || got.Token != of.want.Token || len(got.Slots) != len(of.want.Slots) {
			t.Errorf("%d, %q is read as %v, %v", of.token, of.slots, got, err)
		}
	}
	for _, slots := range []string{"x", "5", "[]", `{"0":-1}`, `{"10000":1}`, `{"token":0,"slots":{"3":10}}`, `{"token":-1,"slots":{"3":9}}`, `{"token":0,"slots":{"10000":9}}`} {
		if got, err := markOf(9, slots); err == nil {
			t.Errorf("slots %q is read as %v", slots, got)
		}
	}
}
