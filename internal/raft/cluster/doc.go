// Package cluster makes a cluster of nodes of internal/raft, and changes it: it begins a new
// one, takes in a node that has lost its data, adds and removes nodes, and tells how they are.
// What the nodes agree on is Raft's configuration; nothing else is kept.
//
// # Who is who
//
// The id of a node is that of its data. A node without data is a new one, whatever its
// address: it has forgotten whom it voted for and what it has acknowledged, so it must not
// be counted as the one before.
//
// # How a cluster begins
//
// Every node has the same list of addresses. A node whose log is empty asks all others who
// they are. When all have answered, have the same list and an empty log too, the one with the
// lowest address writes the first entry, which names the ids that it was told; all others
// wait until Raft's messages reach them. So one node alone ever begins a cluster, and what
// may happen in between is harmless:
//
//   - it stops before the entry is on its disk: nothing has happened;
//   - it stops after that: it goes on when it is started again, and nobody else begins one,
//     for not all have an empty log;
//   - it loses its disk after that: if another node has an entry, the cluster goes on there
//     or waits for the majority that has it. If none has, nothing was ever promised in its
//     name, and it begins anew under another id;
//   - another node loses its disk meanwhile: it is in the cluster under an id that is gone,
//     and is taken in under its new one as after any loss of a disk, once the others lead.
//
// The lowest address may be that of two nodes by mistake: a copied machine, settings that were
// copied with it, a name that leads to several. Two clusters of the same nodes would come of it,
// with two leaders in one term. So all others vouch that they find the node that is
// about to write the first entry at its address, and for a while have found no other.
//
// # A node that has lost its data
//
// It asks the leader to be taken in. If the configuration has its address, under another
// id, the leader adds it without a vote, waits until it has all entries, removes the old id, and
// gives it its vote. The old one is lost in any case: its removal never makes a majority
// need more nodes, as its vote coming first might. Each step is an entry of the log, so a new
// leader goes on where the old one stood. An address that is not in the configuration
// waits for [Cluster.Add].
package cluster
