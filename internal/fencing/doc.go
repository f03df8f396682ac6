// Package fencing holds the rules of a lock: names, lease ids, fencing tokens,
// the vocabulary of outcomes, the Store interface, and Step, the function that
// decides who holds what.
//
// Step is the specification. The embedded store runs it behind a durable log,
// the Lua library of the Redis store is its twin, and the conformance suite in
// fencingtest holds them together. Nothing here reads a clock, does I/O or
// takes a lock.
//
// What a lease does not promise: that its holder is the only program that
// believes to hold it. A paused process can wake up after its lease has ended.
// That is what the fencing token is for: storage that compares tokens turns
// such a process away.
package fencing
