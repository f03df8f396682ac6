// Package redis is the store that keeps locks in Redis, for any number of
// gateways: in one, in one with replicas that Sentinels watch, or in a Cluster. It
// differs only in where a partition is: see topology. A command goes to the master
// that has its partition now, by connections and batchers of that master, so that one
// that is dead holds up no other.
//
// The rules are a library of Redis Functions, the twin of fencing.Step, so a check
// and the change it guards are one atomic step. One call carries many operations. They
// are idempotent on the lease id: one whose answer was lost is sent again with the same
// arguments and comes to the same outcome. The client library never sends one
// again by itself; only this package does, within a bounded time.
//
// What it guarantees is as durable as Redis is made to be: with an AOF that is
// not flushed at every write, a power failure can forget the last second of
// grants. Tokens grow even then, unless Redis's clock was set back by more than
// the outage took.
package redis
