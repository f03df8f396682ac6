package cluster

import (
	"context"
	"strings"
	"testing"
	"time"
)

// A copy of the node that begins the cluster, with the same settings on another machine, does not
// begin a second one, whether it comes first or not; the right one does.
func TestCopyOfTheFirst(t *testing.T) {
	t.Parallel()
	all := nodes(t, 3)
	double := newNode(t, all[0].addr, all[0].list...)
	double.listen = addrs(t, 1)[0]
	start(all[1:]...)
	double.open()
	if missing := double.cluster.form(double.raft); missing == "" {
		t.Error("it begins a cluster though nobody reaches it at its address")
	}
	all[0].open()
	if missing := double.cluster.form(double.raft); !strings.Contains(missing, "leads to another node") {
		t.Errorf("beside the one that is meant: %q", missing)
	}
	if missing := all[0].cluster.form(all[0].raft); missing != "" {
		t.Errorf("the one that is meant: %s", missing)
	}
	all[0].cluster.Start(all[0].raft, func(error) {})
	double.cluster.Start(double.raft, func(error) {})
	serves(t, all...)
	await(t, "it says that another one is reached at its address", func() bool { return strings.Contains(double.cluster.Condition(), "another node") })
	if blank, err := isBlank(double.raft); !blank || err != nil {
		t.Errorf("the copy has become a member: %v", err)
	}
}

// An address that leads to one node now and to another one then is no node's: neither begins a cluster.
func TestAddressOfTwo(t *testing.T) {
	t.Parallel()
	all := nodes(t, 3)
	start(all[1:]...)
	all[0].open()
	vouch := func(n *node) error { return all[1].cluster.vouch(t.Context(), n.cluster.Self().String()) }
	await(t, "it is vouched for", func() bool { return vouch(all[0]) == nil })
	id := all[0].cluster.Self().ID
	all[0].stop()
	all[0].wipe()
	all[0].open() // another node, at its address
	found := func(at time.Time) {
		all[1].cluster.mu.Lock()
		defer all[1].cluster.mu.Unlock()
		all[1].cluster.first[id] = at
	}
	found(time.Now().Add(patience)) // as if it were found there all the time
	if vouch(all[0]) == nil {
		t.Error("a node is vouched for while another one was found at its address a moment ago")
	}
	found(time.Now().Add(-patience))
	await(t, "it is vouched for when it has been alone for a while", func() bool { return vouch(all[0]) == nil })
}

// A node that is about to stop begins no cluster, vouches for none and joins none.
func TestWhoDrainsBeginsNoCluster(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	all := nodes(t, 2)
	for _, n := range all {
		n.open()
	}
	last := all[1]
	last.cluster.Start(last.raft, func(error) {})
	await(t, "it vouches for the first", func() bool { return last.cluster.vouch(ctx, all[0].cluster.Self().String()) == nil })
	last.cluster.StepDown(ctx)
	if missing := all[0].cluster.form(all[0].raft); !strings.Contains(missing, leaving) {
		t.Errorf("with one that is about to stop: %q", missing)
	}
	if missing := last.cluster.form(last.raft); !strings.Contains(missing, leaving) {
		t.Errorf("one that is about to stop joins: %q", missing)
	}
	last.stop()
	last.start()
	all[0].cluster.StepDown(ctx)
	if missing := all[0].cluster.form(all[0].raft); !strings.Contains(missing, leaving) {
		t.Errorf("one that is about to stop begins: %q", missing)
	}
	for _, n := range all {
		if blank, err := isBlank(n.raft); !blank || err != nil {
			t.Errorf("a cluster has begun: %v", err)
		}
	}
}

// alone returns a node whose list has no other.
func alone(t *testing.T) *node {
	t.Helper()
	addr := addrs(t, 1)[0]
	return newNode(t, addr, addr)
}

// Who is added in the first moments of its process is starting: it is not taken for one with data of its own.
func TestAddOneThatStarts(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	first := alone(t).start()
	leader := serves(t, first)
	more := alone(t)
	more.list = append(more.list, first.addr)
	more.open()
	if err := leader.cluster.add(ctx, more.addr); err == nil || !strings.Contains(err.Error(), "is starting") {
		t.Errorf("it is added: %v", err)
	}
	added := make(chan error, 1)
	go func() {
		_, err := commandOf(t, first).Add(ctx, more.addr)
		added <- err
	}()
	more.cluster.Start(more.raft, func(error) {})
	if err := <-added; err != nil {
		t.Errorf("it is not added when it has started: %v", err)
	}
}

// A node waits for one that is starting: that is no cluster that would take it in.
func TestBeginBesideOneThatStarts(t *testing.T) {
	t.Parallel()
	all := nodes(t, 2)
	for _, n := range all {
		n.open()
	}
	if missing := all[0].cluster.form(all[0].raft); !strings.Contains(missing, "is starting") {
		t.Errorf("%q", missing)
	}
}
