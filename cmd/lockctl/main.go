// Lockctl takes locks from Fencepost gateways, looks at them, and runs commands under them.
// lockctl -help lists what it does and its exit statuses.
package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) { // as a shell has it for what it starts in the background
			signal.Notify(signals, s)
		}
	}
	go func() {
		s := (<-signals).(syscall.Signal)
		cancel(exit{status: 128 + int(s), err: errors.New(s.String()), by: s})
	}()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
