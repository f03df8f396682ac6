package fence_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"fencepost/fence"
)

// send makes a request to the handler; the values are those of the header.
func send(h http.Handler, method, path string, values ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader("content"))
	r.Header["Fencing-Token"] = values
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestHandler(t *testing.T) {
	served := 0
	h := fence.Handler(new(fence.Memory), nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served++
		w.WriteHeader(http.StatusNoContent)
	}))
	for i, step := range []struct {
		method, path string
		values       []string
		status       int
		code         string
	}{
		{"PUT", "/a", []string{"20"}, 204, ""},
		{"PUT", "/a", []string{"20"}, 204, ""},
		{"PUT", "/a", []string{"19"}, 412, "stale_token"},
		{"DELETE", "/a", []string{"19"}, 412, "stale_token"},
		{"PUT", "/b", []string{"19"}, 204, ""},
		{"POST", "/a", nil, 428, "fencing_token_required"},
		{"GET", "/a", nil, 204, ""},
		{"HEAD", "/a", []string{"1"}, 204, ""},
		{"OPTIONS", "/a", nil, 204, ""},
		{"PUT", "/a", []string{""}, 400, "invalid_request"},
		{"PUT", "/a", []string{"21", "22"}, 400, "invalid_request"},
		{"PUT", "/a", []string{"21, 22"}, 400, "invalid_request"},
		{"PUT", "/a", []string{"21;slot=-1"}, 400, "invalid_request"},
		{"PUT", "/a", []string{"21;slot=10000"}, 400, "invalid_request"},
		{"PUT", "/a", []string{"21;slot=01"}, 400, "invalid_request"},
		{"PUT", "/a", []string{"21;slot="}, 400, "invalid_request"},
		{"PUT", "/a", []string{"21;"}, 400, "invalid_request"},
		{"PUT", "/a", []string{"21;slot=1;slot=2"}, 400, "invalid_request"},
		{"PUT", "/a", []string{"21;other=1"}, 400, "invalid_request"},
		{"PUT", "/a", []string{"9007199254740992"}, 400, "invalid_request"},
		{"PUT", "/" + strings.Repeat("a", 255), []string{"1"}, 204, ""},
		{"PUT", "/" + strings.Repeat("a", 256), []string{"1"}, 400, "invalid_request"},
		{"PUT", "//a", []string{"19"}, 400, "invalid_request"}, // names of what may be /a
		{"PUT", "/./a", []string{"19"}, 400, "invalid_request"},
		{"PUT", "/b/../a", []string{"19"}, 400, "invalid_request"},
		{"PUT", "/b/%2e%2e/a", []string{"19"}, 400, "invalid_request"},
		{"PUT", "/a/", []string{"19"}, 400, "invalid_request"},
		{"PUT", "/", []string{"19"}, 400, "invalid_request"},
		{"PUT", "/.", []string{"19"}, 400, "invalid_request"},
		{"PUT", "/%61", []string{"19"}, 412, "stale_token"},
		{"PUT", "/c", []string{"30;slot=1"}, 204, ""},
		{"PUT", "/c", []string{"20; slot=0"}, 204, ""},
		{"PUT", "/c", []string{"29;slot=1"}, 412, "stale_token"},
		{"PUT", "/c", []string{"29"}, 412, "stale_token"},
	} {
		before := served
		w := send(h, step.method, step.path, step.values...)
		if w.Code != step.status || (served > before) != (step.status == 204) {
			t.Errorf("request %d: %d %s; it was served: %v", i, w.Code, w.Body, served > before)
		}
		if step.code == "" {
			continue
		}
		var problem struct{ Type, Title, Code, Detail string }
		if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil || problem.Code != step.code || problem.Title == "" || problem.Detail == "" {
			t.Errorf("request %d: %s, %v", i, w.Body, err)
		}
		if kind := w.Header().Get("Content-Type"); kind != "application/problem+json" {
			t.Errorf("request %d: it is %s", i, kind)
		}
	}
	var stale struct {
		Token   int64 `json:"fencing_token"`
		Highest int64 `json:"highest_admitted"`
	}
	if err := json.Unmarshal(send(h, "PUT", "/a", "19").Body.Bytes(), &stale); err != nil || stale.Token != 19 || stale.Highest != 20 {
		t.Errorf("%+v, %v", stale, err)
	}
}

// The caller says what a request writes.
func TestHandlerResource(t *testing.T) {
	h := fence.Handler(new(fence.Memory), func(r *http.Request) string { return r.URL.Query().Get("id") },
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for path, status := range map[string]int{"/a?id=7": 200, "/b": 400} {
		if w := send(h, "PUT", path, "5"); w.Code != status {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	if w := send(h, "PUT", "/b?id=7", "4"); w.Code != http.StatusPreconditionFailed {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// Where the guard fails nothing is written, and what failed is nobody's business.
func TestHandlerFailsClosed(t *testing.T) {
	h := fence.Handler(brokenGuard{}, nil, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was served") }))
	if w := send(h, "PUT", "/a", "5"); w.Code != http.StatusServiceUnavailable || strings.Contains(w.Body.String(), "secret") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

type brokenGuard struct{}

func (brokenGuard) Do(context.Context, string, int64, int, func() error) error {
	return errors.New("no space left in /a/secret/place")
}

// While a request is served, its body read, nobody else is admitted to its resource.
func TestHandlerTurns(t *testing.T) {
	stored := ""
	h := fence.Handler(new(fence.Memory), nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		stored = string(content)
	}))
	body, sender := io.Pipe()
	var first sync.WaitGroup
	first.Go(func() {
		r := httptest.NewRequest("PUT", "/a", body)
		r.Header.Set(fence.Header, "5")
		h.ServeHTTP(httptest.NewRecorder(), r)
	})
	if _, err := sender.Write([]byte("five")); err != nil { // it is being served
		t.Fatal(err)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	r := httptest.NewRequestWithContext(gone, "PUT", "/a", strings.NewReader("six"))
	r.Header.Set(fence.Header, "6")
	second := httptest.NewRecorder()
	if h.ServeHTTP(second, r); second.Code != http.StatusServiceUnavailable {
		t.Errorf("the second is answered %d", second.Code)
	}
	sender.Close()
	if first.Wait(); stored != "five" {
		t.Errorf("%q is stored", stored)
	}
}

func FuzzParseHeader(f *testing.F) {
	for _, value := range []string{"1", "9007199254740991;slot=9999", "5; slot=0", "5;slot=", ";", "5;slot=0x1"} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		token, slot, err := fence.ParseHeader(value)
		switch {
		case err != nil && !errors.Is(err, fence.ErrInvalid):
			t.Error(err)
		case err == nil:
			var mark fence.Mark
			if err := mark.Admit(token, slot); err != nil {
				t.Errorf("%q is read as %d, %d: %v", value, token, slot, err)
			}
		}
	})
}

// Before a Dir the path of the URL is the file's, and both ways to write it have one mark.
func TestHandlerBeforeDir(t *testing.T) {
	d := openDir(t, t.TempDir())
	h := fence.Handler(d, nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	}))
	if w := send(h, "PUT", "/a.txt", "5"); w.Code != http.StatusNoContent {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
	err := d.WriteFile(t.Context(), "a.txt", 4, no, []byte("stale"))
	if _, stale := errors.AsType[*fence.StaleError](err); !stale {
		t.Error(err)
	}
}
