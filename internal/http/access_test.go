package http

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/internal/auth"
	"fencepost/internal/fencing"
)

// guarded is a gateway that has keys, by their names.
type guarded struct {
	*gateway
	keys  *auth.Keys
	lines map[string]string
	as    map[string]string // what is to be sent as a header

	mu    sync.Mutex
	asked []string // verbs that have reached the store
}

// testCertificate is the header by which a test's request comes with a certificate.
const testCertificate = "Test-Certificate"

var testKeys = map[string]string{ // scopes and prefixes
	"all": "read,lock,fence,admin *", "read": "read ours/", "lock": "lock ours/", "fence": "fence ours/", "admin": "admin ours/",
	"ours": "read,lock,fence,admin ours/", "other": "read,lock,fence,admin theirs/", "expired": "read,lock,fence,admin *",
}

// newGuarded makes a gateway with testKeys, without a port. They expire by its clock.
func newGuarded(t testing.TB, options ...func(*Options)) *guarded {
	t.Helper()
	g := &guarded{lines: map[string]string{}, as: map[string]string{"none": "", "stranger": testCertificate + ": stranger.example", "mtls": testCertificate + ": ours.example"}}
	g.gateway = newServer(t, append(options, func(o *Options) {
		for name, rights := range testKeys {
			scopes, prefixes, _ := strings.Cut(rights, " ")
			expires := ""
			if name == "expired" {
				expires = o.now().Format(time.RFC3339)
			}
			key := auth.NewKey()
			line, err := auth.Line(key, name, scopes, prefixes, expires)
			if err != nil {
				t.Fatal(err)
			}
			g.lines[name], g.as[name] = line, "Authorization: Bearer "+key.Reveal()
		}
		g.lines["mtls"] = "cert ours.example scope=read,lock,fence,admin prefix=ours/"
		g.keys = auth.New(g.parse(t), o.now)
		o.Keys = g.keys
	})...)
	g.as["wrong"] = "Authorization: Bearer " + auth.NewKey().Reveal()
	return g
}

// startGuarded makes a gateway with testKeys that listens.
func startGuarded(t testing.TB, options ...func(*Options)) *guarded {
	t.Helper()
	g := newGuarded(t, options...)
	g.listen(func(server *http.Server) {
		next := server.Handler
		server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if name := r.Header.Get(testCertificate); name != "" {
				leaf := &x509.Certificate{DNSNames: []string{name, "another.example"}, NotAfter: time.Now().Add(time.Hour)}
				r.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{leaf}}}
			}
			next.ServeHTTP(w, r)
		})
	})
	return g
}

// parse returns what the lines say.
func (g *guarded) parse(t testing.TB) *auth.Set {
	t.Helper()
	var file strings.Builder
	for _, line := range g.lines {
		file.WriteString(line + "\n")
	}
	set, err := auth.Parse([]byte(file.String()))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// note counts what reaches the store.
func (g *guarded) note() {
	g.store.set(func(s *scriptedStore) {
		s.beforeName = func(verb string, _ fencing.Name) error { return s.before(verb) }
		s.before = func(verb string) error {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.asked = append(g.asked, verb)
			return nil
		}
	})
}

func (g *guarded) reached() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	asked := g.asked
	g.asked = nil
	return asked
}

// cell is a column of the matrix: who asks.
var cells = []string{"none", "wrong", "expired", "stranger", "read", "lock", "fence", "other", "admin", "mtls"}

// row is a request of the matrix with the status for each of the cells. Its parts may
// have NAME, which is a name below ours/ that is held, LEASE with TOKEN, and FREE, one
// that is not.
type row struct {
	operation, path, body string
	headers               []string
	want                  string
}

var matrix = []row{
	//                                                                                          none wrong expired stranger read lock fence other admin mtls
	{"POST /locks/{name}", "/locks/FREE", "", nil, "401 401 401 401 403 201 403 403 403 201"},
	{"PUT /locks/{name}", "/locks/NAME", "", []string{"Lease-Id: LEASE"}, "401 401 401 401 403 200 403 403 403 200"},
	{"DELETE /locks/{name}", "/locks/NAME", "", []string{"Lease-Id: LEASE"}, "401 401 401 401 403 204 403 403 403 204"},
	{"DELETE /locks/{name}", "/locks/NAME", "", []string{`If-Match: "TOKEN"`}, "401 401 401 401 403 403 403 403 204 204"},
	{"DELETE /locks/{name}", "/locks/NAME", "", []string{`If-Match: "TOKEN"`, "Lease-Id: LEASE"}, "401 401 401 401 403 403 403 403 400 400"},
	{"DELETE /locks/{name}", "/locks/NAME?notice_ms=1000", "", []string{`If-Match: "TOKEN"`}, "401 401 401 401 403 403 403 403 202 202"},
	{"DELETE /queues/{name}", "/queues/NAME?lease=01JZ0000000000000000000000", "", nil, "401 401 401 401 403 403 403 403 404 404"},
	{"GET /locks/{name}", "/locks/NAME", "", nil, "401 401 401 401 200 403 403 403 403 200"},
	{"POST /locks", "/locks", `{"names":["FREE","ours/x"]}`, nil, "401 401 401 401 403 201 403 403 403 201"},
	{"PUT /locks", "/locks", `{"names":["NAME"]}`, []string{"Lease-Id: LEASE"}, "401 401 401 401 403 200 403 403 403 200"},
	{"DELETE /locks", "/locks?name=NAME", "", []string{"Lease-Id: LEASE"}, "401 401 401 401 403 204 403 403 403 204"},
	{"GET /locks", "/locks", "", nil, "401 401 401 401 200 403 403 200 403 200"},
	{"GET /fences/{name}", "/fences/NAME?token=TOKEN", "", nil, "401 401 401 401 403 403 200 403 403 200"},
	{"POST /fences/{name}", "/fences/NAME", `{"fencing_token":TOKEN}`, nil, "401 401 401 401 403 403 200 403 403 200"},
	{"GET /authorize/{name}", "/authorize/NAME", "", []string{"Fencing-Token: TOKEN"}, "401 401 401 401 403 403 200 403 403 200"},
	{"POST /authorize/{name}", "/authorize/NAME", "", []string{"Fencing-Token: TOKEN"}, "401 401 401 401 403 403 200 403 403 200"},
	{"PUT /authorize/{name}", "/authorize/NAME", "", []string{"Fencing-Token: TOKEN"}, "401 401 401 401 403 403 200 403 403 200"},
	{"PATCH /authorize/{name}", "/authorize/NAME", "", []string{"Fencing-Token: TOKEN"}, "401 401 401 401 403 403 200 403 403 200"},
	{"DELETE /authorize/{name}", "/authorize/NAME", "", []string{"Fencing-Token: TOKEN"}, "401 401 401 401 403 403 200 403 403 200"},
	{"GET /history/{name}", "/history/NAME", "", nil, "401 401 401 401 200 403 403 403 403 200"},
	{"GET /events", "/events", "", nil, "401 401 401 401 200 403 403 200 403 200"},
	{"GET /livez", "/livez", "", nil, "200 200 200 200 200 200 200 200 200 200"},
	{"GET /readyz", "/readyz", "", nil, "200 200 200 200 200 200 200 200 200 200"},
	{"GET /readyz", "/readyz?verbose", "", nil, "401 401 401 401 200 403 403 200 403 200"},
	{"GET /metrics", "/metrics", "", nil, "401 401 401 401 200 403 403 200 403 200"},
	{"GET /openapi.yaml", "/openapi.yaml", "", nil, "200 200 200 200 200 200 200 200 200 200"},
	{"GET /", "/", "", nil, "200 200 200 200 200 200 200 200 200 200"},
	{"GET /assets/{file}", "/assets/style.css", "", nil, "200 200 200 200 200 200 200 200 200 200"},
}

// TestMatrix asks for everything that the route table has with every kind of key. What is
// refused must not have reached the store.
func TestMatrix(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	g.note()
	rows := map[string][]row{}
	for _, r := range matrix {
		rows[r.operation] = append(rows[r.operation], r)
	}
	n := 0
	for _, rt := range g.routeTable() {
		for method := range rt.methods {
			operation := method + " " + rt.path
			if len(rows[operation]) == 0 {
				t.Errorf("%s has no row", operation)
			}
			for _, r := range rows[operation] {
				wanted := strings.Fields(r.want)
				if len(wanted) != len(cells) {
					t.Fatalf("%s has %d cells", operation, len(wanted))
				}
				for i, who := range cells {
					methods := []string{method}
					if method == "GET" {
						methods = append(methods, "HEAD")
					}
					for _, method := range methods {
						n++
						g.tryCell(t, n, method, r, who, wanted[i])
					}
				}
			}
			delete(rows, operation)
		}
	}
	for operation := range rows {
		t.Errorf("%s is in no route", operation)
	}
}

func (g *guarded) tryCell(t *testing.T, n int, method string, r row, who, want string) {
	t.Helper()
	g.clock.advance(time.Hour) // all failures are forgiven
	name := fmt.Sprintf("ours/%d", n)
	held := g.do("POST", "/locks/"+name, "", g.as["all"]).want(t, 201)
	g.do("DELETE", "/locks?name=ours/x", "", g.as["all"], "Lease-Id: "+newID())
	fill := strings.NewReplacer("NAME", name, "FREE", name+"/free", "LEASE", held.text("lease_id"), "TOKEN", fmt.Sprint(held.number("fencing_token")))
	headers := []string{g.as[who]}
	for _, header := range r.headers {
		headers = append(headers, fill.Replace(header))
	}
	g.reached()
	logged := len(g.log.String())
	what := fmt.Sprintf("%s %s %v as %s", method, r.path, r.headers, who)
	if r.operation == "GET /events" && method == "GET" && want == "200" {
		s := g.stream(method, r.path, "", headers...)
		s.cancel()
		return
	}
	a := g.do(method, fill.Replace(r.path), fill.Replace(r.body), headers...)
	if fmt.Sprint(a.status) != want {
		t.Errorf("%s: %d, want %s: %s", what, a.status, want, a.body)
	}
	asked := g.reached()
	switch a.status {
	case 401:
		if len(asked) > 0 || a.header.Get("Www-Authenticate") != `Bearer realm="fencepost"` {
			t.Errorf("%s: %v has been asked; %v", what, asked, a.header)
		}
		if a.json != nil && a.json["code"] != string(fencing.CodeUnauthenticated) {
			t.Errorf("%s: %s", what, a.body)
		}
	case 403:
		if len(asked) > 0 {
			t.Errorf("%s: %v has been asked", what, asked)
		}
		if a.json != nil && a.json["code"] != string(fencing.CodeForbidden) {
			t.Errorf("%s: %s", what, a.body)
		}
	}
	lines := auditLines(t, g.log.String()[logged:])
	switch {
	case a.status == 401 || a.status == 403:
		if len(lines) != 1 || lines[0]["event"] != "refused" {
			t.Fatalf("%s: the audit has %v", what, lines)
		}
		// What a body names is not read of who is refused before.
		named := ""
		if in := r.path; strings.Contains(in, "NAME") || strings.Contains(in, "FREE") || who == "other" && strings.Contains(r.body, "names") {
			named = name
			if strings.Contains(in+r.body, "FREE") {
				named += "/free"
			}
		}
		lines[0].wantFields(t, what, named)
	case strings.HasPrefix(r.operation, "DELETE /queues"), method == "DELETE" && len(r.headers) == 1 && strings.HasPrefix(r.headers[0], "If-Match"):
		if len(lines) != 1 {
			t.Fatalf("%s: the audit has %v", what, lines)
		}
		lines[0].wantFields(t, what, name)
	case len(lines) > 0:
		t.Errorf("%s: the audit has %v", what, lines)
	}
	if who == "other" && strings.Contains(a.body, name) && a.status != 403 {
		t.Errorf("%s: it tells of %s: %s", what, name, a.body)
	}
}

// auditLine is a line of the audit.
type auditLine map[string]any

func auditLines(t testing.TB, log string) (lines []auditLine) {
	t.Helper()
	for text := range strings.Lines(log) {
		var entry struct {
			Msg   string
			Audit auditLine
		}
		if err := json.Unmarshal([]byte(text), &entry); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if entry.Msg == "audit" {
			lines = append(lines, entry.Audit)
		}
	}
	return lines
}

// auditFields returns the fields that docs/security.md promises of an event, and those that it has in some cases.
var auditFields = sync.OnceValue(func() map[string]map[string]bool {
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		panic(err)
	}
	fields := map[string]map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`[a-z_`, ]+`) \\| [^|]+ \\| ([^|]+) \\|$").FindAllStringSubmatch(string(page), -1) {
		for event := range strings.SplitSeq(row[2], ", ") {
			event, sometimes := strings.CutSuffix(event, "?")
			event = strings.Trim(event, "`")
			if fields[event] == nil {
				fields[event] = map[string]bool{}
			}
			for field := range strings.SplitSeq(row[1], ", ") {
				fields[event][strings.Trim(field, "`")] = !sometimes
			}
		}
	}
	return fields
})

// wantFields wants the fields that the page promises, no others, and the name, or none.
func (l auditLine) wantFields(t testing.TB, what, name string) {
	t.Helper()
	promised := auditFields()[fmt.Sprint(l["event"])]
	if len(promised) < 5 {
		t.Fatalf("%s: docs/security.md promises %v of %v", what, promised, l["event"])
	}
	for field, always := range promised {
		if value := l[field]; always && (value == nil || value == "") {
			t.Errorf("%s: the audit has no %s: %v", what, field, l)
		}
	}
	for field := range l {
		if _, ok := promised[field]; !ok {
			t.Errorf("%s: docs/security.md has no %s: %v", what, field, l)
		}
	}
	if got, _ := l["name"].(string); got != name {
		t.Errorf("%s: the audit has the name %q, want %q", what, got, name)
	}
}

// TestSecurityIsDocumented: the contract says of each operation which scope it needs.
func TestSecurityIsDocumented(t *testing.T) {
	t.Parallel()
	for _, rt := range newServer(t).routeTable() {
		for name, method := range rt.methods {
			want := map[string]bool{}
			for _, header := range []http.Header{{}, {"If-Match": {`"1"`}}} {
				for _, query := range []string{"", "verbose"} {
					r, _ := http.NewRequest(name, "http://localhost"+rt.path+"?"+query, nil)
					r.Header = header
					want[method.scope(r).String()] = true
				}
			}
			got := map[string]bool{}
			security := contract().Paths.Value(rt.path).GetOperation(name).Security
			if security == nil {
				t.Errorf("%s %s has no security", name, rt.path)
				continue
			}
			for _, one := range *security {
				if len(one) == 0 {
					got["anyone"] = true
				}
				for _, scopes := range one {
					for _, scope := range scopes {
						got[scope] = true
					}
				}
			}
			if len(*security) == 0 {
				got["anyone"] = true
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s %s: the contract says %v, the route needs %v", name, rt.path, got, want)
			}
		}
	}
}

// TestNamesAtBorders: however a name is written, the key of ours/ gets what is below
// ours, and nothing else.
func TestNamesAtBorders(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	for path, status := range map[string]int{
		"ours/b": 201, "ours%2Fc": 201, "ours%2fd": 201, "ours/b/c": 201, "%6Furs/e": 201,
		"ours": 403, "oursx": 403, "oursx/a": 403, "ours.a": 403, "Ours/a": 403, "theirs/a": 403, "theirs%2Fa": 403, "x/ours/a": 403,
		"ours/": 400, "ours//a": 400, "ours%2F": 400, "ours/../theirs/a": 400, "ours%2F..%2Ftheirs%2Fa": 400, "ours/%2e%2e/theirs": 400, "ours/%00": 400,
		"%2Fours/a": 403, "/ours/a": 403, "./ours/a": 403, "ours%252Fa": 403, "%6Furs": 403,
	} {
		if a := g.do("POST", "/locks/"+path, "", g.as["ours"]); a.status != status {
			t.Errorf("%s: %d, want %d: %s", path, a.status, status, a.body)
		}
	}
}

// TestSetsAreRefusedWhole: one name that may not be used, and nothing is done.
func TestSetsAreRefusedWhole(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	held := g.do("POST", "/locks", `{"names":["ours/a","theirs/a"]}`, g.as["all"]).want(t, 201)
	own := "Lease-Id: " + held.text("lease_id")
	expires := g.lock("ours/a").Holders[0].ExpiresAt
	g.clock.advance(time.Second)
	g.note()
	for _, c := range [][3]string{
		{"POST", "/locks", `{"names":["ours/b","theirs/b"],"wait_ms":1000}`},
		{"POST", "/locks", `{"names":["ours","ours/b"]}`},
		{"PUT", "/locks", `{"names":["ours/a","theirs/a"]}`},
		{"DELETE", "/locks?name=ours/a&name=theirs/a", ""},
	} {
		a := g.do(c[0], c[1], c[2], g.as["ours"], own).problem(t, 403, fencing.CodeForbidden)
		if !strings.Contains(a.text("detail"), "ours/") {
			t.Errorf("%v: %s", c, a.body)
		}
		if asked := g.reached(); len(asked) > 0 {
			t.Errorf("%v: %v has been asked", c, asked)
		}
	}
	if lock := g.lock("ours/a"); !lock.Held() || lock.Holders[0].ExpiresAt != expires {
		t.Errorf("%+v", lock)
	}
}

// TestListsTellOfOwnNames pages through what a key may see, in steps of any size.
func TestListsTellOfOwnNames(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	g.lines["mixed"] = strings.Replace(g.lines["read"], "prefix=ours/", "prefix=ours/,solo,m/n/,zz/", 1)
	delete(g.lines, "read")
	g.keys.Replace(g.parse(t))
	own := []string{"m/n/a", "m/n/b", "ours/a", "ours/b", "ours/b/c", "solo", "solo/a", "zz/1", "zz/2"}
	for _, name := range append([]string{"a", "m", "m/a", "m/na", "ours", "oursx", "ours.x/a", "soloist", "solo-a", "solo.x", "theirs/a", "zzz"}, own...) {
		g.do("POST", "/locks/"+name, `{"owner":"of `+name+`"}`, g.as["all"]).want(t, 201)
	}
	list := func(query string, limit int) (names []string) {
		cursor := ""
		for range 100 {
			a := g.do("GET", fmt.Sprintf("/locks?limit=%d%s%s", limit, query, cursor), "", g.as["read"]).want(t, 200)
			for _, lock := range a.json["locks"].([]any) {
				names = append(names, lock.(map[string]any)["name"].(string))
			}
			next := a.text("next_cursor")
			if (next == "") != (a.header.Get("Link") == "") {
				t.Errorf("%v", a.header)
			}
			if next == "" {
				return names
			}
			after, err := parseCursor(next)
			if err != nil || !slices.Contains(own, string(after)) {
				t.Errorf("a cursor tells of %q", after)
			}
			cursor = "&cursor=" + next
		}
		t.Fatal("no end")
		return nil
	}
	below := func(prefix string) (names []string) {
		for _, name := range own {
			if strings.HasPrefix(name, prefix) {
				names = append(names, name)
			}
		}
		return names
	}
	for limit := 1; limit <= len(own)+1; limit++ {
		for _, prefix := range []string{"", "o", "ours", "ours/", "ours/b", "s", "solo", "solo/", "solo-", "m/n", "theirs/", "zz/2", "zzz"} {
			if got := list("&prefix="+prefix, limit); !slices.Equal(got, below(prefix)) {
				t.Errorf("limit %d, prefix %q: %v, want %v", limit, prefix, got, below(prefix))
			}
			a := g.do("GET", fmt.Sprintf("/locks?total=true&limit=%d&prefix=%s&cursor=%s", limit, prefix, cursorEncoding.EncodeToString([]byte("ours/a"))), "", g.as["read"]).want(t, 200)
			if got := int(a.number("total")); got != len(below(prefix)) {
				t.Errorf("limit %d, prefix %q: the total is %d, want %d", limit, prefix, got, len(below(prefix)))
			}
		}
		if got := list("&q=of+s", limit); !slices.Equal(got, []string{"solo", "solo/a"}) {
			t.Errorf("limit %d: %v", limit, got)
		}
		if got := list("&q=theirs", limit); len(got) > 0 {
			t.Errorf("limit %d: %v", limit, got)
		}
	}
	if a := g.do("GET", "/locks?cursor="+cursorEncoding.EncodeToString([]byte("theirs/a")), "", g.as["read"]).want(t, 200); strings.Contains(a.body, "theirs") || !strings.Contains(a.body, "zz/1") {
		t.Errorf("%s", a.body)
	}
}

// TestEventsTellOfOwnNames: a stream leaves out others' names, whatever prefix was asked.
func TestEventsTellOfOwnNames(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	own, all := g.stream("GET", "/events", "", g.as["ours"]), g.stream("GET", "/events", "", g.as["all"])
	begun := g.stream("GET", "/events?prefix=our", "", g.as["ours"])
	for _, name := range []string{"theirs/a", "ours", "oursx/a", "ours/a"} {
		g.do("POST", "/locks/"+name, "", g.as["all"]).want(t, 201)
	}
	for _, s := range []*openedStream{own, begun} {
		if e := s.next("granted"); e.text("name") != "ours/a" {
			t.Errorf("%s", e.data)
		}
	}
	if e := all.next("granted"); e.text("name") != "theirs/a" {
		t.Errorf("%s", e.data)
	}
}
