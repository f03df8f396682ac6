package fencetest_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/fence"
	"fencepost/fence/fencetest"
)

// table is storage in memory: how a write goes is up to it.
type table struct {
	mu    sync.Mutex
	data  map[string]string
	guard fence.Memory
	marks map[string]int64
	write func(t *table, w fencetest.Write) error

	looked chan struct{} // one that has looked meets another
}

func newTable(write func(t *table, w fencetest.Write) error) *table {
	return &table{data: map[string]string{}, marks: map[string]int64{}, write: write, looked: make(chan struct{})}
}

func (t *table) Write(_ context.Context, w fencetest.Write) error { return t.write(t, w) }

func (t *table) Read(_ context.Context, resource string) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.data[resource], nil
}

func (t *table) put(w fencetest.Write) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data[w.Resource] = w.Value
	return nil
}

// guarded is as it should be.
func guarded(t *table, w fencetest.Write) error {
	token, err := fence.ParseToken(w.Token)
	if err == nil {
		err = t.guard.Do(context.Background(), w.Resource, token, w.Slot, func() error { return t.put(w) })
	}
	return answer(err)
}

func answer(err error) error {
	if _, stale := errors.AsType[*fence.StaleError](err); stale || errors.Is(err, fence.ErrInvalid) {
		return fencetest.ErrRefused
	}
	return err
}

func attack(t *testing.T, s fencetest.Storage, o fencetest.Options) *fencetest.Report {
	t.Helper()
	report, err := fencetest.Attack(t.Context(), s, o)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestNothingGetsThrough(t *testing.T) {
	for name, s := range map[string]fencetest.Storage{
		"memory":                        newTable(guarded),
		"files":                         openFiles(t),
		"url":                           fencetest.URL{URL: startServer(t) + "/documents/"},
		"url with a place for the name": fencetest.URL{URL: startServer(t) + "/documents/{resource}"},
	} {
		t.Run(name, func(t *testing.T) {
			report := attack(t, s, fencetest.Options{Permits: true, Rounds: 2, Writers: 4})
			if err := report.Err(); err != nil || report.Blind {
				t.Errorf("%v\n%v", err, report)
			}
			for _, tally := range report.Tallies {
				if tally.Admitted == 0 || tally.Refused == 0 && strings.Contains("stale reordered no tokens permits", tally.Attack) {
					t.Errorf("it proves little: %+v", tally)
				}
			}
			if len(report.Notes) == 0 {
				t.Error("that nobody can tell a forged token is not said")
			}
		})
	}
}

// Defects of storage, each with the attacks that have to find it; others may, too.
var defects = map[string]struct {
	found string
	write func(t *table, w fencetest.Write) error
}{
	"no guard": {"stale, newer after stale, reordered, permits", func(t *table, w fencetest.Write) error { return t.put(w) }},
	"a look, and then a write": {"concurrent", func(t *table, w fencetest.Write) error {
		token, err := fence.ParseToken(w.Token)
		if err != nil {
			return fencetest.ErrRefused
		}
		t.mu.Lock()
		stale := token < t.marks[w.Resource]
		t.mu.Unlock()
		if stale {
			return fencetest.ErrRefused
		}
		select { // here a process may be stopped for a minute: another one looks meanwhile, if there is one
		case t.looked <- struct{}{}:
		case <-t.looked:
		case <-time.After(time.Millisecond):
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		t.marks[w.Resource] = max(token, t.marks[w.Resource])
		t.data[w.Resource] = w.Value
		return nil
	}},
	"equal tokens are refused": {"equal", compare(func(token, mark int64) bool { return token <= mark })},
	"one less is admitted":     {"stale, reordered", compare(func(token, mark int64) bool { return token < mark-1 })},
	"nothing is newer":         {"newer", compare(func(_, mark int64) bool { return mark > 0 })},
	"the last token counts, not the highest": {"stale, newer after stale", func(t *table, w fencetest.Write) error {
		token, err := fence.ParseToken(w.Token)
		t.mu.Lock()
		defer t.mu.Unlock()
		stale := err != nil || token < t.marks[w.Resource]
		if t.marks[w.Resource] = token; stale {
			return fencetest.ErrRefused
		}
		t.data[w.Resource] = w.Value
		return nil
	}},
	"it is written before it is refused": {"stale, no tokens", func(t *table, w fencetest.Write) error {
		_ = t.put(w)
		return guarded(t, w)
	}},
	"it is admitted and not written": {"newer", func(t *table, w fencetest.Write) error {
		if w.Value[len(w.Value)-1]%2 == 0 {
			return nil
		}
		return guarded(t, w)
	}},
	"what is no token counts as one": {"no tokens", func(t *table, w fencetest.Write) error {
		if n, err := strconv.ParseFloat(w.Token, 64); err == nil && n > 0 {
			w.Token = strconv.FormatInt(max(1, int64(n)), 10)
		}
		return guarded(t, w)
	}},
	"without a token it is admitted": {"no tokens", func(t *table, w fencetest.Write) error {
		if w.Token == "" {
			return t.put(w)
		}
		return guarded(t, w)
	}},
	"permits are fenced as one": {"permits", func(t *table, w fencetest.Write) error {
		w.Slot = fence.NoSlot
		return guarded(t, w)
	}},
	"permits are not below an exclusive lease": {"permits", func(t *table, w fencetest.Write) error {
		if w.Slot >= 0 {
			w.Resource += "/" + strconv.Itoa(w.Slot)
		}
		return guarded(t, w)
	}},
	"tokens are kept in 32 bits, and cut off there":     {"stale, highest", keep(func(token int64) int64 { return min(token, 1<<31-1) })},
	"of tokens the lower 32 bits are kept":              {"32 bits", keep(func(token int64) int64 { return int64(uint32(token)) })},
	"of tokens the lower 32 bits are kept, with a sign": {"32 bits", keep(func(token int64) int64 { return int64(int32(token)) })},
	"tokens are kept as floats of 32 bits":              {"stale, highest", keep(func(token int64) int64 { return int64(float32(token)) })},
	"tokens are kept with 14 digits": {"stale, highest", keep(func(token int64) int64 {
		kept, _ := strconv.ParseFloat(strconv.FormatFloat(float64(token), 'g', 14, 64), 64)
		return int64(kept)
	})},
	"a repeat that changes nothing is refused": {"repeated", func(t *table, w fencetest.Write) error {
		t.mu.Lock()
		same := w.Value == t.data[w.Resource]
		t.mu.Unlock()
		if same {
			return fencetest.ErrRefused
		}
		return guarded(t, w)
	}},
	"stale writes fail, and are not told": {"stale", func(t *table, w fencetest.Write) error {
		if err := guarded(t, w); err != nil {
			return errors.New("internal error")
		}
		return nil
	}},
}

// compare is a guard with another rule.
func compare(stale func(token, mark int64) bool) func(t *table, w fencetest.Write) error {
	return func(t *table, w fencetest.Write) error {
		token, err := fence.ParseToken(w.Token)
		t.mu.Lock()
		defer t.mu.Unlock()
		if err != nil || stale(token, t.marks[w.Resource]) {
			return fencetest.ErrRefused
		}
		t.marks[w.Resource] = token
		t.data[w.Resource] = w.Value
		return nil
	}
}

// keep is a guard right but for how it keeps tokens.
func keep(kept func(token int64) int64) func(t *table, w fencetest.Write) error {
	return func(t *table, w fencetest.Write) error {
		token, err := fence.ParseToken(w.Token)
		t.mu.Lock()
		defer t.mu.Unlock()
		if mark, known := t.marks[w.Resource]; err != nil || known && kept(token) < mark {
			return fencetest.ErrRefused
		}
		t.marks[w.Resource] = kept(token)
		t.data[w.Resource] = w.Value
		return nil
	}
}

func TestDefectsAreFound(t *testing.T) {
	for name, defect := range defects {
		t.Run(name, func(t *testing.T) {
			report := attack(t, newTable(defect.write), fencetest.Options{Permits: true})
			if report.Err() == nil {
				t.Fatal("nothing was found")
			}
			found := map[string]bool{}
			for _, tally := range report.Tallies {
				found[tally.Attack] = tally.Through > 0
			}
			for attack := range strings.SplitSeq(defect.found, ", ") {
				if !found[attack] {
					t.Errorf("%s has not found it\n%v", attack, report)
				}
			}
		})
	}
}

// Where it is known what was issued, nothing else may be admitted.
func TestUnissued(t *testing.T) {
	var mu sync.Mutex
	last := map[string]int64{}
	o := fencetest.Options{KnowsIssued: true, Issue: func(_ context.Context, resource string, n int) ([]int64, error) {
		mu.Lock()
		defer mu.Unlock()
		tokens := make([]int64, n)
		for i := range tokens {
			tokens[i] = int64(1000 * (i + 1))
		}
		last[resource] = tokens[n-1]
		return tokens, nil
	}}
	knows := func(t *table, w fencetest.Write) error {
		mu.Lock()
		defer mu.Unlock()
		if token, err := fence.ParseToken(w.Token); err == nil && token > last[w.Resource] {
			return fencetest.ErrRefused
		}
		return guarded(t, w)
	}
	if report := attack(t, newTable(knows), o); report.Err() != nil || len(report.Notes) > 0 {
		t.Error(report)
	}
	if report := attack(t, newTable(guarded), o); report.Err() == nil {
		t.Error(report)
	}
}

// Storage that can't be read is judged by its answers.
func TestBlind(t *testing.T) {
	address := startServer(t)
	if report := attack(t, fencetest.URL{URL: address + "/documents", WriteOnly: true}, fencetest.Options{}); report.Err() != nil || !report.Blind {
		t.Error(report)
	}
	if report := attack(t, fencetest.URL{URL: address + "/unguarded", WriteOnly: true}, fencetest.Options{}); report.Err() == nil {
		t.Error(report)
	}
}

// What can't be attacked is no success.
func TestFailures(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	gone := server.URL
	server.Close()
	if report, err := fencetest.Attack(t.Context(), fencetest.URL{URL: gone}, fencetest.Options{}); err == nil {
		t.Error(report)
	}
	if report := attack(t, fencetest.URL{URL: gone, WriteOnly: true}, fencetest.Options{}); report.Err() == nil {
		t.Error(report)
	}
	for _, o := range []fencetest.Options{{Rounds: -1}, {Writers: 1}, {Writers: 1001}, {KnowsIssued: true}, {
		Issue: func(_ context.Context, _ string, n int) ([]int64, error) { return make([]int64, n), nil },
	}} {
		if report, err := fencetest.Attack(t.Context(), newTable(guarded), o); err == nil {
			t.Errorf("%+v: %v", o, report)
		}
	}
}

// A command is asked by its environment, and answers by its exit status.
func TestCommand(t *testing.T) {
	t.Setenv("SLOT", "5") // of whoever runs the test
	dir := t.TempDir()
	script := filepath.Join(dir, "write")
	if err := os.WriteFile(script, []byte(`#!/bin/sh
case $FENCING_TOKEN in ''|0*|*[!0-9]*|?????????????????*) exit 1;; esac
[ "$FENCING_TOKEN" -le 9007199254740991 ] || exit 1
[ -z "${SLOT+set}" ] || exit 3
cd "$1" || exit 2
exec 9>"$RESOURCE.lock"
flock 9 || exit 2
highest=$(cat "$RESOURCE.fence" 2>/dev/null || echo 0)
[ "$FENCING_TOKEN" -ge "$highest" ] || [ -n "$2" ] || exit 1
echo "$FENCING_TOKEN" >"$RESOURCE.fence"
echo "$VALUE" >"$RESOURCE"
`), 0o755); err != nil {
		t.Fatal(err)
	}
	read := []string{"sh", "-c", `cat "$0/$RESOURCE" 2>/dev/null || true`, dir}
	o := fencetest.Options{Rounds: 1, Writers: 3}
	if report := attack(t, fencetest.Command{WriteArgs: []string{script, dir}, ReadArgs: read}, o); report.Err() != nil || report.Blind {
		t.Error(report)
	}
	if report := attack(t, fencetest.Command{WriteArgs: []string{script, dir, "unguarded"}}, o); report.Err() == nil || !report.Blind {
		t.Error(report)
	}
	// It can't be told what came of a command that is not there.
	err := fencetest.Command{WriteArgs: []string{filepath.Join(dir, "missing")}}.Write(t.Context(), fencetest.Write{Slot: -1})
	if !errors.Is(err, fencetest.ErrUnknown) {
		t.Error(err)
	}
}

// files are guarded by a Dir.
type files struct{ dir *fence.Dir }

func openFiles(t *testing.T) files {
	t.Helper()
	dir, err := fence.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return files{dir}
}

func (f files) Write(ctx context.Context, w fencetest.Write) error {
	token, err := fence.ParseToken(w.Token)
	if err == nil {
		err = f.dir.WriteFile(ctx, w.Resource, token, w.Slot, []byte(w.Value))
	}
	return answer(err)
}

func (f files) Read(_ context.Context, resource string) (string, error) {
	content, err := f.dir.ReadFile(resource)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return string(content), err
}

// startServer serves documents behind the guard, and others without it.
func startServer(t *testing.T) string {
	var mu sync.Mutex
	data := map[string]string{}
	store := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		if r.Method == http.MethodPut {
			data[r.URL.Path] = string(content)
		} else if text, ok := data[r.URL.Path]; ok {
			_, _ = io.WriteString(w, text)
		} else {
			http.NotFound(w, r)
		}
	})
	mux := http.NewServeMux()
	mux.Handle("/documents/", fence.Handler(new(fence.Memory), nil, store))
	mux.Handle("/unguarded/", store)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}
