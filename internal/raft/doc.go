// Package raft is the store that a cluster of gateways keeps among themselves:
// fencing.Step behind a log that a majority of them has on disk. hashicorp/raft agrees on
// the log, internal/wal keeps it.
//
// An entry of the log is a batch of operations with one instant. Every node carries out
// every entry, in order, so all have the same state. One node leads: it appends the
// entries and answers. The others pass on to it what they are asked, reads included, so
// that any node serves any request. Nothing is answered before a majority has it on disk.
//
// The instant is the leader's: the greatest one in the log when it began to lead, continued
// by its monotonic clock. So no wall clock ends a lease early, and a change of leaders
// delays expiries by the time without one and never advances them. Only the first instant
// of a new cluster is the wall clock's. What people are shown is the wall clock's too: see wallStep.
package raft
