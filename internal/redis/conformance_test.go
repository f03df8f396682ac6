package redis

import (
	"context"
	"log/slog"
	"testing"

	"fencepost/internal/fencing/fencingtest"
	"fencepost/internal/redis/redistest"
)

// intact fails a test where the store logs an error. Nobody takes a key from the suite: that
// the library has found keys which do not go together, and has mended them, would be its own
// fault, and no answer shows it.
type intact struct {
	slog.Handler
	t testing.TB
}

func (intact) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelError }

func (h intact) Handle(_ context.Context, r slog.Record) error {
	h.t.Errorf("the store logs %q", r.Message)
	return nil
}

func (h intact) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h intact) WithGroup(string) slog.Handler      { return h }

// The suite runs on a Redis with Functions, on one without, on one whose own clock is set, by which
// its keys expire too, and with bounds that are low; but for the second as the user with the fewest
// rights.
func TestConformance(t *testing.T) { testConformance(t, 8) }

func TestSystemConformance(t *testing.T) { testConformance(t, 0) }

// testConformance plays all of the cases on functions, one in so many where bounds are low, and less on scripts.
func testConformance(t *testing.T, sample int) {
	if epoch != fencingtest.Epoch || maxSkew != fencingtest.MaxSkew {
		t.Fatal("the suite starts at another time, or with another guard")
	}
	all := fencingtest.Capabilities{OwnClock: true, Flush: true, Gateways: true, OneState: true, Claims: true, Quarantine: true}
	gateway := Options{Username: redistest.GatewayUser, Password: redistest.Password}
	rights := redistest.GatewayArgs()
	run := func(name string, o Options, c fencingtest.Capabilities, args ...string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := redistest.Start
			if c.OwnExpiry {
				start = redistest.StartWithClock
			}
			server := start(t, args...)
			o.URL = server.SocketURL()
			fencingtest.Run(t, func(t testing.TB) fencingtest.Backend {
				o := o
				o.Logger = slog.New(intact{t: t})
				return openOn(t, o, server)
			}, c)
		})
	}
	run("functions", gateway, all, rights...)
	some := all
	some.Sample = 4 * max(1, sample) // what does not need it is played on functions
	run("scripts", Options{}, some, "--rename-command", "fcall", "", "--rename-command", "function", "")
	own := all
	own.Sample, own.OwnExpiry = sample/4, true
	run("its own clock", gateway, own, rights...)
	few := all
	few.Sample, few.StepLimit = sample, 2
	small := gateway
	small.stepLimit = 2
	run("small steps", small, few, rights...)
	few = all
	few.Sample, few.MaxHolders = sample, 2
	holders := gateway
	holders.MaxHolders = 2
	run("few holders", holders, few, rights...)
}
