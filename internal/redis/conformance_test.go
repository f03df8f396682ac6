package redis

import (
	"testing"

	"fencepost/internal/fencing/fencingtest"
	"fencepost/internal/redis/redistest"
)

// The suite runs twice: what is known of gateways belongs to a partition, so that
// it is compared with one State where all names share one.
func TestConformance(t *testing.T) {
	if epoch != fencingtest.Epoch || maxSkew != fencingtest.MaxSkew {
		t.Fatal("the suite starts at another time, or with another guard")
	}
	for name, one := range map[string]bool{"partitions": false, "one partition": true} {
		sample := 0
		if one {
			sample = 4 // what does not need it is played on the partitions
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			fencingtest.Run(t, func(t testing.TB) fencingtest.Backend {
				return openPartitioned(t, server, one)
			}, fencingtest.Capabilities{OwnClock: true, Flush: true, Gateways: true, OneState: one, Claims: true, Quarantine: true, Sample: sample})
		})
	}
	t.Run("small steps", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		fencingtest.Run(t, func(t testing.TB) fencingtest.Backend {
			return openOn(t, Options{URL: server.SocketURL(), onePartition: true, stepLimit: 2}, server)
		}, fencingtest.Capabilities{OwnClock: true, Flush: true, Gateways: true, OneState: true, Claims: true, Quarantine: true, StepLimit: 2})
	})
	t.Run("few holders", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		fencingtest.Run(t, func(t testing.TB) fencingtest.Backend {
			return openOn(t, Options{URL: server.SocketURL(), onePartition: true, MaxHolders: 2}, server)
		}, fencingtest.Capabilities{OwnClock: true, Flush: true, Gateways: true, OneState: true, Claims: true, Quarantine: true, MaxHolders: 2})
	})
}
