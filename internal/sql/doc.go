// Package sql is a store in a database that is there already: PostgreSQL, MariaDB or MySQL. One table, which is only appended to,
// is the log of internal/machine; every gateway carries it out in memory. No gateway leads, and none speaks with another.
//
// A turn of a gateway is one transaction of two messages. The first locks the store's one row, reads the database's clock and what
// others have appended, and locks the rows of the leases that may end. Then the operations are carried out in memory. The second
// message appends an entry with them, writes the rows of the leases that changed, and commits. What is asked for meanwhile goes
// into the next turn. Where no other gateway writes, and few operations wait, PostgreSQL is sent all in one message, which counts only
// if nobody has written since (alone.go). What only looks costs one message without a lock: what is new is carried out, then memory is looked at.
//
// Only one turn is at work at a time, in all gateways, so the order of the entries is that of the commits. If the answer to a
// commit is lost, the log's key tells what became of it: the entry with that number is this gateway's, or it is not. Until the
// database can be asked, nothing is answered.
//
// The rows of leases are for the transactions of users, which look at them by the function guard: see docs/storage. A lease whose
// row such a transaction has locked does not end before that is over.
package sql
