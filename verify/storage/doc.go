// Package storage runs what docs/storage says, against the real servers: its snippets are read
// from the pages and the files beside them, attacked by fence/fencetest, and written to by holders that are stopped past the TTL
// of a lease of a real gateway. The guards of the package fence are treated alike.
//
// It is a module of its own, since SQLite and an S3-compatible server, which it needs, are nothing
// that who imports Fencepost should get along with it.
package storage
