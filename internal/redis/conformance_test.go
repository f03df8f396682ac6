package redis

import (
	"testing"

	"fencepost/internal/fencing/fencingtest"
	"fencepost/internal/redis/redistest"
)

func TestConformance(t *testing.T) {
	if epoch != fencingtest.Epoch || maxSkew != fencingtest.MaxSkew {
		t.Fatal("the suite starts at another time, or with another guard")
	}
	server := redistest.Start(t)
	fencingtest.Run(t, func(t testing.TB) fencingtest.Backend {
		return openBackend(t, server)
	}, fencingtest.Capabilities{OwnClock: true, Flush: true})
}
