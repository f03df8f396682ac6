package sql

import (
	"errors"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

// refused is why the server does not do something.
type refused struct {
	error
	of refusal
}

func (r refused) Unwrap() error { return r.error }

// refusal is what the server refuses.
type refusal int

const (
	ofAll     refusal = iota // whoever asks, and whatever for: rights are missing, the disk is full, a lock was waited for too long
	ofContent                // something of what was to be written, and perhaps nothing else
	ofText                   // the same, and it is a text that the database can't hold
)

// postgresRefusals are refusals by the SQLSTATE or the first two characters of it. P0 is an exception of a function, as of a trigger.
var postgresRefusals = map[string]refusal{
	"22": ofContent, "23": ofContent, "44": ofContent, "54": ofContent, "P0": ofContent,
	"22001": ofText, "22021": ofText, "22P05": ofText,
	"23505": ofAll, // the log has the entry's number already
}

func postgresRefusal(code string) refusal {
	if of, is := postgresRefusals[code]; is {
		return of
	}
	return postgresRefusals[code[:min(2, len(code))]]
}

// mysqlRefusals are refusals by the server's numbers. The second line has those of foreign keys, and of what a trigger does.
var mysqlRefusals = map[uint16]refusal{
	1048: ofContent, 1153: ofContent, 1264: ofContent, 1265: ofContent, 1292: ofContent, 1644: ofContent, 3819: ofContent, 4025: ofContent,
	1216: ofContent, 1217: ofContent, 1451: ofContent, 1452: ofContent, 1364: ofContent, 1365: ofContent, 1690: ofContent, 1054: ofContent, 1305: ofContent, 1442: ofContent,
	1300: ofText, 1366: ofText, 1406: ofText, 3988: ofText,
}

// refusedFor returns what of a turn the server refuses. It is ofAll as well where it has not refused it.
func refusedFor(err error) refusal {
	var r refused
	if errors.Is(err, errUndecided) || !errors.As(err, &r) {
		return ofAll
	}
	return r.of
}

// apart carries out the items of a turn that was refused for the content of some. It is tried again in halves, without a pause, until
// those are alone: they are answered, and all others are served. Nothing of the refused turn has happened; one that has a single item has
// nothing of the store's own.
func (s *Store) apart(items []*item, cause error) error {
	s.lastApart = time.Now()
	refused := len(items)
	items = slices.DeleteFunc(slices.Clone(items), func(it *item) bool {
		gone := it.gone()
		if gone {
			it.finish(fencing.Unavailable(cause))
		}
		return gone
	})
	switch {
	case len(items) == 0:
		return nil
	case refused == 1:
		s.log.Warn("the database refuses a request", "error", cause)
		items[0].finish(refusedError(cause))
		return nil
	case len(items) == 1:
		return s.turn(items)
	}
	half := len(items) / 2
	if err := s.turn(slices.Clone(items[:half])); err != nil { // what a turn adds to its items would overwrite the others
		s.tryLater(items[half:], err)
		return err
	}
	return s.turn(items[half:])
}

// refusedError is what is answered to a request that the database refuses.
func refusedError(cause error) *fencing.Error {
	if refusedFor(cause) == ofText {
		return &fencing.Error{Code: fencing.CodeInvalidRequest, Detail: "the database can't hold a text of this request", Err: cause}
	}
	return fencing.Unavailable(cause)
}
