//go:build unix

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// act is one run of the story.
type act struct {
	*screen
	gateway string
	dir     string
	fenced  bool
}

const (
	byAnna = "total 100, by Anna"
	byBert = "total 250, by Bert"
)

// play returns an error if the story does not go as it should.
func (a act) play(ctx context.Context) error {
	if err := os.Mkdir(a.dir, 0o700); err != nil {
		return err
	}
	anna, err := startClient(ctx, settings{"Anna", a.gateway, a.dir, byAnna, a.fenced})
	if err != nil {
		return err
	}
	defer anna.stop()
	bert, err := startClient(ctx, settings{"Bert", a.gateway, a.dir, byBert, a.fenced})
	if err != nil {
		return err
	}
	defer bert.stop()
	a.title(a.fenced)

	first, err := a.lock(anna)
	if err != nil {
		return err
	}
	a.step("Anna acquires the lock.", "token %s", first)
	if err := anna.halt(); err != nil {
		return err
	}
	a.step("Anna is stopped before she writes (SIGSTOP; it could be her garbage collector).", "")
	if err := anna.say("write"); err != nil { // she finds that when she goes on
		return err
	}
	second, err := a.lock(bert)
	if err != nil {
		return err
	}
	a.step("Her lease expires. Bert, who waited, is granted the lock.", "token %s, which is higher", second)
	if answer, err := a.write(bert); err != nil || answer != "written" {
		return fmt.Errorf("the write of Bert: %s, %w", answer, err)
	}
	a.step("Bert writes.", "%s has %q", file, byBert)
	if err := anna.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	a.step("Anna goes on (SIGCONT). She does not know that she was stopped, and writes.", "")
	answer, err := anna.hear()
	if err != nil {
		return err
	}
	content, err := os.ReadFile(filepath.Join(a.dir, file))
	if err != nil {
		return err
	}
	return a.end(answer, string(content))
}

// lock has a client take the lock, and returns its token.
func (a act) lock(c *client) (token string, err error) {
	if err := c.say("lock"); err != nil {
		return "", err
	}
	answer, err := c.hear()
	if err != nil {
		return "", err
	}
	token, ok := strings.CutPrefix(answer, "token ")
	if !ok {
		return "", fmt.Errorf("%s: %s", c.name, answer)
	}
	return token, nil
}

func (a act) write(c *client) (answer string, err error) {
	if err := c.say("write"); err != nil {
		return "", err
	}
	return c.hear()
}

func (a act) end(answer, content string) error {
	refusal, refused := strings.CutPrefix(answer, "refused: ")
	switch {
	case !a.fenced && answer == "written" && content == byAnna:
		a.result(false, "CORRUPTED", "%s has %q. What Bert wrote with the lock is lost, and nobody was told.", file, content)
	case a.fenced && refused && content == byBert:
		a.result(true, "REFUSED", "%s.", refusal)
		a.result(true, "RIGHT", "%s has %q.", file, content)
	default:
		return fmt.Errorf("that is not how it should end: Anna's write is %s, and %s has %q", answer, file, content)
	}
	return nil
}
