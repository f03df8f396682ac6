package sql

import (
	"fencepost/internal/fencing"
)

// probe returns an entry that no turn makes, of so many bytes, with a row of a lease: what writes and removes it does all that a turn does.
func probe(size int) *entry {
	r := row{relabelled: true}
	r.Token = -1
	return &entry{logged: logged{data: make([]byte, size)}, ended: []fencing.Token{-1}, changed: []row{r}}
}

// tries finds out whether a turn could be written now. After an error there is no connection. Where the database refuses what the probe has, and not
// everything, turns may do better.
func (s *Store) tries() error {
	for refused := false; ; refused = true {
		if s.conn == nil {
			conn, err := s.connect(s.ctx)
			if err != nil {
				return err
			}
			s.conn = conn
		}
		if refused {
			return nil
		}
		_, err := awaitTurn(s, func() (struct{}, error) { return struct{}{}, s.conn.tries(s.ctx, 1) })
		if err == nil {
			return nil
		}
		s.drop(s.conn)
		if refusedFor(err) == ofAll {
			return err
		}
	}
}

// commits commits an entry, and has those found meanwhile who keep it from that.
func (t *turn) commits(e *entry) error {
	_, err := awaitTurn(t.Store, func() (struct{}, error) { return struct{}{}, t.conn.commit(t.ctx, e) })
	return err
}
