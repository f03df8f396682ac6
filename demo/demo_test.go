//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if os.Getenv(clientSettings) != "" {
		os.Exit(clientMain())
	}
	os.Exit(m.Run())
}

// The story goes as it is told, within its time: corrupted without the fence, refused with it.
func TestDemo(t *testing.T) {
	program := filepath.Join(t.TempDir(), "gateway")
	if out, err := exec.Command("go", "run", "-exec", "cp", "../cmd/gateway", program).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, terminal := range map[string]bool{"in a pipe": false, "on a terminal": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var text strings.Builder
			s := &screen{out: &text, color: terminal}
			if terminal {
				s.pause = readingTime
			}
			begun := time.Now()
			if err := show(t.Context(), program, s); err != nil {
				t.Fatalf("%v\n%s", err, &text)
			}
			if took := time.Since(begun); took > time.Minute {
				t.Errorf("it takes %s", took)
			}
			if strings.Contains(text.String(), "\x1b") != terminal {
				t.Errorf("colour is wrong:\n%q", &text)
			}
			if !regexp.MustCompile(`(?s)Without a fence.*CORRUPTED.*has "` + byAnna + `".*With a fence.*REFUSED.*stale.*RIGHT.*has "` + byBert + `"`).MatchString(text.String()) {
				t.Errorf("it says\n%s", &text)
			}
		})
	}
}

// A story that ends otherwise is not told as if it had not.
func TestEnd(t *testing.T) {
	for _, end := range []struct {
		fenced          bool
		answer, content string
	}{{false, "written", byBert}, {false, "refused: stale", byBert}, {true, "written", byAnna}, {true, "refused: stale", byAnna}, {true, "written", byBert}} {
		if err := (act{screen: &screen{out: new(strings.Builder)}, fenced: end.fenced}).end(end.answer, end.content); err == nil {
			t.Errorf("%+v is told as if it had ended well", end)
		}
	}
}
