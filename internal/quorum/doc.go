// Package quorum is a store on several independent nodes, none of which is trusted
// to remember: a lease is one that a majority of them holds, and its fencing token
// one that a majority has agreed to.
//
// What it promises (docs/stores.md has the table):
//
//   - P1, one live lease, while no two nodes' clocks drift apart by more than a
//     hundredth of a TTL, no clock is stepped by more than MaxSkew while a lease
//     lives, and fewer than a majority forget within the longest TTL. A node that
//     forgot does not vote for that long.
//   - P2, tokens only grow, under the same conditions: a token counts once a majority
//     has claimed it, and a node claims only what is above all that ended there.
//   - P7, a retry gets the same lease and token where a majority of the nodes can
//     show it; with fewer it is 503, until the lease is over. A lease that has run out
//     at some nodes, and was forgotten by others, may be granted again to its lease
//     id, with a higher token.
//   - P8: 412 is only what a majority says. A node that may have forgotten proves
//     nothing by not knowing a lease.
//
// What it does not promise: P5. It has no queue (fencing.Capabilities): who can't be
// granted is refused, and its gateway asks again; between gateways chance decides. A
// writer that comes again keeps new readers out until then, so that it is not starved.
// There are no permits (limit), no sets of names, no place that rests: a request that
// comes back stands at the end.
package quorum
