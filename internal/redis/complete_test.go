package redis

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// What a new verb or a new field needs in this package: each test here names what was
// forgotten.

// unconfirmed is what becomes of the answer to a verb that too few replicas have confirmed.
type unconfirmed int

const (
	_                   unconfirmed = iota
	unackedStands                   // as it is: it promises its caller nothing that may be lost
	unackedRefused                  // not_replicated
	unackedLeaseRefused             // not_replicated if it has a lease
)

// answerOf returns what becomes of a verb's answer.
func answerOf(v verb) unconfirmed {
	c := &command{operation: operation{verb: v}, unacked: true}
	r := &reply{replyHead: replyHead{code: fencing.CodeOK}}
	without := unreplicated(c, r) != nil
	r.holder = &fencing.Holder{}
	switch with := unreplicated(c, r) != nil; {
	case without:
		return unackedRefused
	case with:
		return unackedLeaseRefused
	}
	return unackedStands
}

// kinds says of every verb what Go has to know of it.
var kinds = map[verb]struct {
	rules       bool // it applies the rules, and so may hand a lock on
	needsMemory bool // Redis refuses it where memory is full
	outlives    bool // it is sent though its caller has left
	waits       bool // replicas have to confirm what it did, if any have to

	unconfirmed unconfirmed // of one that waits: its answer if too few have
}{
	acquireVerb:   {rules: true, needsMemory: true, waits: true, unconfirmed: unackedLeaseRefused},
	renewVerb:     {rules: true},
	releaseVerb:   {rules: true, outlives: true, waits: true, unconfirmed: unackedStands},
	confirmVerb:   {rules: true, waits: true, unconfirmed: unackedLeaseRefused},
	leaveVerb:     {rules: true, outlives: true, waits: true, unconfirmed: unackedLeaseRefused},
	takeBackVerb:  {rules: true, outlives: true, waits: true, unconfirmed: unackedStands},
	breakVerb:     {rules: true, outlives: true, waits: true, unconfirmed: unackedStands},
	evictVerb:     {rules: true, outlives: true, waits: true, unconfirmed: unackedStands},
	claimVerb:     {rules: true},
	admitVerb:     {rules: true, needsMemory: true, waits: true, unconfirmed: unackedRefused},
	judgeVerb:     {},
	expireVerb:    {rules: true, outlives: true, waits: true, unconfirmed: unackedStands},
	inspectVerb:   {},
	historyVerb:   {},
	listVerb:      {},
	indexVerb:     {},
	heartbeatVerb: {},
	checkVerb:     {needsMemory: true},
	arriveVerb:    {},
}

var (
	libraryVerb  = regexp.MustCompile(`(?m)^function verbs\.([a-z_]+)\(|^verbs\['([a-z]+)'\] = function`)
	libraryTable = regexp.MustCompile(`(?m)^local (?:about_no_name|reads_only) = \{([a-z_ =,]*)\}`)
)

func TestVerbs(t *testing.T) {
	inGo, inLua, noRules := map[verb]bool{}, map[verb]bool{}, map[verb]bool{}
	file, err := parser.ParseFile(token.NewFileSet(), "command.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Values) == 1 {
			if of, ok := spec.Type.(*ast.Ident); ok && of.Name == "verb" {
				text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				inGo[verb(text)] = true
			}
		}
		return true
	})
	for _, part := range parts {
		source, err := os.ReadFile("library/" + part + ".lua")
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range libraryVerb.FindAllStringSubmatch(string(source), -1) {
			inLua[verb(match[1]+match[2])] = true
		}
		for _, match := range libraryTable.FindAllStringSubmatch(string(source), -1) {
			for word := range strings.SplitSeq(match[1], ",") {
				name, _, _ := strings.Cut(strings.TrimSpace(word), " ")
				noRules[verb(name)] = true
			}
		}
	}
	for v := range inGo {
		kind, known := kinds[v]
		if !known {
			t.Errorf("%s is not in kinds: say what it is", v)
			continue
		}
		s := &sender{acks: 1}
		c := &command{operation: operation{verb: v}}
		if v.rules() != kind.rules || v.needsMemory() != kind.needsMemory || c.outlives(false) != kind.outlives || s.waits(c) != kind.waits {
			t.Errorf("%s is not as kinds says: rules %t, needs memory %t, outlives its caller %t, waits for replicas %t",
				v, v.rules(), v.needsMemory(), c.outlives(false), s.waits(c))
		}
		if kind.waits && answerOf(v) != kind.unconfirmed {
			t.Errorf("%s, unconfirmed, comes to %d in acks.go and to %d in kinds", v, answerOf(v), kind.unconfirmed)
		}
		if !inLua[v] {
			t.Errorf("the library has no verb %s", v)
		}
		if v.rules() == noRules[v] {
			t.Errorf("%s applies the rules: %t in Go, and %t in run.lua", v, v.rules(), !noRules[v])
		}
	}
	for _, v := range slices.Sorted(maps.Keys(inLua)) {
		if !inGo[v] {
			t.Errorf("the library has the verb %s, and command.go has not", v)
		}
	}
}

var (
	listedKey = regexp.MustCompile(`fencepost:\{N\}:([a-z:]+)`)
	keyInLua  = regexp.MustCompile(`prefix \.\. '([a-z:]+)'`)
	keyInGo   = regexp.MustCompile(`prefix \+ "([a-z:]+)"`)
)

// The list of keys in layout.lua has all there are: what deletes each in turn goes by it.
func TestKeysAreListed(t *testing.T) {
	listed := map[string]bool{}
	for _, match := range listedKey.FindAllStringSubmatch(readSource(t, "library/layout.lua"), -1) {
		listed[strings.TrimSuffix(match[1], ":")] = true
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range parts {
		files = append(files, "library/"+part+".lua")
	}
	used := map[string]bool{}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, expression := range []*regexp.Regexp{keyInLua, keyInGo} {
			for _, match := range expression.FindAllStringSubmatch(readSource(t, path), -1) {
				key := strings.TrimSuffix(match[1], ":")
				if used[key] = true; !listed[key] {
					t.Errorf("%s has the key %s, which layout.lua does not list", path, key)
				}
			}
		}
	}
	for key := range listed {
		if !used[key] {
			t.Errorf("layout.lua lists the key %s, which nobody uses", key)
		}
	}
}

func readSource(t *testing.T, path string) string {
	t.Helper()
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(source)
}

// notStored are the fields of a lease that Redis does not have as they are.
var notStored = map[string]string{
	"Waited": "the time between two that it has",
}

func TestEveryFieldOfALeaseIsStored(t *testing.T) {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[fencing.Holding]()) {
		if _, excused := notStored[field.Name]; excused || field.Anonymous {
			continue
		}
		for _, h := range []fencing.Holding{usualLease, {}} {
			h.GrantTTL, h.JoinedAt = time.Microsecond, 1 // 0 stands for the TTL, and for AcquiredAt
			reflect.ValueOf(&h).Elem().FieldByIndex(field.Index).Set(fencingtest.NotZero(t, field.Type))
			read, _ := writtenAndRead(h)
			if read.Waited = h.Waited; !reflect.DeepEqual(read, h) {
				t.Errorf("%s of a lease is not stored: see codec.go", field.Name)
			}
		}
	}
}

// writtenAndRead returns a lease as it is read where it was written, and its text.
func writtenAndRead(h fencing.Holding) (read fencing.Holding, text string) {
	w := codec{mode: writing}
	w.lease(&h)
	r := codec{mode: reading, rest: string(w.b)}
	r.lease(&read)
	return read, string(w.b)
}

// What is usual for a lease is left out, and read nevertheless; one unusual field brings
// all of them back.
func TestUsualLease(t *testing.T) {
	h := usualLease
	h.Token, h.TTL, h.AcquiredAt, h.Lease, h.Owner = 7, time.Minute, 5, "lease", "worker-7"
	short, text := writtenAndRead(h)
	h.Keep = true
	long, longText := writtenAndRead(h)
	h.GrantTTL, h.JoinedAt = h.TTL, h.AcquiredAt
	if !reflect.DeepEqual(long, h) {
		t.Errorf("got %+v, want %+v", long, h)
	}
	if h.Keep = false; !reflect.DeepEqual(short, h) {
		t.Errorf("got %+v, want %+v", short, h)
	}
	if left := len(longText) - len(text); left != len(usualLeaseText) {
		t.Errorf("%d bytes are left out of a usual lease, want %d", left, len(usualLeaseText))
	}
}

// notSent are the fields of requests that are not sent to Redis, with the reason.
var notSent = map[string]string{
	"AcquireRequest.Behind": "for stores without a queue",
	"ListRequest.Query":     "Match looks at it, and LooksAtWaiters",
	"ListRequest.Mode":      "Match looks at it", "ListRequest.HeldFor": "as Mode", "ListRequest.EndsIn": "as Mode", "ListRequest.Waiting": "as Mode",
	"ListRequest.Attached": "as Mode", "ListRequest.Unrenewed": "as Mode",
}

// TestEveryFieldOfARequestIsSent: what takes a request of package fencing, by value or by
// pointer, reads all of its fields.
func TestEveryFieldOfARequestIsSent(t *testing.T) {
	requests := []reflect.Type{
		reflect.TypeFor[fencing.AcquireRequest](), reflect.TypeFor[fencing.RenewRequest](), reflect.TypeFor[fencing.ReleaseRequest](),
		reflect.TypeFor[fencing.ConfirmRequest](), reflect.TypeFor[fencing.LeaveRequest](), reflect.TypeFor[fencing.TakeBackRequest](),
		reflect.TypeFor[fencing.BreakRequest](), reflect.TypeFor[fencing.ClaimRequest](), reflect.TypeFor[fencing.InspectRequest](),
		reflect.TypeFor[fencing.HistoryRequest](), reflect.TypeFor[fencing.AdmitRequest](), reflect.TypeFor[fencing.EvictRequest](), reflect.TypeFor[fencing.JudgeRequest](), reflect.TypeFor[fencing.ListRequest](),
	}
	read := map[string]bool{}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				readFields(f, read)
			}
		}
	}
	for of := range read {
		name, _, _ := strings.Cut(of, ".")
		if !slices.ContainsFunc(requests, func(r reflect.Type) bool { return r.Name() == name }) {
			t.Errorf("%s is not among the requests of this test", name)
		}
	}
	for _, of := range requests {
		for _, field := range reflect.VisibleFields(of) {
			name := of.Name() + "." + field.Name
			if _, excused := notSent[name]; !excused && !read[name] {
				t.Errorf("%s is not sent: see verbs.go", name)
			}
		}
	}
}

// readFields notes the fields of requests that a function reads: of its parameters, and of what
// it switches on the type of.
func readFields(f *ast.FuncDecl, read map[string]bool) {
	if f.Body == nil {
		return
	}
	for _, field := range f.Type.Params.List {
		if len(field.Names) > 0 {
			readFieldsOf(field.Names[0].Name, field.Type, f.Body, read)
		}
	}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		types, ok := n.(*ast.TypeSwitchStmt)
		if !ok {
			return true
		}
		if bound, ok := types.Assign.(*ast.AssignStmt); ok {
			for _, clause := range types.Body.List {
				if clause := clause.(*ast.CaseClause); len(clause.List) == 1 {
					readFieldsOf(bound.Lhs[0].(*ast.Ident).Name, clause.List[0], clause, read)
				}
			}
		}
		return true
	})
}

// readFieldsOf notes what is read of a variable, if it is a request.
func readFieldsOf(variable string, kind ast.Expr, in ast.Node, read map[string]bool) {
	if pointer, ok := kind.(*ast.StarExpr); ok {
		kind = pointer.X
	}
	of, ok := kind.(*ast.SelectorExpr)
	if !ok || !strings.HasSuffix(of.Sel.Name, "Request") {
		return
	}
	ast.Inspect(in, func(n ast.Node) bool {
		if selected, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := selected.X.(*ast.Ident); ok && x.Name == variable {
				read[of.Sel.Name+"."+selected.Sel.Name] = true
			}
		}
		return true
	})
}
