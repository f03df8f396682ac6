// Package fence is the storage's side of a distributed lock: it admits a fencing token in
// one step with the write that the token is sent along with, and refuses one that is older
// than what was admitted before.
//
// A lock service gives every holder of a lock a fencing token, a number that grows with
// every grant of the lock. No lock service can see to it that only one client believes to
// hold the lock: a process that is stopped (by its garbage collector, its scheduler, a
// suspended machine) wakes up after its lease has ended, when somebody else has the lock,
// and goes on with the write that it was about to make. What can be seen to is that such a
// write changes nothing: whoever stores the data remembers the highest token, and refuses
// a lower one. An equal token is admitted, for it is the same holder's next write.
//
// # Guards
//
// The rule is [Mark.Admit]. The guards apply it where the data is, so that nothing comes
// between the comparison and the write:
//
//   - [SQL]: in the caller's transaction (PostgreSQL, SQLite, MySQL and MariaDB)
//   - [Dir]: a directory of files, for all processes of a machine
//   - [Memory]: data in the memory of one process
//   - [Handler]: HTTP requests that carry a Fencing-Token, before [Dir] or [Memory]
//   - [Transaction]: in the caller's transaction, where the database is the lock store too. It compares
//     no tokens but looks at the lease, and keeps the lock from being handed on until the transaction ends
//
// # A check before a write does not do
//
// This is wrong, wherever the highest token is looked up, and however short the time
// between the two lines is:
//
//	if token >= highest(resource) { // admitted,
//		write(resource, data) // and written: a second later, or an hour
//	}
//
// The process can be stopped between them for any time. Meanwhile the next holder's
// newer token is admitted and its data written, which the write then overwrites. The same
// goes for asking a lock service whether the lease is still alive, for a look at the clock,
// and for a request to one server that says yes and a second request to another one
// that writes. Comparison, remembering the token and write have to be one step of the
// storage: a transaction, or a section that the guard runs alone. So this package has no
// function that only checks.
//
// # What a guard does not do
//
// It sees what goes through it. It does not stop a write that goes around it, a write
// under another resource name, or what cannot be taken back and asks for no token: a mail,
// a payment. It does not keep a stale holder from reading. It compares tokens of one
// lock: tokens of two locks say nothing of each other, so a resource belongs to one lock.
//
// It cannot tell a forged token (but for [Transaction]). One above all that were issued is admitted, and then
// shuts out everybody until the tokens of the lock service have passed it; with
// [MaxToken] that is for ever. Only who issues tokens knows which he has issued.
// Clients that may write must be authenticated apart from this.
//
// What is admitted stays as durable as the guard's store: a backup that is put back has the
// older data and the older highest token, and admits what was stale before.
//
// # Permits
//
// Several holders of permits (shared leases with a limit) write side by side. Each permit
// has a slot, a number from 0, and is fenced for its slot: else the newest permit would shut out
// the others. A token with a slot must not be below the highest of its slot, nor below the
// highest that was admitted without a slot. A token without a slot, that of an exclusive lease,
// must not be below any. Whoever holds no permit passes [NoSlot].
package fence
