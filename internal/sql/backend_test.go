package sql

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
	"fencepost/internal/machine"
	"fencepost/internal/sql/sqltest"
)

// backend is an empty database with two handles, and a clock that the test moves.
type backend struct {
	now    atomic.Int64
	server atomic.Bool // the suite says who serves
	skew   [2]atomic.Int64
	stores [2]*Store

	place *place
	t     testing.TB
	asked atomic.Int64 // how often rows could have been compared with memory
}

func (b *backend) Store(handle int) fencing.Store { return following{b.stores[handle], b} }

// following is a store behind whose answers the rows of leases are compared with what the log has come to.
type following struct {
	*Store
	of *backend
}

func (f following) Do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	out, err := f.Store.Do(ctx, op)
	if !fencing.OnlyLooks(op) {
		f.of.compareNow(f.Store)
	}
	return out, err
}

func (f following) Expire(ctx context.Context, limit int) (fencing.Expiry, error) {
	expiry, err := f.Store.Expire(ctx, limit)
	f.of.compareNow(f.Store)
	return expiry, err
}

func (f following) Heartbeat(ctx context.Context, names []fencing.Name) error {
	err := f.Store.Heartbeat(ctx, names)
	f.of.compareNow(f.Store)
	return err
}

func (b *backend) SetTime(now fencing.Instant) {
	b.now.Store(int64(now))
	for handle := range b.stores {
		b.readClocks(handle)
	}
}

func (b *backend) SetSkew(handle int, skew time.Duration) {
	b.skew[handle].Store(int64(skew))
	b.readClocks(handle)
}

// readClocks returns when no turn of a gateway is under way that has read the clocks before: what is asked for next could join it.
func (b *backend) readClocks(handle int) {
	if s := b.stores[handle]; s != nil {
		if _, err := s.Stats(context.Background()); err != nil {
			b.t.Error(err)
		}
	}
}

// Arrive implements fencingtest.Arriver.
func (b *backend) Arrive(handle int, _ fencing.Name, a fencing.Arrival) (fencing.Quarantine, error) {
	b.server.Store(true)
	return b.stores[handle].arriveBy(a)
}

// Heed implements fencingtest.Arriver: what is lost is always heeded.
func (b *backend) Heed(int) {}

// place is an empty database for one test after the other.
type place struct {
	url      string
	db       *sql.DB
	gateways int // how many there are; 0 is two. What more there are carry out what the others do, and come to the same
}

// newPlace makes tables in a new database of a server that all tests share.
func newPlace(t testing.TB, server *sqltest.Server) *place {
	t.Helper()
	p := &place{url: server.Database(t)}
	p.db = server.DB(t, p.url)
	if _, err := Init(t.Context(), p.url, Rights{}); err != nil {
		t.Fatal(err)
	}
	return p
}

// postgres reports whether it is one.
func (p *place) postgres() bool { return strings.HasPrefix(p.url, "postgres:") }

// empty removes what a store has left.
func (p *place) empty(t testing.TB) {
	t.Helper()
	prefix, tables := "", []string{"log", "snapshot", "lease", "renewal"}
	if p.postgres() {
		prefix, tables = "fencepost.", tables[:3]
	}
	for _, table := range tables {
		if _, err := p.db.Exec("delete from " + prefix + table); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.db.Exec("update " + prefix + "snapshotter set gateway = '', until = '1970-01-01'"); err != nil {
		t.Fatal(err)
	}
}

// open opens two stores, which are closed with the test. Then the rows of leases are compared with what the log has come to.
func (p *place) open(t testing.TB, o Options) *backend {
	t.Helper()
	p.empty(t)
	b := &backend{place: p, t: t}
	b.SetTime(fencingtest.Epoch)
	t.Cleanup(func() {
		if newest := b.newest(); newest != nil {
			p.compare(t, holders(newest.memory.Machine), p.leases(t, p.db))
		}
	})
	var all []*Store
	for i := range max(len(b.stores), p.gateways) {
		o := o
		if o.aloneAfter == 0 {
			o.aloneAfter = -1
		}
		o.URL, o.MaxSkew, o.Quarantine = p.url, fencingtest.MaxSkew, Quarantine{Off: true}
		o.rulesEvery = -time.Second // until raised: nobody holds them back, and each turn says what it knows
		o.now = func() fencing.Instant { return fencing.Instant(b.now.Load()) }
		o.server = func(is string) string {
			if b.server.Load() {
				return ""
			}
			return is
		}
		o.clock = func() time.Time {
			return fencing.Instant(b.now.Load()).Time().Add(time.Duration(b.skew[i%len(b.skew)].Load()))
		}
		s, err := Open(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		s.raised(t)
		if all = append(all, s); i < len(b.stores) {
			b.stores[i] = s
		}
	}
	if p.gateways > len(b.stores) {
		o.URL, o.MaxSkew, o.Quarantine = p.url, fencingtest.MaxSkew, Quarantine{Off: true}
		o.server = func(string) string { return "" } // it adds nothing
		t.Cleanup(func() { theSame(t, o, all...) })
	}
	return b
}

// raised has the newest rules be in force, for a store whose rulesEvery is below 0 and from then on is the usual.
func (s *Store) raised(t testing.TB) {
	t.Helper()
	it := &item{ops: []operation{{encoded: machine.Tick()}}}
	it.look = func(*looked) { s.options.rulesEvery = rulesEvery }
	if err := s.await(context.Background(), it); err != nil {
		t.Fatal(err)
	}
	if is := inForce(s); is != fencing.NewestRules {
		t.Fatalf("rules %d are in force", is)
	}
}

// newest returns the one of closed stores that has carried out most; nil if none was opened.
func (b *backend) newest() (newest *Store) {
	for _, s := range b.stores {
		if s != nil && (newest == nil || s.memory.Applied() > newest.memory.Applied()) {
			newest = s
		}
	}
	return newest
}

// compareNow compares the rows with what a store knows, unless it does not know the last entry.
func (b *backend) compareNow(s *Store) {
	if n := b.asked.Add(1); n > 100 && n%50 != 0 { // of a crowd
		return
	}
	tx, err := b.place.db.Begin()
	if err != nil {
		b.t.Error(err)
		return
	}
	defer tx.Rollback()
	prefix := ""
	if b.place.postgres() {
		prefix = "fencepost."
	}
	var id int
	var last sql.NullInt64
	if err := tx.QueryRow("select id from " + prefix + "store for update").Scan(&id); err != nil {
		b.t.Error(err)
		return
	}
	if err := tx.QueryRow("select max(seq) from " + prefix + "log").Scan(&last); err != nil {
		b.t.Error(err)
		return
	}
	var want []string
	err = s.peek(context.Background(), func() {
		if s.memory.Applied() == uint64(last.Int64) {
			want = holders(s.memory.Machine)
		}
	})
	if err == nil && want != nil {
		b.place.compare(b.t, want, b.place.leases(b.t, tx))
	}
}

// compare fails a test unless the rows of leases are the firm holders, and nothing else.
func (p *place) compare(t testing.TB, holders, rows []string) {
	t.Helper()
	slices.Sort(holders)
	slices.Sort(rows)
	if !slices.Equal(holders, rows) {
		t.Errorf("the rows of leases are\n%s\nand the holders\n%s", strings.Join(rows, "\n"), strings.Join(holders, "\n"))
	}
}

// holders returns the firm ones as rows.
func holders(m *machine.Machine) []string {
	all := []string{}
	for name, r := range m.State().Records {
		for h := range r.Holders.All() {
			if !h.Provisional {
				is := row{name: name, Holder: h.Holder}
				all = append(all, is.String())
			}
		}
	}
	return all
}

func (r *row) String() string {
	slot := int32(fencing.NoSlot)
	if s := r.slot(); s != nil {
		slot = *s
	}
	return fmt.Sprintf("%d %q %s %d %s %q from %d to %d", r.Token, r.name, r.Lease, slot, r.Mode, r.Owner, r.AcquiredAt, r.ExpiresAt)
}

// leases returns the rows of leases.
func (p *place) leases(t testing.TB, db interface {
	Query(string, ...any) (*sql.Rows, error)
}) (all []string) {
	t.Helper()
	question := `select token, name, lease, slot, mode, owner, (extract(epoch from acquired_at) * 1000000)::bigint, (extract(epoch from expires_at) * 1000000)::bigint from fencepost.lease`
	if !p.postgres() {
		question = `select l.token, l.name, l.lease, l.slot, l.mode, l.owner,
			timestampdiff(microsecond, '1970-01-01', l.acquired_at), timestampdiff(microsecond, '1970-01-01', r.expires_at)
			from lease l left join renewal r using (token)
			union all select token, 'no lease', '', null, '', '', 0, 0 from renewal where token not in (select token from lease)`
	}
	rows, err := db.Query(question)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer rows.Close()
	for rows.Next() {
		var r row
		var slot sql.NullInt64
		var acquired, expires sql.NullInt64
		if err := rows.Scan(&r.Token, &r.name, &r.Lease, &slot, &r.Mode, &r.Owner, &acquired, &expires); err != nil {
			t.Error(err)
		}
		r.AcquiredAt, r.ExpiresAt = fencing.Instant(acquired.Int64), fencing.Instant(expires.Int64)
		if r.Slot = fencing.NoSlot; slot.Valid {
			r.Slot, r.Limit = int(slot.Int64), 1
			if r.Slot < 0 {
				t.Errorf("the lease %d has the slot %d in its row", r.Token, r.Slot)
			}
		}
		all = append(all, r.String())
	}
	if err := rows.Err(); err != nil {
		t.Error(err)
	}
	return all
}
