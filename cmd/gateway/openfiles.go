package main

import (
	"fmt"
	"strings"

	lockhttp "fencepost/internal/http"
)

const (
	// leastConnections is what a gateway is of any use with.
	leastConnections = 32

	// adminConnections is how many connections the admin address takes: a Prometheus
	// or two, and somebody who looks.
	adminConnections = 16

	// ownFiles are those of the process, its listeners and the embedded store (about a
	// dozen together), and of the admin address.
	ownFiles = 16 + adminConnections

	// serverFiles are those that one Redis takes at most: a pool of 8, the connections
	// that wait for replicas or messages, and some that are being replaced; and those that
	// one other node of a cluster takes: in both directions, calls, a pool of Raft's, and some that are
	// being replaced.
	serverFiles = 16

	// clusterServers is how many masters of a Cluster are counted with: docs/performance.md
	// says why there are not more.
	clusterServers = 20
)

// reservedFiles returns how many open files are kept from clients, so that a crowd of
// them never takes the connection to the store.
func (cfg *config) reservedFiles() int {
	servers := 0
	switch cfg.storeKind() {
	case kindRedis, kindPostgres, kindMySQL:
		servers = 1
	case kindSentinel, kindQuorum, kindRaft: // each Sentinel, or node
		servers = 1 + strings.Count(cfg.Store, ",") + 1
	case kindCluster:
		servers = clusterServers
	}
	return ownFiles + lockhttp.MaxRefusals + servers*serverFiles
}

// maxConnections returns how many connections of clients may be open, if the process
// may have limit files open.
func (cfg *config) maxConnections(limit int) (int, error) {
	reserved := cfg.reservedFiles()
	left := min(limit-reserved, maxCap)
	if left < leastConnections {
		return 0, fmt.Errorf("the process may have %d files open (ulimit -n), of which %d are kept for the store and the gateway itself; "+
			"raise that limit to %d or more", limit, reserved, reserved+leastConnections)
	}
	switch most := cfg.MaxConnections; {
	case most == 0:
		return left, nil
	case most < 0:
		return 0, fmt.Errorf("%d is out of range; it must be from 1, or 0 for as many as the limit of open files allows", most)
	case most > left:
		return 0, fmt.Errorf("%d is too many: the process may have %d files open (ulimit -n), of which %d are kept for the store and the gateway itself; "+
			"it must be at most %d, or that limit at least %d", most, limit, reserved, left, most+reserved)
	default:
		return most, nil
	}
}
