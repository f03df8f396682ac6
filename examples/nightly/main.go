// Nightly takes the lock reports/nightly with the package client and writes a report of 20 parts, if STORAGE says where to.
// docs/clients.md says how to build it, and has the exit statuses.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"fencepost/client"
)

func main() {
	// The end of ctx asks the work to end: then the lock is released.
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() { cancel(endedBy{(<-signals).(syscall.Signal)}) }()
	err := run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(statusOf(ctx, err))
}

// endedBy is the cause of a context that a signal has ended.
type endedBy struct{ syscall.Signal }

func (e endedBy) Error() string { return e.String() }

var errUsage = errors.New("FENCEPOST or FENCEPOST_KEY is wrong")

func run(ctx context.Context) error {
	c, err := client.New(client.Options{
		Addresses: strings.FieldsFunc(cmp.Or(os.Getenv("FENCEPOST"), "http://127.0.0.1:8080"), func(r rune) bool { return r == ',' || unicode.IsSpace(r) }),
		Key:       os.Getenv("FENCEPOST_KEY"),
	})
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	err = c.Do(ctx, client.EncodeName("reports/nightly"), writeReport, client.TTL(30*time.Second), client.Wait(30*time.Second))
	return errors.Join(err, c.Close())
}

func writeReport(ctx context.Context, lease *client.Lease) error {
	fmt.Println("I have the lock, with the token", lease.Token())
	storage := os.Getenv("STORAGE")
	if storage == "" {
		return nil
	}
	for part := 1; part <= 20; part++ {
		if err := lease.Err(); err != nil { // this process may have stood still: look before every write
			return err
		}
		if err := write(ctx, storage, fmt.Sprintf("part %d by go", part), lease.Token()); err != nil {
			return fmt.Errorf("part %d is not written: %w", part, err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
	fmt.Println("20 parts are written")
	return nil
}

var errStale = errors.New("the storage refuses the token")

func write(ctx context.Context, storage, text string, token int64) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, storage, strings.NewReader(text))
	if err != nil {
		return err
	}
	request.Header.Set("Fencing-Token", strconv.FormatInt(token, 10))
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	answer.Body.Close()
	switch {
	case answer.StatusCode == http.StatusPreconditionFailed:
		return errStale
	case answer.StatusCode/100 != 2:
		return errors.New(answer.Status)
	}
	return nil
}

func statusOf(ctx context.Context, err error) int {
	is := func(any ...error) bool {
		return slices.ContainsFunc(any, func(e error) bool { return errors.Is(err, e) })
	}
	var by endedBy
	refused := new(client.Error)
	switch {
	case err == nil:
		return 0
	case errors.As(context.Cause(ctx), &by):
		return 128 + int(by.Signal)
	case is(errStale, client.ErrUnknown): // which may have another one of these in it
		return 124
	case is(client.ErrUnreachable, client.ErrExpired):
		return 69
	case is(client.CodeLocked, client.CodeWaitTimeout, client.CodeTooManyRequests, client.CodeQuarantined, client.CodeConflict, client.CodeReplaced, client.ErrEvicted):
		return 75
	case is(client.CodeLeaseLost):
		return 124
	case is(client.CodeUnauthenticated, client.CodeForbidden):
		return 77
	case is(errUsage), errors.As(err, &refused):
		return 64
	}
	return 1
}
