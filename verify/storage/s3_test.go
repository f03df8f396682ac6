package storage_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"fencepost/fence/fencetest"
)

// heldBucket is a bucket in front of which the first PUT of the writer that names itself
// slow stands until it is let go, as if the writer was stopped between its look and its PUT.
type heldBucket struct {
	url  string
	held chan struct{} // closed when it stands there
	free chan struct{} // closed to let it go
}

func holdPut(t *testing.T) *heldBucket {
	b := &heldBucket{held: make(chan struct{}), free: make(chan struct{})}
	var once sync.Once
	b.url = bucket(t, func(r *http.Request) {
		if r.Method == http.MethodPut && r.UserAgent() == "slow" {
			once.Do(func() {
				close(b.held)
				<-b.free
			})
		}
	})
	return b
}

// A writer that is stopped after it has looked at the object writes over nothing newer, not
// even where the object looks again as it did. What the page warns of does write over it.
func TestS3StoppedBeforePut(t *testing.T) {
	page := readPages(t).take(t, "s3/put write")
	replace := func(old, by string) string {
		if strings.Count(page, old) == 0 {
			t.Fatalf("the page does not have %q", old)
		}
		return strings.ReplaceAll(page, old, by)
	}
	inMetadata := strings.NewReplacer(
		`(echo "$token" && "$@") >"$dir/new"`, `("$@") >"$dir/new"`,
		`$(head -n 1 "$dir/old")`, `$(sed -n 's/^[Xx]-[Aa]mz-[Mm]eta-[Ff]ence: *\([0-9]*\).*/\1/p' "$dir/head")`,
		`-H "$condition"`, `-H "$condition" -H "x-amz-meta-fence: $token"`,
	).Replace(page)
	for name, of := range map[string]struct {
		script string
		holds  bool
	}{
		"as the page has it":        {page, true},
		"a check before the write":  {replace(`-H "$condition"`, ""), false},
		"the token in the metadata": {inMetadata, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := holdPut(t)
			put := func(ctx context.Context, agent, token, content string) error {
				return fencetest.Command{WriteArgs: []string{"sh", "-c", of.script + `S3_OPTIONS="-A $1" put_fenced "$0/a" "$FENCING_TOKEN" printf %s "$VALUE"`, b.url, agent}}.
					Write(ctx, fencetest.Write{Resource: "a", Token: token, Slot: -1, Value: content})
			}
			if err := put(t.Context(), "next", "3", "x"); err != nil {
				t.Fatal(err)
			}
			answer := make(chan error, 1)
			go func() { answer <- put(t.Context(), "slow", "4", "stale") }()
			<-b.held
			for _, content := range []string{"y", "x"} { // and it looks as before
				if err := put(t.Context(), "next", "5", content); err != nil {
					t.Fatal(err)
				}
			}
			close(b.free)
			err := <-answer
			stored, readErr := exec.Command("curl", "-sS", b.url+"/a").Output()
			if readErr != nil {
				t.Fatal(readErr)
			}
			if holds := err != nil && !strings.Contains(string(stored), "stale"); holds != of.holds {
				t.Errorf("that it holds is %v: the stale one is answered %v, and %q is stored", holds, err, stored)
			}
		})
	}
}

// What was read is not written over where it can't be told by an ETag, of which curl would make no condition at all, or
// where it begins with no token. Neither says that the writer is stale.
func TestS3Unconditional(t *testing.T) {
	t.Parallel()
	page := readPages(t).take(t, "s3/put write")
	for name, of := range map[string]struct {
		etag, stored string
		status       int // of the function
		writes       int
	}{
		"a token":              {`"1"`, "3\nold", 0, 1},
		"a higher token":       {`"1"`, "7\nold", 1, 0},
		"no ETag":              {"", "3\nold", 2, 0},
		"no token":             {`"1"`, "old\n", 2, 0},
		"nothing":              {`"1"`, "", 2, 0},
		"too high for a token": {`"1"`, "99999999999999999999\nold", 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			writes := make(chan string, 10)
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPut {
					content, err := io.ReadAll(r.Body)
					if err != nil || r.Header.Get("If-Match") == "" {
						t.Errorf("it is written over without a condition, %v", err)
					}
					writes <- string(content)
					return
				}
				if of.etag != "" {
					w.Header().Set("ETag", of.etag)
				}
				_, _ = io.WriteString(w, of.stored)
			}))
			defer s.Close()
			status := 0
			err := exec.CommandContext(t.Context(), "sh", "-c", page+`put_fenced "$0/a" 5 printf %s new`, s.URL).Run()
			if exit, ok := errors.AsType[*exec.ExitError](err); ok {
				status = exit.ExitCode()
			} else if err != nil {
				t.Fatal(err)
			}
			if status != of.status || len(writes) != of.writes {
				t.Errorf("it ends with %d after %d writes, wanted %d and %d", status, len(writes), of.status, of.writes)
			}
		})
	}
}
