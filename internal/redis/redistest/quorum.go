package redistest

import (
	"strings"
	"testing"
)

// StartQuorum starts n masters that know nothing of each other and end with the
// test.
func StartQuorum(t testing.TB, n int, args ...string) []*Server {
	t.Helper()
	servers := make([]*Server, n)
	for i := range servers {
		servers[i] = Start(t, args...)
	}
	return servers
}

// QuorumURL returns the URL of a quorum of servers, which names no password.
func QuorumURL(servers []*Server) string {
	return servers[0].scheme() + "+quorum://" + addrs(servers) + "/0"
}

// ProxiedQuorumURL returns the URL of a quorum of servers that stand behind proxies.
func ProxiedQuorumURL(proxies []*Proxy) string {
	var all []string
	for _, p := range proxies {
		all = append(all, p.Addr())
	}
	return "redis+quorum://" + strings.Join(all, ",") + "/0"
}
