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
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		s := (<-signals).(syscall.Signal)
		cancel(exit{128 + int(s), errors.New(s.String())})
	}()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
