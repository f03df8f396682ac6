package observe

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Cluster is how a gateway that is a node of a cluster stands there.
type Cluster struct {
	Leads       bool
	HasLeader   bool
	Term        uint64
	LastContact float64 // seconds since it has heard of the leader; negative: it never has
	Committed   uint64  // entries that it knows a majority to have
	Applied     uint64  // entries that it has carried out
	Snapshot    uint64  // the entry of its last snapshot
	Members     int
	Voters      int
}

// clusterCollector asks once a scrape.
type clusterCollector struct {
	state   func() Cluster
	metrics []clusterMetric
}

type clusterMetric struct {
	desc  *prometheus.Desc
	value func(Cluster) float64
}

// RegisterCluster registers the metrics of a node.
func RegisterCluster(reg prometheus.Registerer, state func() Cluster) {
	metric := func(name, help string, value func(Cluster) float64) clusterMetric {
		return clusterMetric{prometheus.NewDesc("fencepost_cluster_"+name, help, nil, nil), value}
	}
	reg.MustRegister(clusterCollector{state, []clusterMetric{
		metric("leads", "1 if this node leads the cluster.", func(c Cluster) float64 { return truth(c.Leads) }),
		metric("has_leader", "1 if this node knows of a leader; without one nothing is served.", func(c Cluster) float64 { return truth(c.HasLeader) }),
		metric("term", "The term of the cluster: rises with each election.", func(c Cluster) float64 { return float64(c.Term) }),
		metric("last_contact_seconds", "How long ago this node heard from the leader; 0 at the leader, -1 if it never did.", func(c Cluster) float64 { return c.LastContact }),
		metric("committed_index", "The last entry of the log that this node knows a majority to have.", func(c Cluster) float64 { return float64(c.Committed) }),
		metric("applied_index", "The last entry of the log that this node has applied.", func(c Cluster) float64 { return float64(c.Applied) }),
		metric("snapshot_index", "The entry of the log that this node's last snapshot was made at.", func(c Cluster) float64 { return float64(c.Snapshot) }),
		metric("members", "Members of the cluster.", func(c Cluster) float64 { return float64(c.Members) }),
		metric("voters", "Members of the cluster that have a vote.", func(c Cluster) float64 { return float64(c.Voters) }),
	}})
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// Describe implements prometheus.Collector.
func (c clusterCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range c.metrics {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c clusterCollector) Collect(ch chan<- prometheus.Metric) {
	state := c.state()
	for _, m := range c.metrics {
		ch <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, m.value(state))
	}
}
