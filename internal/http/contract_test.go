package http

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/go-chi/chi/v5"
	"github.com/oasdiff/yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.uber.org/goleak"

	"fencepost/api"
	"fencepost/internal/fencing"
)

// TestMain checks, after a full run, that every status the contract documents
// has been answered by the gateway in some test. A run without the tests of the
// second tier is a full one.
func TestMain(m *testing.M) {
	flag.Parse()
	goleak.VerifyTestMain(contractRun{m})
}

type contractRun struct{ *testing.M }

func (m contractRun) Run() int {
	code := m.M.Run()
	partial := flag.Lookup("test.run").Value.String() != "" || flag.Lookup("test.fuzz").Value.String() != "" ||
		!slices.Contains([]string{"", "^TestSystem"}, flag.Lookup("test.skip").Value.String()) || flag.Lookup("test.list").Value.String() != ""
	if code == 0 && !partial {
		if unseen := contract().unseen(); len(unseen) > 0 {
			fmt.Fprintf(os.Stderr, "FAIL: documented, but answered in no test:\n\t%s\n", strings.Join(unseen, "\n\t"))
			return 1
		}
	}
	return code
}

// document is api/openapi.yaml, closed: an answer with a member that is not
// documented fails.
type document struct {
	*openapi3.T
	older      *openapi3.T // says that it is of OpenAPI 3.0: see check
	components any

	mu       sync.Mutex
	seen     map[string]bool
	compiler *jsonschema.Compiler
	compiled map[*openapi3.Schema]*jsonschema.Schema
}

var contract = sync.OnceValue(func() *document {
	raw, err := yaml.YAMLToJSON(api.OpenAPI)
	if err != nil {
		panic(err)
	}
	var tree map[string]any
	if err := json.Unmarshal(raw, &tree); err != nil {
		panic(err)
	}
	for _, schema := range tree["components"].(map[string]any)["schemas"].(map[string]any) {
		if s := schema.(map[string]any); s["properties"] != nil {
			s["additionalProperties"] = false
		}
	}
	closed, err := json.Marshal(tree)
	if err != nil {
		panic(err)
	}
	doc, err := openapi3.NewLoader().LoadFromData(closed)
	if err != nil {
		panic(err)
	}
	older := *doc
	older.OpenAPI = "3.0.3"
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.AssertFormat()
	return &document{
		T: doc, older: &older, components: tree["components"], seen: map[string]bool{},
		compiler: compiler, compiled: map[*openapi3.Schema]*jsonschema.Schema{},
	}
})

// conforms holds a value against a schema of the document, which is compiled once:
// kin-openapi compiles it for each value, which is most of what a test takes.
func (d *document) conforms(schema *openapi3.Schema, value any) error {
	compiled, err := d.compile(schema)
	if err != nil {
		return err
	}
	return compiled.Validate(value)
}

func (d *document) compile(schema *openapi3.Schema) (*jsonschema.Schema, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if compiled := d.compiled[schema]; compiled != nil {
		return compiled, nil
	}
	raw, err := json.Marshal(schema)
	if err != nil {
		return nil, err
	}
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return nil, err
	}
	name := fmt.Sprintf("contract:///%d", len(d.compiled))
	if err := d.compiler.AddResource(name, map[string]any{"components": d.components, "schema": tree}); err != nil {
		return nil, err
	}
	compiled, err := d.compiler.Compile(name + "#/schema")
	if err == nil {
		d.compiled[schema] = compiled
	}
	return compiled, err
}

// checkBody holds an answer against what is documented for its content type.
func (d *document) checkBody(response *openapi3.Response, header http.Header, answer []byte) error {
	if len(response.Content) == 0 {
		return nil
	}
	media := response.Content.Get(header.Get("Content-Type"))
	if media == nil {
		return fmt.Errorf("the content type %q is not documented", header.Get("Content-Type"))
	}
	if media.Schema == nil {
		return nil
	}
	var value any = string(answer)
	var err error
	switch mime := header.Get("Content-Type"); {
	case strings.HasSuffix(mime, "json"):
		err = json.Unmarshal(answer, &value)
	case mime == "application/yaml":
		if answer, err = yaml.YAMLToJSON(answer); err == nil {
			err = json.Unmarshal(answer, &value)
		}
	}
	if err != nil {
		return err
	}
	return d.conforms(media.Schema.Value, value)
}

func seenKey(operation string, status int) string { return operation + " " + strconv.Itoa(status) }

func (d *document) unseen() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var unseen []string
	for _, item := range d.Paths.Map() {
		for _, operation := range item.Operations() {
			for status := range operation.Responses.Map() {
				if key := operation.OperationID + " " + status; !d.seen[key] {
					unseen = append(unseen, key)
				}
			}
		}
	}
	slices.Sort(unseen)
	return unseen
}

// route finds the operation of a request by the router's own pattern.
func (d *document) route(s *Server, method, path string) (*routers.Route, map[string]string) {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	rctx := chi.NewRouteContext()
	pattern := s.mux.Find(rctx, method, path)
	for _, rt := range s.routeTable() {
		if rt.pattern != pattern {
			continue
		}
		item := d.Paths.Value(rt.path)
		if item == nil || item.GetOperation(method) == nil {
			break
		}
		params := map[string]string{}
		if prefix, found := strings.CutSuffix(pattern, "*"); found {
			_, param, _ := strings.Cut(rt.path, "{")
			params[strings.TrimSuffix(param, "}")] = strings.TrimPrefix(path, prefix)
		}
		return &routers.Route{Spec: d.T, Path: rt.path, PathItem: item, Method: method, Operation: item.GetOperation(method)}, params
	}
	return nil, nil
}

// check holds a request and its answer against the contract. A request that
// was served must be one the contract allows.
func (d *document) check(s *Server, r *http.Request, body string, status int, header http.Header, answer []byte) error {
	for name, want := range map[string]string{
		"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
	} {
		if got := header.Values(name); len(got) != 1 || got[0] != want {
			return fmt.Errorf("header %s is %q, want %q", name, got, want)
		}
	}
	if streams := header.Get("Content-Type") == "text/event-stream"; streams != (header.Get("X-Accel-Buffering") == "no") {
		return fmt.Errorf("header X-Accel-Buffering is %q in an answer of %s", header.Values("X-Accel-Buffering"), header.Get("Content-Type"))
	}
	route, params := d.route(s, r.Method, r.URL.Path)
	if route == nil {
		if status != 404 && status != 405 && status != 421 && status != 403 && status != 429 {
			return fmt.Errorf("%s %s answers %d and is not in the contract", r.Method, r.URL.Path, status)
		}
		if r.Method == http.MethodHead {
			return nil
		}
		var value any
		if err := json.Unmarshal(answer, &value); err != nil {
			return err
		}
		return d.conforms(d.Components.Schemas["Problem"].Value, value)
	}

	request := r.Clone(context.Background())
	request.Body = io.NopCloser(strings.NewReader(body))
	request.Header.Set("Content-Type", "application/json") // the gateway reads JSON whatever it says
	options := &openapi3filter.Options{IncludeResponseStatus: true, SkipSettingDefaults: true, MultiError: true,
		AuthenticationFunc: openapi3filter.NoopAuthenticationFunc}
	input := &openapi3filter.RequestValidationInput{Request: request, PathParams: params, Route: route, Options: options}
	if status < 300 {
		if err := openapi3filter.ValidateRequest(context.Background(), input); err != nil {
			return fmt.Errorf("the gateway serves a request that the contract does not allow: %w", err)
		}
	}
	// Of headers it is said in words of 3.0 what they are: without those of 3.1 they are compiled once.
	route.Spec, options.ExcludeResponseBody = d.older, true
	err := openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: status, Header: header, Options: options,
	})
	if err == nil && r.Method != http.MethodHead {
		err = d.checkBody(route.Operation.Responses.Status(status).Value, header, answer)
	}
	if err != nil {
		return fmt.Errorf("%s %s: the answer is not in the contract: %w", r.Method, r.URL.Path, err)
	}
	if r.Method != http.MethodHead {
		d.mu.Lock()
		d.seen[seenKey(route.Operation.OperationID, status)] = true
		d.mu.Unlock()
	}
	return nil
}

func TestContractIsValid(t *testing.T) {
	t.Parallel()
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context(), openapi3.EnableExamplesValidation(), openapi3.EnableSchemaPatternValidation()); err != nil {
		t.Fatal(err)
	}
	for path, item := range doc.Paths.Map() {
		for method, operation := range item.Operations() {
			for status, response := range operation.Responses.Map() {
				for mime, media := range response.Value.Content {
					if media.Schema != nil && media.Example == nil {
						t.Errorf("%s %s %s %s has no example", method, path, status, mime)
					}
				}
			}
			for _, parameter := range append(operation.Parameters, item.Parameters...) {
				if parameter.Value.Example == nil {
					t.Errorf("%s %s: parameter %s has no example", method, path, parameter.Value.Name)
				}
			}
		}
	}
}

// TestContractExamplesMatch checks the examples against the closed schemas:
// kin-openapi's own check lets unknown members pass.
func TestContractExamplesMatch(t *testing.T) {
	checked := 0
	for _, item := range contract().Paths.Map() {
		for _, operation := range item.Operations() {
			for status, response := range operation.Responses.Map() {
				for _, media := range response.Value.Content {
					if media.Schema == nil {
						continue
					}
					checked++
					if err := contract().conforms(media.Schema.Value, media.Example); err != nil {
						t.Errorf("%s %s: %v", operation.OperationID, status, err)
					}
				}
			}
		}
	}
	if checked < 30 {
		t.Errorf("only %d examples were checked", checked)
	}
}

func TestRoutesAreThoseOfTheContract(t *testing.T) {
	t.Parallel()
	served := map[string]bool{}
	s := newServer(t).Server
	paths := map[string]string{}
	for _, rt := range s.routeTable() {
		paths[rt.pattern] = rt.path
	}
	err := chi.Walk(s.mux, func(method, pattern string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		if method != http.MethodHead {
			served[method+" "+paths[pattern]] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for path, item := range contract().Paths.Map() {
		for method := range item.Operations() {
			documented[method+" "+path] = true
		}
	}
	if !maps.Equal(served, documented) {
		t.Errorf("served:\n%v\ndocumented:\n%v", slices.Sorted(maps.Keys(served)), slices.Sorted(maps.Keys(documented)))
	}
}

func TestContractHasTheVocabulary(t *testing.T) {
	for schema, want := range map[string][]string{"Code": texts(fencing.Codes()), "Reason": texts(fencing.Reasons()), "Verdict": texts(fencing.Verdicts())} {
		var got []string
		for _, value := range contract().Components.Schemas[schema].Value.Enum {
			got = append(got, value.(string))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s is %v in the contract, %v in fencing", schema, got, want)
		}
	}
	var mapped []string
	for code := range problems {
		mapped = append(mapped, string(code))
	}
	slices.Sort(mapped)
	if want := slices.Sorted(slices.Values(texts(fencing.Codes()))); !slices.Equal(mapped, want) {
		t.Errorf("problems has %v, fencing has %v", mapped, want)
	}
	if got := contract().Components.Schemas["LeaseID"].Value.Pattern; got != fencing.LeaseIDPattern {
		t.Errorf("the contract's lease id is %s, fencing's is %s", got, fencing.LeaseIDPattern)
	}
}

func texts[T ~string](values []T) []string {
	var out []string
	for _, value := range values {
		out = append(out, string(value))
	}
	return out
}

// TestAnswersBesideTheContract makes sure that an answer which is not in the contract would be seen.
func TestAnswersBesideTheContract(t *testing.T) {
	t.Parallel()
	g := start(t)
	granted := g.do("POST", "/locks/a", "").want(t, 201)
	problem := g.do("POST", "/locks/a", "").want(t, 423)
	for _, tt := range []struct {
		what     string
		answer   *answered
		status   int
		header   string
		value    []string
		old, new string // of the body
	}{
		{what: "", answer: granted},
		{what: "", answer: problem},
		{what: "a member that is not documented", answer: granted, old: `{"`, new: `{"more":1,"`},
		{what: "a member that is missing", answer: granted, old: `"fencing_token"`, new: `"was_fencing_token"`},
		{what: "a text for a number", answer: granted, old: `"fencing_token":`, new: `"fencing_token":"1","hold":`},
		{what: "a time that is none", answer: granted, old: `"expires_at":"2026-01`, new: `"expires_at":"2026-13`},
		{what: "another status in the problem", answer: problem, old: `"status":423`, new: `"status":"423"`},
		{what: "a code that there is not", answer: problem, old: `"code":"locked"`, new: `"code":"taken"`},
		{what: "no JSON", answer: granted, old: `{`, new: ``},
		{what: "a status that is not documented", answer: granted, status: 299},
		{what: "a content type that is not documented", answer: granted, header: "Content-Type", value: []string{"text/plain"}},
		{what: "a header that is missing", answer: granted, header: "Fencing-Token"},
		{what: "a header that is no number", answer: problem, header: "Retry-After", value: []string{"soon"}},
		{what: "a header below its bound", answer: problem, header: "Retry-After", value: []string{"0"}},
	} {
		header, body := tt.answer.header.Clone(), strings.Replace(tt.answer.body, tt.old, tt.new, 1)
		if tt.header != "" {
			header[tt.header] = tt.value
		}
		if tt.old != "" && body == tt.answer.body {
			t.Errorf("%s: %q is not in %s", tt.what, tt.old, body)
		}
		err := contract().check(g.Server, httptest.NewRequest("POST", "/locks/a", nil), "", cmp.Or(tt.status, tt.answer.status), header, []byte(body))
		if (err == nil) != (tt.what == "") {
			t.Errorf("%s is answered: %v", tt.what, err)
		}
	}
}
