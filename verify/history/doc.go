// Package history has clients use real gateways, writes down what they asked and what
// they were told, and checks that against the promises:
//
//   - P1, P2, P3, P4 and P9 by a search for an order of all operations on a name that
//     the rules allow (github.com/anishathalye/porcupine): see Check, and model.go. Where reads
//     are current, what GET showed of a lock and its fence takes part in it: see reads.go;
//   - P4, P5 and P6 beside it, by time: see liveness.go.
//
// Time is that of one monotonic clock: clients, gateways and stores are on one machine.
//
// What can't be known is never counted as a fault: an operation whose answer was lost
// has happened or has not, a lease may end at any time from what its holder was told
// as its deadline, and what docs/stores.md publishes as an exception is in Rules.
package history
