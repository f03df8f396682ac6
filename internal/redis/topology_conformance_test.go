package redis

import (
	"testing"

	"fencepost/internal/fencing/fencingtest"
	"fencepost/internal/redis/redistest"
)

func TestConformanceOnSentinel(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, 2, 3)
	conforms(t, s.URL(), s.Master())
}

func TestConformanceOnCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 3)
	conforms(t, c.URL(), c.Masters()...)
}

func conforms(t *testing.T, url string, masters ...*redistest.Server) {
	fencingtest.Run(t, func(t testing.TB) fencingtest.Backend {
		return openOn(t, Options{URL: url}, masters...)
	}, fencingtest.Capabilities{OwnClock: true, Flush: true, Gateways: true, Claims: true, Quarantine: true})
}
