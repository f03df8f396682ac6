// Package machine carries out a log of what was asked: fencing.Step in memory, what finds names and leases in the state,
// whom to tell of an entry, and snapshots. Who keeps the log (a file, Raft) gives it the entries in order; what they come
// to depends on them and the state alone, so that who carries out the same log has the same state, to the byte.
//
// A Machine has no clock, does no I/O and has no lock: whoever keeps it sees to it that nothing else goes on while
// it changes. Those who only look may be several.
package machine
