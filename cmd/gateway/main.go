// Gateway serves Fencepost's locks over HTTP.
//
// Usage:
//
//	gateway              serve until SIGINT or SIGTERM
//	gateway healthcheck  ask the gateway with the same settings whether it is ready
//	gateway doctor       examine the store of the settings
//	gateway cluster      show or change the cluster of the settings
//	gateway store        make the tables in the database of the settings, or keep gateways from them
//	gateway restored     mark the data directory as a restored copy
//	gateway keygen       make a key for the keys file
//	gateway -help        list the settings
//	gateway -version     print the version
//
// It exits with 0 after a clean end, 2 if the command line or the settings are
// at fault, 3 if doctor could not look at something, with the status of the command that
// store hold has run, and 1 on any other failure.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"fencepost/internal/lines"
)

func main() { os.Exit(status()) }

// status runs the program and returns the status it exits with. What it has to say on standard error is said by then,
// unless nobody reads it.
func status() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	out := lines.New(os.Stderr, mostLogLines, mostLogBytes)
	defer out.Close(endOfLog)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr, out)
	if err == nil {
		return 0
	}
	var command commandStatus
	if errors.As(err, &command) && command.err == nil {
		return command.status
	}
	fmt.Fprintln(out, "gateway:", err)
	switch {
	case errors.As(err, &command):
		return command.status
	case errors.As(err, new(usageError)):
		return 2
	case errors.Is(err, errNotSeen):
		return 3
	}
	return 1
}
