package fencetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// Command is storage that is written by a command, such as a script around a database's
// client. It gets what it is to write in its environment:
//
//	RESOURCE       what to write
//	FENCING_TOKEN  the token, or what is none
//	SLOT           the slot of a permit; not set without one
//	VALUE          what to store
//
// Exit status 0 says that it was admitted, 1 that it was refused; any other that it can't
// be told.
type Command struct {
	WriteArgs []string // program and arguments
	ReadArgs  []string // prints what RESOURCE has, and nothing else; empty: it can't be read
}

// killDelay is how long a command that has been interrupted with the attack may take to end.
const killDelay = 5 * time.Second

// Write runs the command.
func (c Command) Write(ctx context.Context, w Write) error {
	env := []string{"RESOURCE=" + w.Resource, "FENCING_TOKEN=" + w.Token, "VALUE=" + w.Value}
	if w.Slot >= 0 {
		env = append(env, "SLOT="+strconv.Itoa(w.Slot))
	}
	_, err := runCommand(ctx, c.WriteArgs, env)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 1 {
		return ErrRefused
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return nil
}

// Read runs the other command.
func (c Command) Read(ctx context.Context, resource string) (string, error) {
	if len(c.ReadArgs) == 0 {
		return "", errors.ErrUnsupported
	}
	out, err := runCommand(ctx, c.ReadArgs, []string{"RESOURCE=" + resource})
	return strings.TrimSpace(out), err
}

func runCommand(ctx context.Context, args, env []string) (string, error) {
	if len(args) == 0 {
		return "", errors.New("there is no command")
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.WaitDelay = killDelay
	for _, entry := range os.Environ() { // a slot of the caller's own is none of this write
		if !strings.HasPrefix(entry, "SLOT=") {
			cmd.Env = append(cmd.Env, entry)
		}
	}
	cmd.Env = append(cmd.Env, env...)
	var out, faults bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &faults
	err := cmd.Run()
	if err != nil && faults.Len() > 0 {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(last(faults.String(), 500)))
	}
	return out.String(), err
}

// last returns the end of a text.
func last(text string, n int) string { return text[max(0, len(text)-n):] }
