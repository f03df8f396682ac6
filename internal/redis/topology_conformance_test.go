package redis

import (
	"testing"

	"fencepost/internal/fencing/fencingtest"
	"fencepost/internal/redis/redistest"
)

func TestConformanceOnSentinel(t *testing.T)       { testConformanceOnSentinel(t, 64) }
func TestSystemConformanceOnSentinel(t *testing.T) { testConformanceOnSentinel(t, 8) }

func testConformanceOnSentinel(t *testing.T, sample int) {
	t.Parallel()
	s := redistest.StartSentinel(t, 2, 3, redistest.GatewayArgs()...)
	conforms(t, sample, false, s.URL(), s.Master())
}

func TestConformanceOnCluster(t *testing.T)       { testConformanceOnCluster(t, 64) }
func TestSystemConformanceOnCluster(t *testing.T) { testConformanceOnCluster(t, 8) }

func testConformanceOnCluster(t *testing.T, sample int) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 3, redistest.GatewayArgs(redistest.ClusterRights...)...)
	c.Calm()
	conforms(t, sample, true, c.URL(), c.Masters()...)
}

// conforms, as the user with the fewest rights, plays one case in so many, and with FENCEPOST_LONG all. Events of several
// masters have no common order.
func conforms(t *testing.T, sample int, severalMasters bool, url string, masters ...*redistest.Server) {
	fencingtest.Run(t, func(t testing.TB) fencingtest.Backend {
		return openOn(t, Options{URL: url, Username: redistest.GatewayUser, Password: redistest.Password}, masters...)
	}, fencingtest.Capabilities{OwnClock: true, Flush: true, Gateways: true, Claims: true, Quarantine: true, Sample: sample, OwnEventIDs: severalMasters})
}
