package clients

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"fencepost/client"
)

// role is the variable of the environment that makes this program a client of a trial: one of
// the Go client, which does what the programs of examples do and ends as they do.
const role = "VERIFY_CLIENT_ROLE"

// Main is to be called first thing in main, and in TestMain: where the process was started as a
// client of a trial, it is that until it ends.
func Main() {
	kind := os.Getenv(role)
	if kind == "" {
		return
	}
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	c, err := client.New(client.Options{Addresses: strings.Split(os.Getenv("FENCEPOST"), ","), Owner: "go"})
	if err == nil {
		err = map[string]func(context.Context, *client.Client) error{"do": byDo, "acquire": byAcquire}[kind](ctx, c)
		err = errors.Join(err, c.Close())
	}
	status := statusOf(ctx, err)
	if err != nil {
		fmt.Fprintln(os.Stderr, "client:", err)
	}
	os.Exit(status)
}

// errNotAcquired is what ends a program that has not had the lock.
var errNotAcquired = errors.New("the lock was not to be had")

// errRefused is what a stale token comes to.
var errRefused = errors.New("the storage refuses the token")

func statusOf(ctx context.Context, err error) int {
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		return exitTerminated
	case errors.Is(err, errNotAcquired):
		return exitNotHad
	case errors.Is(err, errRefused), errors.Is(err, client.ErrUnknown), errors.Is(err, client.CodeLeaseLost):
		return exitLost
	}
	return 1
}

var optionsOfProgram = []client.Option{client.TTL(ttlOfTrials), client.Wait(30 * time.Second)}

func byDo(ctx context.Context, c *client.Client) error {
	had := false
	err := c.Do(ctx, lockOfPrograms, func(ctx context.Context, lease *client.Lease) error {
		had = true
		return writeParts(ctx, lease)
	}, optionsOfProgram...)
	if err != nil && !had {
		return errors.Join(errNotAcquired, err)
	}
	return err
}

func byAcquire(ctx context.Context, c *client.Client) (err error) {
	lease, err := c.Acquire(ctx, lockOfPrograms, optionsOfProgram...)
	if err != nil {
		return errors.Join(errNotAcquired, err)
	}
	defer func() {
		// That the end could not be told is no error, as it is none of client.Do: the lease ends by its TTL.
		if lost := lease.Release(ctx); errors.Is(lost, client.CodeLeaseLost) {
			err = errors.Join(err, lost)
		}
	}()
	work, cancel := context.WithCancel(lease.Context())
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	return writeParts(work, lease)
}

// writeParts writes the parts, and looks at the clock before each.
func writeParts(ctx context.Context, lease *client.Lease) error {
	for part := 1; part <= parts; part++ {
		if err := lease.Err(); err != nil {
			return err
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, os.Getenv("STORAGE"), strings.NewReader(fmt.Sprintf("part %d by go", part)))
		if err != nil {
			return err
		}
		r.Header.Set("Fencing-Token", strconv.FormatInt(lease.Token(), 10))
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return errors.Join(err, lease.Err())
		}
		answer.Body.Close()
		switch {
		case answer.StatusCode == http.StatusPreconditionFailed:
			return errRefused
		case answer.StatusCode/100 != 2:
			return fmt.Errorf("part %d is not written: %d", part, answer.StatusCode)
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), lease.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
	return nil
}
