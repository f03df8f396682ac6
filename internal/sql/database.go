package sql

import (
	"context"
	"errors"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// database is a server of one kind, as what is said there.
type database interface {
	// connect opens a connection. It fails unless the tables are there, and of this version, and with a heldError while turns are held off.
	// So do begin and read.
	connect(context.Context) (connection, error)

	// script returns what Init carries out, in statements.
	script(Rights) []string

	// init carries the statements of script out, in one transaction where the database can do that. It reports what
	// tables there were before, nil if none, and fails if those are of a newer version.
	init(ctx context.Context, statements []string) (before *schemaIs, err error)

	// hold holds turns off: see NewHold.
	hold(ctx context.Context, by string) (holding, error)
}

// connection is a connection to a database. After an error it is to be closed. One that wraps errUndecided says that a commit may
// have happened, or may yet; after any other nothing has happened.
type connection interface {
	// begin begins a turn. It waits until no other gateway has one. Those of the tokens tried that a transaction guards
	// are held.
	begin(ctx context.Context, after uint64, tried []fencing.Token) (*begun, error)

	// try is begin for more tokens, in a turn.
	try(ctx context.Context, tried []fencing.Token) (held []fencing.Token, err error)

	// commit ends a turn with an entry.
	commit(context.Context, *entry) error

	// abandon ends a turn without one.
	abandon(context.Context) error

	// read is begin without a turn: the clock is read before the log, so that nothing counts as over that was renewed in between.
	read(ctx context.Context, after uint64) (*begun, error)

	// newest returns the number of the entry of the newest whole snapshot, and how many chunks it has. 0: there is none.
	newest(context.Context) (seq uint64, chunks int, err error)

	// chunk returns a part of a snapshot, nil if it is gone.
	chunk(ctx context.Context, seq uint64, no int) ([]byte, error)

	// claim reports whether this gateway may write a snapshot, which nobody else does for a while.
	claim(ctx context.Context, gateway fencing.Gateway) (bool, error)

	// release has others write a snapshot at once, if this gateway has claimed that.
	release(ctx context.Context, gateway fencing.Gateway) error

	// tidy removes all parts of snapshots but those of the newest whole one.
	tidy(context.Context) error

	// put writes a part of a snapshot. errOvertaken: that is whole already.
	put(ctx context.Context, seq uint64, no int, chunk []byte) error

	// finish says that the snapshot as of an entry has so many chunks, and is whole. Others may write one then. errOvertaken: another
	// gateway may do so now, or the entry is not in the log.
	finish(ctx context.Context, gateway fencing.Gateway, of mark, chunks int) error

	// cut removes at most limit of the oldest entries up to a number or, if there are none, snapshots before the one that takes their place.
	// It reports whether there may be more. Where there is neither that one nor a later one, for older ones were restored, it removes nothing.
	cut(ctx context.Context, upTo, snapshot uint64, limit int) (more bool, err error)

	// tries writes what a turn does, with an entry of so many bytes and a row like another one, and takes it back. Errors are
	// those of a commit, and errNoSecond.
	tries(ctx context.Context, size int, like row) error

	// holders returns the sessions that have the store locked, as far as the user may know of them.
	holders(context.Context) ([]holder, error)

	// end ends one that is a turn, and reports whether it was there still.
	end(context.Context, holder) (bool, error)

	// examine looks at how the server is set up. Skew and quarantine are judged by others.
	examine(context.Context) ([]fencing.Finding, error)

	close()
}

// begun is what a server says at the beginning of a turn, or of a look.
type begun struct {
	now     fencing.Instant
	server  string   // which server it is: see fencing.Arrival; empty: it does not say
	entries []logged // from number after on, that one without its data
	more    bool     // there may be more of them
	held    []fencing.Token
}

// logged is an entry of the log.
type logged struct {
	seq  uint64
	id   int64
	data []byte

	decoded *machine.Decoded // once decode was called
	unread  error
}

// entry is what a turn comes to.
type entry struct {
	logged
	ended   []fencing.Token // leases that have no row any more
	changed []row
}

// row is a row of the table of leases.
type row struct {
	name fencing.Name
	fencing.Holder
	renewed    bool // it was there before
	relabelled bool // and a request may have changed more of it than its end
}

// errUndecided is wrapped by the error of a commit of which it is not known whether it has happened.
var errUndecided = errors.New("the database did not report the outcome of a commit")

// What bounds how many entries one message reads: their number, and how many bytes they have, but for the first one, which is read
// whatever it has. A turn reads as much as the network takes from a server whose gateway stands still.
const (
	mostRead  = 64
	readBytes = 1 << 20
	turnBytes = 64 << 10
)

// add adds an entry. One without its data is left for the next message, and what follows it.
func (b *begun) add(e logged, after uint64) {
	if b.more = b.more || e.seq > after && e.data == nil; !b.more {
		b.entries = append(b.entries, e)
	}
	b.more = b.more || len(b.entries) == mostRead
}
