package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"time"

	"fencepost/internal/embedded"
)

const restoredHelp = `Usage: gateway restored -longest-ttl DURATION

Marks FENCEPOST_DATA_DIR as a restored copy. No gateway may have it open. Leases that were
granted after the copy was made are not in it, so no new leases are granted for DURATION
after the next start of the gateway. DURATION must be at least the
longest TTL that was in use. Leases in the copy can be renewed meanwhile. It is for the embedded store and for a cluster with one member.

  gateway restored -longest-ttl 5m
`

// restored has the store in the data directory be careful, as a copy of an earlier time has to be.
func restored(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("restored", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	var longest time.Duration
	flags.Func("longest-ttl", "", func(s string) (err error) {
		if longest, err = time.ParseDuration(s); err == nil {
			return nil
		}
		if _, err := strconv.ParseFloat(s, 64); err == nil {
			return fmt.Errorf("it has no unit; did you mean %ss?", s)
		}
		return errors.New("it must be a time with its unit, such as 30s or 5m")
	})
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		_, err := fmt.Fprint(out, restoredHelp)
		return err
	} else if err != nil {
		return usageError{fmt.Errorf("restored: %w; see gateway restored -help", err)}
	}
	cfg, err := loadConfig()
	if err != nil {
		return err
	}
	switch {
	case flags.NArg() > 0:
		return usageError{fmt.Errorf("restored: %q is an unexpected argument; see gateway restored -help", flags.Arg(0))}
	case longest <= 0 || longest > cfg.MaxTTL:
		return usageError{fmt.Errorf("restored: -longest-ttl is %s; it must be the longest TTL that was in use, at most FENCEPOST_MAX_TTL (%s)", longest, cfg.MaxTTL)}
	case cfg.storeKind() != kindEmbedded && cfg.storeKind() != kindRaft:
		return usageError{errors.New("restored: FENCEPOST_STORE is Redis or a database; gateways notice by themselves when one of those has lost something")}
	}
	lasts, err := embedded.Restored(embedded.Options{Dir: cfg.DataDir, Logger: slog.New(slog.DiscardHandler), Version: build()}, longest)
	if err != nil {
		return fmt.Errorf("FENCEPOST_DATA_DIR: %w", err)
	}
	_, err = fmt.Fprintf(out, "No new leases are granted in the first %s after the next start of the gateway, which says so in its log. Start it now: leases in the copy can be renewed.\n", lasts)
	return err
}
