package storage_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"fencepost/fence"
	"fencepost/fence/fencetest"
	"fencepost/internal/redis/redistest"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/redis/go-redis/v9"
)

func startRedis(t testing.TB, r recipe, text map[string]string) string {
	s := redistest.Start(t)
	if text["setup"] != "" {
		client := redis.NewClient(&redis.Options{Addr: s.Addr()})
		defer client.Close()
		if err := client.FunctionLoadReplace(t.Context(), text["setup"]).Err(); err != nil {
			t.Fatal(err)
		}
	}
	return s.Addr()
}

// bucket is an S3-compatible server in this process; before is called with each request.
func bucket(t testing.TB, before func(r *http.Request)) (url string) {
	backend := s3mem.New()
	if err := backend.CreateBucket("orders"); err != nil {
		t.Fatal(err)
	}
	serve := gofakes3.New(backend).Server()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		before(r)
		serve.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL + "/orders"
}

func startS3(t testing.TB, r recipe, _ map[string]string) string {
	return bucket(t, func(*http.Request) {})
}

// object is written by the function of a page, in a shell.
func openS3(r recipe, text map[string]string, address string) (fencetest.Storage, error) {
	return shell{
		Command: fencetest.Command{
			WriteArgs: []string{"sh", "-c", text["write"] + `put_fenced "$0/$RESOURCE" "$FENCING_TOKEN" printf %s "$VALUE"`, address},
			ReadArgs:  []string{"sh", "-c", `curl -sS "$0/$RESOURCE"`, address},
		},
		content: func(body string) string {
			if strings.Contains(body, "<Code>NoSuchKey</Code>") {
				return ""
			}
			_, content, _ := strings.Cut(body, "\n") // after the token
			return content
		},
	}, nil
}

func startFiles(t testing.TB, _ recipe, _ map[string]string) string { return t.TempDir() }

func openFiles(r recipe, text map[string]string, address string) (fencetest.Storage, error) {
	return shell{
		Command: fencetest.Command{
			WriteArgs: []string{"sh", "-c", text["write"] + `write_fenced "$0/$RESOURCE" "$FENCING_TOKEN" printf %s "$VALUE"`, address},
			ReadArgs:  []string{"sh", "-c", `cat "$0/$RESOURCE" 2>/dev/null || true`, address},
		},
		content: func(body string) string { return body },
	}, nil
}

// TestFilesFailingCommand: what a command has printed that failed is not written, and neither
// is nothing where the command is forgotten; the next try with the same token is.
func TestFilesFailingCommand(t *testing.T) {
	pages := readPages(t)
	for name, of := range map[string]struct{ script, write, read, place string }{
		"files/write": {pages.take(t, "files/write write"), "write_fenced", "cat", t.TempDir() + "/f"},
		"s3/put":      {pages.take(t, "s3/put write"), "put_fenced", "curl -sS", bucket(t, func(*http.Request) {}) + "/f"},
	} {
		t.Run(name, func(t *testing.T) {
			run := func(command string) (string, error) {
				cmd := exec.CommandContext(t.Context(), "sh", "-c", of.script+"half() { echo half; exit 3; }\n"+command, of.place)
				out, err := cmd.Output()
				return string(out), err
			}
			if _, err := run(of.write + ` "$0" 5 printf whole`); err != nil {
				t.Fatal(err)
			}
			for _, command := range []string{"false", "half", "no-such-command", ""} {
				_, err := run(of.write + ` "$0" 6 ` + command)
				stored, readErr := run(of.read + ` "$0"`)
				if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.HasSuffix(stored, "whole") {
					t.Errorf("%q: %v, and %q is stored, %v", command, err, stored, readErr)
				}
			}
			if _, err := run(of.write + ` "$0" 6 printf more`); err != nil {
				t.Error(err)
			}
			if stored, err := run(of.read + ` "$0"`); !strings.HasSuffix(stored, "more") {
				t.Errorf("%q is stored, %v", stored, err)
			}
		})
	}
}

// shell is storage that a shell writes; content finds in what it reads what was stored.
type shell struct {
	fencetest.Command
	content func(body string) string
}

func (s shell) Read(ctx context.Context, resource string) (string, error) {
	body, err := s.Command.Read(ctx, resource)
	return s.content(body), err
}

// directory is one behind fence.Dir.
type directory struct {
	dir  *fence.Dir
	path string
	off  bool
}

func openDir(r recipe, text map[string]string, address string) (fencetest.Storage, error) {
	dir, err := fence.OpenDir(address)
	return directory{dir, address, text["unguarded"] != ""}, err
}

func (d directory) Write(ctx context.Context, w fencetest.Write) error {
	token, err := fence.ParseToken(w.Token)
	if err == nil {
		if d.off {
			err = os.WriteFile(d.path+"/"+w.Resource, []byte(w.Value), 0o600)
		} else {
			err = d.dir.WriteFile(ctx, w.Resource, token, w.Slot, []byte(w.Value))
		}
	}
	return answer(err)
}

func (d directory) Read(_ context.Context, resource string) (string, error) {
	content, err := d.dir.ReadFile(resource)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return string(content), err
}

// startHandler serves documents in memory, behind fence.Handler or not.
func startHandler(t testing.TB, _ recipe, text map[string]string) string {
	var documents sync.Map
	var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			content, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			documents.Store(r.URL.Path, content)
		} else if content, ok := documents.Load(r.URL.Path); ok {
			_, _ = w.Write(content.([]byte))
		} else {
			http.NotFound(w, r)
		}
	})
	if text["unguarded"] == "" {
		h = fence.Handler(new(fence.Memory), nil, h)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func openHandler(_ recipe, _ map[string]string, address string) (fencetest.Storage, error) {
	return fencetest.URL{URL: address}, nil
}
