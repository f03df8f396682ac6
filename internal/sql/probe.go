package sql

import (
	"errors"
	"math"
	"math/rand/v2"

	"fencepost/internal/fencing"
)

// errNoSecond says that the owner of the database allows no second row like one.
var errNoSecond = errors.New("a unique key that is none of fencepost's allows no second row like this one")

// probe returns an entry of so many bytes, with a row of a lease like another one: what writes and removes it does all that a turn does. Its number is
// negative, so that no turn has it, and drawn, so that the probes of several gateways do not wait for each other.
func probe(size int, like row) *entry {
	number := -1 - rand.Int64N(math.MaxInt64)
	like.Token, like.renewed, like.relabelled = fencing.Token(number), false, true
	return &entry{logged: logged{seq: uint64(number), data: make([]byte, size)}, ended: []fencing.Token{like.Token}, changed: []row{like}}
}

// someRow returns the row of a lease that is held, the zero row if none is.
func (m *memory) someRow() row {
	for name, r := range m.State().Records {
		for h := range r.Holders.All() {
			if !h.Provisional {
				return row{name: name, Holder: h.Holder}
			}
		}
	}
	return row{}
}

// tries finds out whether a turn could be written now, by a row that the database has taken before: owners of databases refuse some rows and
// take others. After an error there is no connection. Where something of the probe's content is refused there is no error: that of a turn is another.
// So it is with a code of the owner's own where no row is known that was taken.
func (s *Store) tries() error {
	if err := s.connected(); err != nil {
		return err
	}
	like := s.taken
	if like.Token == 0 {
		like = s.memory.someRow()
	}
	_, err := awaitTurn(s, func() (struct{}, error) { return struct{}{}, s.conn.tries(s.ctx, 1, like) })
	if err == nil {
		return nil
	}
	s.drop(s.conn)
	if refusedFor(err) == ofAll && !(like.Token == 0 && isUnclear(err) && fencing.FaultOf(err) == nil) {
		s.taken = row{} // perhaps it is not taken any more
		return err
	}
	return s.connected()
}
