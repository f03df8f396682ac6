package redistest

import "testing"

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
