package redis

import (
	"testing"

	"fencepost/internal/fencing/fencingtest"
	"fencepost/internal/redis/redistest"
)

func TestConformanceOnSentinel(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, 2, 3, redistest.GatewayArgs()...)
	conforms(t, 8, s.URL(), s.Master())
}

func TestConformanceOnCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 3, redistest.GatewayArgs(redistest.ClusterRights...)...)
	c.Calm()
	conforms(t, 8, c.URL(), c.Masters()...)
}

// conforms, as the user with the fewest rights, plays one case in so many, and with FENCEPOST_LONG all.
func conforms(t *testing.T, sample int, url string, masters ...*redistest.Server) {
	fencingtest.Run(t, func(t testing.TB) fencingtest.Backend {
		return openOn(t, Options{URL: url, Username: redistest.GatewayUser, Password: redistest.Password}, masters...)
	}, fencingtest.Capabilities{OwnClock: true, Flush: true, Gateways: true, Claims: true, Quarantine: true, Sample: sample})
}
