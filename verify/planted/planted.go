// Package planted holds the net to account: it plants bugs in the real program, one at
// a time, and sees each of them caught, by name, by checked histories (verify/history)
// or by a test of the module. The same run on the program as it is finds nothing.
//
// Bugs are patches of the source that go build -overlay puts in its place: the program
// has no line for them, and no build of it can have one. A patch whose text is not in
// the source exactly once is an error, so that none is silently no bug any more.
package planted

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"fencepost/verify/history"
)

// Patch is a change of one file.
type Patch struct {
	File string // from the root of the module
	Old  string // stands in the file once
	New  string
}

// Bug is a defect and what catches it: History or Test.
type Bug struct {
	Name    string // with dashes
	What    string // a sentence
	Patches []Patch

	History history.Config
	Promise string // what the violation is to be about

	Package string // of Test, from the root of the module
	Test    string // has to fail: a pattern of go test -run
}

// attempts is how many histories are played until one catches the bug.
const attempts = 8

// Caught plants the bug and returns what caught it, in a few words. dir is for
// temporary files.
func (b *Bug) Caught(ctx context.Context, dir string) (by string, err error) {
	overlay, err := b.overlay(dir)
	if err != nil {
		return "", err
	}
	if b.Test != "" {
		out, err := b.test(ctx, "-overlay="+overlay)
		switch {
		case err == nil:
			return "", fmt.Errorf("%s: %s in %s passes", b.Name, b.Test, b.Package)
		case !bytes.Contains(out, []byte("--- FAIL: ")):
			return "", fmt.Errorf("%s: %s in %s does not fail, but end: %w\n%s", b.Name, b.Test, b.Package, err, out)
		}
		_, name, _ := strings.Cut(string(out), "--- FAIL: ")
		name, _, _ = strings.Cut(name, " ")
		return fmt.Sprintf("%s in %s", name, b.Package), nil
	}
	var last history.Report
	for seed := range uint64(attempts) {
		cfg := b.History
		cfg.Options.Build.Overlay, cfg.Seed, cfg.Dir = overlay, seed+1, dir
		if last, err = history.Run(ctx, cfg); err != nil {
			return "", fmt.Errorf("%s: %w", b.Name, err)
		}
		for _, v := range last.Violations {
			if v.Promise == b.Promise {
				return fmt.Sprintf("history %d on %s (%s)", seed+1, last.Store, b.Promise), nil
			}
		}
	}
	return "", fmt.Errorf("%s: %d histories have not found it; the last: %s", b.Name, attempts, last)
}

// Clean does the same to the program as it is, where nothing may be found.
func (b *Bug) Clean(ctx context.Context, dir string) error {
	if b.Test != "" {
		if out, err := b.test(ctx, ""); err != nil {
			return fmt.Errorf("without %s: %w\n%s", b.Name, err, out)
		}
		return nil
	}
	cfg := b.History
	cfg.Seed, cfg.Dir = 1, dir
	report, err := history.Run(ctx, cfg)
	if err == nil && len(report.Violations) > 0 {
		err = fmt.Errorf("without %s: %s", b.Name, report)
	}
	return err
}

// test runs the test with a flag for every go command, also those that the test runs to
// build the program.
func (b *Bug) test(ctx context.Context, flag string) ([]byte, error) {
	root, err := moduleRoot()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-count", "1", "-run", b.Test, "./"+b.Package)
	cmd.Env = append(os.Environ(), "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" "+flag))
	cmd.Dir = root
	return cmd.CombinedOutput()
}

// overlay writes the patched files and what tells the go command of them.
func (b *Bug) overlay(dir string) (path string, err error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	text := map[string]string{}
	for _, p := range b.Patches {
		file := filepath.Join(root, p.File)
		if text[file] == "" {
			source, err := os.ReadFile(file)
			if err != nil {
				return "", fmt.Errorf("%s: %w", b.Name, err)
			}
			text[file] = string(source)
		}
		if n := strings.Count(text[file], p.Old); n != 1 {
			return "", fmt.Errorf("%s: this text is in %s %d times, not once, so the bug has to be planted anew:\n%s", b.Name, p.File, n, p.Old)
		}
		text[file] = strings.Replace(text[file], p.Old, p.New, 1)
	}
	if len(text) == 0 {
		return "", errors.New(b.Name + ": it has no patch")
	}
	replace := map[string]string{}
	for file, source := range text {
		patched := filepath.Join(dir, fmt.Sprintf("%s-%d-%s", b.Name, len(replace), filepath.Base(file)))
		if err := os.WriteFile(patched, []byte(source), 0o600); err != nil {
			return "", err
		}
		replace[file] = patched
	}
	described, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, b.Name+".json")
	return path, os.WriteFile(path, described, 0o600)
}

// moduleRoot returns the directory of the module that is worked on.
func moduleRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", err
	}
	path := strings.TrimSpace(string(out))
	if filepath.Base(path) != "go.mod" {
		return "", errors.New("planted: this is to be run within the module")
	}
	return filepath.Dir(path), nil
}
