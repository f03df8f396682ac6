package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"fencepost/internal/fencing"
	"fencepost/internal/observe"
	"fencepost/internal/raft"
	"fencepost/internal/raft/cluster"
	"fencepost/internal/raft/peer"
)

// clusterScheme begins FENCEPOST_STORE of a gateway that is a node of a cluster.
const clusterScheme = "raft://"

// clusterPort is the port of a node that names none.
const clusterPort = "7000"

// Cluster says which node of a cluster this gateway is, and how nodes know each other.
type Cluster struct {
	ClusterAddr        string `split_words:"true" desc:"host:port of this node, as in the raft:// list. Needed unless exactly one entry of the list is an address of this machine"`
	ClusterListenAddr  string `split_words:"true" desc:"host:port to listen on for other nodes; empty: FENCEPOST_CLUSTER_ADDR"`
	ClusterSecret      string `split_words:"true" desc:"secret that all nodes of the cluster share: at least 32 random characters, as from openssl rand -hex 32. A node with neither a secret nor certificates uses only loopback"`
	ClusterSecretFile  string `split_words:"true" desc:"file with the value of FENCEPOST_CLUSTER_SECRET; read only at start"`
	ClusterTLSCertFile string `split_words:"true" desc:"instead of the secret: PEM file with this node's certificate for its own host name, valid for server and client use; reread when it changes"`
	ClusterTLSKeyFile  string `split_words:"true" desc:"PEM file with the private key of FENCEPOST_CLUSTER_TLS_CERT_FILE; reread when it changes"`
	ClusterTLSCaFile   string `split_words:"true" desc:"PEM file with the authorities that sign the nodes' certificates and no other ones; reread when it changes"`
}

// clusterNodes returns the addresses in FENCEPOST_STORE of a cluster.
func clusterNodes(store string) (nodes []string, err error) {
	list, _ := strings.CutPrefix(store, clusterScheme)
	for addr := range strings.SplitSeq(strings.TrimSuffix(list, "/"), ",") {
		addr = withClusterPort(addr)
		if err := peer.CheckAddr(addr); err != nil {
			return nil, err
		}
		if slices.Contains(nodes, addr) {
			return nil, fmt.Errorf("%s is in the list twice", addr)
		}
		nodes = append(nodes, addr)
	}
	if len(nodes) > cluster.MaxNodes {
		return nil, fmt.Errorf("there are %d nodes; a cluster has at most %d", len(nodes), cluster.MaxNodes)
	}
	return nodes, nil
}

// withClusterPort adds the port that is meant where none is named.
func withClusterPort(addr string) string {
	if _, _, err := net.SplitHostPort(addr); err == nil || addr == "" {
		return addr
	}
	return net.JoinHostPort(strings.Trim(addr, "[]"), clusterPort)
}

// validateCluster judges what is about a cluster.
func (cfg *config) validateCluster(read func(names ...string) bool) (faults []error) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	c := &cfg.Cluster
	certificates := c.ClusterTLSCertFile != "" || c.ClusterTLSKeyFile != "" || c.ClusterTLSCaFile != ""
	secret := c.ClusterSecret != "" || !read("CLUSTER_SECRET")
	if cfg.storeKind() != kindRaft {
		if (c.ClusterAddr != "" || c.ClusterListenAddr != "" || secret || certificates) && read("STORE") {
			fault("FENCEPOST_CLUSTER_...: are for raft://, and FENCEPOST_STORE is something else")
		}
		return faults
	}
	nodes, err := clusterNodes(cfg.Store)
	if err != nil {
		fault("FENCEPOST_STORE: %w", err)
	}
	if cfg.DataDir == "" {
		fault("FENCEPOST_DATA_DIR: is empty; a node of a cluster needs a directory")
	}
	if c.ClusterAddr != "" {
		if addr := withClusterPort(c.ClusterAddr); peer.CheckAddr(addr) != nil {
			fault("FENCEPOST_CLUSTER_ADDR: %w", peer.CheckAddr(addr))
		} else if err == nil && !slices.Contains(nodes, addr) {
			fault("FENCEPOST_CLUSTER_ADDR: %s is not in the list of FENCEPOST_STORE, %s", addr, strings.Join(nodes, ","))
		}
	}
	if c.ClusterListenAddr != "" {
		if _, err := isLoopback(c.ClusterListenAddr); err != nil {
			fault("FENCEPOST_CLUSTER_LISTEN_ADDR: %w", err)
		}
	}
	switch {
	case secret && certificates:
		fault("FENCEPOST_CLUSTER_SECRET and FENCEPOST_CLUSTER_TLS_CERT_FILE are both set; which one is meant?")
	case c.ClusterSecret != "":
		if _, err := peer.FromSecret(c.ClusterSecret); err != nil {
			fault("FENCEPOST_CLUSTER_SECRET: %w", err)
		}
	case certificates:
		if c.ClusterTLSCertFile == "" || c.ClusterTLSKeyFile == "" || c.ClusterTLSCaFile == "" {
			fault("FENCEPOST_CLUSTER_TLS_CERT_FILE, FENCEPOST_CLUSTER_TLS_KEY_FILE, FENCEPOST_CLUSTER_TLS_CA_FILE: one is set and another is not; a node needs all three")
		}
	case !secret && cfg.KeysFile != "":
		fault("FENCEPOST_KEYS_FILE: is set, but the nodes of FENCEPOST_STORE have neither a secret nor certificates: any program on this machine could acquire every lock without a key. " +
			"Set FENCEPOST_CLUSTER_SECRET_FILE to the same secret at each node (openssl rand -hex 32 makes one), or FENCEPOST_CLUSTER_TLS_CERT_FILE")
	case !secret:
		for _, addr := range append(nodes, c.ClusterListenAddr) {
			if addr != "" && !peer.IsLoopback(addr) {
				fault("FENCEPOST_STORE: %s is not a loopback address, and the nodes have neither a secret nor certificates: anyone who can reach a node could acquire every lock. "+
					"Set FENCEPOST_CLUSTER_SECRET_FILE to the same secret at each node (openssl rand -hex 32 makes one), or FENCEPOST_CLUSTER_TLS_CERT_FILE", addr)
				break
			}
		}
	}
	return faults
}

// clusterAddr returns which of the nodes this gateway is.
func (cfg *config) clusterAddr(ctx context.Context) (string, error) {
	if cfg.ClusterAddr != "" {
		return withClusterPort(cfg.ClusterAddr), nil
	}
	nodes, err := clusterNodes(cfg.Store)
	if err != nil {
		return "", err
	}
	if len(nodes) == 1 {
		return nodes[0], nil
	}
	var here []string
	for _, addr := range nodes {
		host, _, _ := net.SplitHostPort(addr)
		if isHere(ctx, host) {
			here = append(here, addr)
		}
	}
	if len(here) == 1 {
		return here[0], nil
	}
	found := "none of FENCEPOST_STORE is an address of this machine"
	if len(here) > 1 {
		found = strings.Join(here, " and ") + " are of this machine"
	}
	return "", fmt.Errorf("FENCEPOST_CLUSTER_ADDR: is not set, and %s: which node is this? Set it to one of %s", found, strings.Join(nodes, ", "))
}

// isHere reports whether a host is this machine.
func isHere(ctx context.Context, host string) bool {
	if name, err := os.Hostname(); err == nil && strings.EqualFold(name, host) {
		return true
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, examineTimeout)
	defer cancel()
	found, _ := net.DefaultResolver.LookupNetIP(ctx, "ip", host) // a name that leads nowhere is elsewhere
	for _, ip := range found {
		for _, addr := range own {
			if network, ok := addr.(*net.IPNet); ok && network.IP.Equal(ip.AsSlice()) {
				return true
			}
		}
	}
	return false
}

// watchClusterTLS returns what nodes know each other by; nil: nothing.
func watchClusterTLS(cfg config, watched *files, log *slog.Logger) (*peer.Credentials, error) {
	switch {
	case cfg.storeKind() != kindRaft:
		return nil, nil
	case cfg.ClusterSecret != "":
		return peer.FromSecret(cfg.ClusterSecret)
	case cfg.ClusterTLSCertFile == "":
		return nil, nil
	}
	var certificate atomic.Pointer[tls.Certificate]
	var authorities atomic.Pointer[x509.CertPool]
	if err := watched.add(pairFile("FENCEPOST_CLUSTER_TLS_CERT_FILE", cfg.ClusterTLSCertFile, cfg.ClusterTLSKeyFile, &certificate, watched, log)); err != nil {
		return nil, err
	}
	if err := watched.add(authoritiesFile("FENCEPOST_CLUSTER_TLS_CA_FILE", cfg.ClusterTLSCaFile, &authorities, watched.audit)); err != nil {
		return nil, err
	}
	return peer.FromCertificates(certificate.Load, authorities.Load), nil
}

// clusterCalls are the calls of a cluster as its store knows them.
type clusterCalls struct{ *cluster.Calls }

// Call implements raft.Calls.
func (c clusterCalls) Call(ctx context.Context, address string, request []byte) ([]byte, error) {
	answer, err := c.Calls.Call(ctx, address, request)
	if errors.Is(err, peer.ErrNotSent) {
		err = fmt.Errorf("%w: %w", raft.ErrNotSent, err)
	}
	return answer, err
}

// clusterStore is the store of a gateway that is a node.
type clusterStore struct {
	*raft.Store
	cluster *cluster.Cluster
}

// openCluster opens this node's part of the store. It does not wait for the others.
func openCluster(ctx context.Context, cfg config, credentials *peer.Credentials, log, audit *slog.Logger) (*openedStore, error) {
	nodes, err := clusterNodes(cfg.Store)
	if err != nil {
		return nil, fmt.Errorf("FENCEPOST_STORE: %w", err)
	}
	addr, err := cfg.clusterAddr(ctx)
	if err != nil {
		return nil, usageError{err}
	}
	c, err := cluster.Open(cluster.Options{
		Dir: cfg.DataDir, Expect: cfg.ExpectStore, Nodes: nodes, Addr: addr, Listen: cfg.ClusterListenAddr, Credentials: credentials, Version: version, Format: raft.Format, Logger: log, Audit: audit,
	})
	if errors.Is(err, cluster.ErrDirectory) {
		return nil, fmt.Errorf("FENCEPOST_DATA_DIR: %w", err)
	} else if err != nil {
		return nil, cantListen("FENCEPOST_CLUSTER_ADDR", addr, err)
	}
	store, err := raft.Open(raft.Options{Version: build(),
		Dir: cfg.DataDir, Lock: c.Lock(), Self: raft.Member{ID: c.Self().ID, Address: c.Self().String()}, Network: c.Network(), Calls: clusterCalls{c.Calls()},
		Alone: c.Alone, Logger: log, MaxHolders: cfg.MaxHoldersPerName,
	})
	if err != nil {
		return nil, fmt.Errorf("FENCEPOST_DATA_DIR: %w", errors.Join(err, c.Close()))
	}
	c.TellDiskTime(store.DiskTime)
	c.TellRules(store.Rules, store.Seal)
	c.Start(store.Raft(), store.Fail)
	s := &clusterStore{store, c}
	return &openedStore{Store: s, failed: store.Failed(), cause: store.Cause, alive: store.Alive, panics: store.Panics, cluster: c}, nil
}

// Close ends the node's part in the cluster.
func (s *clusterStore) Close() error {
	s.cluster.Stop()
	return errors.Join(s.Store.Close(), s.cluster.Close())
}

// Check implements fencing.Store: where this node takes no part in a cluster, it says why.
func (s *clusterStore) Check(ctx context.Context) error {
	err := s.Store.Check(ctx)
	if condition := s.cluster.Condition(); err != nil && condition != "" {
		return fencing.Unavailable(&fencing.Outage{Detail: condition, Err: errors.New(condition)})
	}
	return err
}

// Examine implements fencing.Store: it asks all members.
func (s *clusterStore) Examine(ctx context.Context) ([]fencing.Finding, error) {
	found, err := s.Store.Examine(ctx)
	if err != nil {
		return nil, err
	}
	return atNode(clusterFindings(s.cluster.Status(ctx)), s.cluster.Self().Addr, found), nil
}

// atNode puts what one node has found about itself where the rest of it is told.
func atNode(findings []fencing.Finding, node string, own []fencing.Finding) []fencing.Finding {
	at := len(findings)
	for i, f := range findings {
		if f.Node == node {
			at = i + 1
		}
	}
	for i := range own {
		own[i].Node = node
	}
	return slices.Insert(findings, at, own...)
}

// clusterFindings says of each member how it is, and of all together how many more may fail.
func clusterFindings(status cluster.Status) (findings []fencing.Finding) {
	if status.Condition != "" {
		findings = append(findings, fencing.Finding{Check: "membership", Detail: status.Condition, Remedy: "do what it says, or make sure that the nodes run and can reach each other"})
	}
	if len(status.Members) == 0 {
		return findings
	}
	all := fencing.Finding{Check: "majority", OK: true}
	voters := 0
	for _, m := range status.Members {
		if m.Voter {
			voters++
		}
	}
	may := (voters - 1) / 2
	switch {
	case status.MayFail < 0:
		all.OK, all.Detail, all.Remedy = false, "less than a majority of the members answer: nothing is granted", "start the members that are down"
	case status.MayFail < may:
		all.OK, all.Detail = false, fmt.Sprintf("of %s, %d more may fail instead of %d", plural(voters, "member", "members"), status.MayFail, may)
		all.Remedy = "start the members that are down; if one is lost for good, start it with an empty data directory or run gateway cluster remove"
	case voters == 1:
		all.Detail = "there is only one member: nothing is served while it is down"
	default:
		all.Detail = fmt.Sprintf("of %s, %d may fail", plural(voters, "member", "members"), may)
	}
	findings = append(findings, all)
	if status.Rules > 0 {
		findings = append(findings, rulesFinding(status.Rules, status.HeldBack))
	}
	for _, m := range status.Members {
		f := fencing.Finding{Node: m.Addr, Check: "member", OK: m.Reached, Detail: memberState(m, status)}
		if !m.Reached {
			f.Remedy = "start it, or check the network between it and " + status.Node
		}
		findings = append(findings, f)
		if m.Reached && m.DiskTime >= 0 {
			findings = append(findings, diskFinding(m, status))
		}
		if m.LogHangs {
			log := logFinding(m.LogLost, m.LogHangs)
			log.Node = m.Addr
			findings = append(findings, log)
		}
	}
	return findings
}

// rulesFinding says which version of the rules is in force, and what keeps a later one from being.
func rulesFinding(rules int, heldBack []string) fencing.Finding {
	f := fencing.Finding{Check: "rules", OK: true, Detail: fmt.Sprintf("version %d of the rules is in force", rules)}
	if len(heldBack) > 0 {
		f.Detail += "; a later one waits for " + strings.Join(heldBack, ", ")
		f.Remedy = "upgrade and start these"
	}
	return f
}

// diskFinding says how long the disk of a member takes for a write.
func diskFinding(m cluster.Member, status cluster.Status) fencing.Finding {
	f := fencing.Finding{Node: m.Addr, Check: "disk", OK: !m.Slow(), Detail: fmt.Sprintf("a write to its log takes %d ms", m.DiskTime)}
	if m.Slow() {
		f.Detail += ": all changes wait that long while it leads or is needed for a majority"
		f.Remedy = "find out what else uses its disk, or replace the disk"
		if m.Addr == status.Leader && len(status.Members) > 1 {
			f.Remedy += "; until then run gateway cluster transfer to make another member the leader"
		}
	}
	return f
}

// memberState says how a member is.
func memberState(m cluster.Member, status cluster.Status) string {
	switch {
	case !m.Reached:
		return "it can't be reached: " + m.Error
	case m.Addr == status.Leader && m.State == "leader":
		return fmt.Sprintf("it leads, in term %d", status.Term)
	}
	vote := ""
	if !m.Voter {
		vote = "; it has no vote until it has caught up"
	}
	if m.LastContact < 0 {
		return "it has not heard of a leader" + vote
	}
	return fmt.Sprintf("it follows, %s behind, and heard from the leader %d ms ago%s", plural(int(m.Behind), "entry", "entries"), m.LastContact, vote)
}

// clusterMetrics returns what metrics tell of this node.
func clusterMetrics(c *cluster.Cluster) func() observe.Cluster {
	return func() observe.Cluster {
		info := c.Info()
		m := observe.Cluster{
			Leads: info.State == "leader", HasLeader: info.Leader != "", Term: info.Term, LastContact: -1,
			Committed: info.Committed, Applied: info.Applied, Snapshot: info.Snapshot, Members: len(info.Members),
		}
		if info.LastContact >= 0 {
			m.LastContact = float64(info.LastContact) / 1000
		}
		for _, member := range info.Members {
			if member.Voter {
				m.Voters++
			}
		}
		return m
	}
}

// examineNode looks at the data directory of this node, if this machine has one. What refuses it is a finding: the cluster may
// go on, and the gateway may be another user's.
func examineNode(ctx context.Context, cfg config) (node string, findings []fencing.Finding) {
	findings, refused := raft.Examine(cfg.DataDir)
	if refused == nil {
		refused = cluster.ExamineID(cfg.DataDir)
	}
	if nodes, err := clusterNodes(cfg.Store); refused == nil && err == nil && len(nodes) == 1 {
		refused = expected(cfg)
	}
	if findings == nil && refused == nil {
		return "", nil
	}
	node, err := cfg.clusterAddr(ctx)
	if err != nil { // it is no node
		return "", nil
	}
	if refused != nil {
		findings = []fencing.Finding{{
			Check: "directory", Detail: "no gateway of this user can open it: " + refused.Error(), Remedy: "see there; the gateway of another user may have it: ask as that user",
		}}
	}
	return node, findings
}

// examineCluster asks the nodes: to open the data would keep the gateway from it.
func examineCluster(ctx context.Context, cfg config) (condition, error) {
	command, err := openCommand(ctx, cfg)
	if err != nil {
		return condition{}, err
	}
	defer command.Close()
	node, own := examineNode(ctx, cfg)
	status, err := command.Status(ctx)
	if err != nil && own != nil {
		return condition{findings: atNode(nil, node, own), unable: err}, nil
	} else if err != nil {
		return condition{}, err
	}
	if other := status.DataOf(cfg.DataDir); own != nil && other != "" && other != node && len(status.Members) > 1 { // a node without others may move
		own[0] = fencing.Finding{
			Check: "directory", Detail: fmt.Sprintf("%s has the data of the member %s, and this node is %s: a gateway can't start with it", cfg.DataDir, other, node),
			Remedy: "name the directory of " + node + ", or an empty one, in FENCEPOST_DATA_DIR",
		}
	}
	c := condition{findings: atNode(clusterFindings(status), node, own)}
	if status.Condition != "" {
		c.unable = errors.New(status.Condition)
	} else if status.Leader == "" {
		c.unable = errors.New("the cluster has no leader")
	}
	return c, nil
}
