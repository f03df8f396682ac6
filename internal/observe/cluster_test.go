package observe

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestCluster(t *testing.T) {
	reg := prometheus.NewRegistry()
	asked := 0
	RegisterCluster(reg, func() Cluster {
		asked++
		return Cluster{Leads: true, Term: 7, LastContact: -1, Committed: 12, Applied: 11, Snapshot: 5, Members: 4, Voters: 3}
	})
	want := ""
	for _, m := range []struct{ name, help, value string }{
		{"applied_index", "The last entry of the log that this node has applied.", "11"},
		{"has_leader", "1 if this node knows of a leader; without one nothing is served.", "0"},
		{"last_contact_seconds", "How long ago this node heard from the leader; 0 at the leader, -1 if it never did.", "-1"},
		{"leads", "1 if this node leads the cluster.", "1"},
		{"term", "The term of the cluster: rises with each election.", "7"},
		{"voters", "Members of the cluster that have a vote.", "3"},
	} {
		name := "fencepost_cluster_" + m.name
		want += "# HELP " + name + " " + m.help + "\n# TYPE " + name + " gauge\n" + name + " " + m.value + "\n"
	}
	expect(t, reg, want, "fencepost_cluster_applied_index", "fencepost_cluster_has_leader", "fencepost_cluster_last_contact_seconds",
		"fencepost_cluster_leads", "fencepost_cluster_term", "fencepost_cluster_voters")
	if asked != 1 {
		t.Errorf("a scrape asks %d times", asked)
	}
}
