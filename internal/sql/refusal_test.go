package sql

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// refuseOwner has the database refuse rows with an owner, by a code of its own.
func refuseOwner(t *testing.T, p *place, owner string) {
	t.Helper()
	statement := "create trigger refuses before insert on lease for each row if new.owner = '" + owner + "' then signal sqlstate '45000' set mysql_errno = 5000; end if"
	if p.postgres() {
		statement = "create function fencepost.refuses() returns trigger language plpgsql as $$ begin if new.owner = '" + owner + "' then raise exception 'refused' using errcode = '45000'; end if; return new; end $$;" +
			"create trigger refuses before insert on fencepost.lease for each row execute function fencepost.refuses()"
	}
	if _, err := p.db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// What a row may not be by what its database's owner has added is refused to who asks for it, and to nobody else: no lease is granted without its row.
func TestWhatAnOwnerAdds(t *testing.T) {
	t.Parallel()
	onBothPlaces(t, func(t *testing.T, p *place) {
		lease, text := "lease", "varchar(256) character set utf8mb4 collate utf8mb4_bin"
		drop, dropKey, dropTrigger := "alter table lease drop constraint added", "alter table lease drop key added", "drop trigger added"
		raise := func(state string, number int) string {
			return fmt.Sprintf("create trigger added before insert on lease for each row if new.owner = 'second' then signal sqlstate '45000' set mysql_errno = %d; end if", number)
		}
		if p.postgres() {
			lease, text = "fencepost.lease", "text"
			drop, dropTrigger = "alter table fencepost.lease drop constraint added", "drop trigger added on fencepost.lease"
			dropKey = drop
			raise = func(state string, number int) string {
				return fmt.Sprintf(`create or replace function raises() returns trigger language plpgsql as $$ begin if new.owner = 'second' then raise exception 'no' using errcode = '%s'; end if; return new; end $$;
					create trigger added before insert on fencepost.lease for each row execute function raises()`, state)
			}
		}
		for what, is := range map[string]struct {
			adds  []string
			drops string
		}{
			"check":  {[]string{"alter table " + lease + " add constraint added check (owner <> 'second')"}, drop},
			"unique": {[]string{"alter table " + lease + " add constraint added unique (owner)"}, dropKey},
			"foreign key": {[]string{"create table known (owner " + text + " primary key)", "insert into known values ('first'), ('third')",
				"alter table " + lease + " add constraint added foreign key (owner) references known (owner)"}, strings.ReplaceAll(drop, "lease drop constraint", "lease drop "+map[bool]string{true: "constraint", false: "foreign key"}[p.postgres()])},
			"a trigger's own code":       {[]string{raise("45000", 5000)}, dropTrigger},
			"a right that a trigger has": {[]string{raise("42501", 1142)}, dropTrigger},
			"a trigger without a table":  {[]string{raise("42P01", 1146)}, dropTrigger},
		} {
			s := openGateway(t, Options{URL: p.url, Logger: testLog(t), aloneAfter: -1})
			name := func(n int) fencing.Name { return fencing.Name(fmt.Sprint(what, "/", n)) }
			r := request(name(1), time.Minute)
			r.Owner = "first"
			mustDo(t, s, r)
			for _, statement := range is.adds {
				if _, err := p.db.ExecContext(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
			asks := func(n int, owner string) *item {
				r := request(name(n), time.Minute)
				r.Owner = owner
				return &item{ops: []operation{newOperation(r)}, ctx: t.Context(), done: make(chan struct{})}
			}
			second := "second"
			if what == "unique" {
				second = "first"
			}
			bad, good := asks(2, second), asks(3, "third")
			s.queue.mu.Lock() // both are in one turn
			s.queue.items = append(s.queue.items, bad, good)
			s.queue.stir()
			s.queue.mu.Unlock()
			<-bad.done
			<-good.done
			if code(bad.err) != fencing.CodeUnavailable || good.err != nil {
				t.Errorf("%s: who is refused is told %v, and who is beside it %v", what, bad.err, good.err)
			}
			rows := 0
			if err := p.db.QueryRowContext(t.Context(), "select count(*) from "+lease).Scan(&rows); err != nil || rows != 2 {
				t.Errorf("%s: %d rows, %v", what, rows, err)
			}
			theSame(t, Options{URL: p.url, Logger: testLog(t)}, s)
			if t.Failed() {
				return
			}
			for _, n := range []int{1, 3} {
				breakLease(t, s, name(n))
			}
			if _, err := p.db.ExecContext(t.Context(), is.drops); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// breakLease breaks the lease that has a name, though it be provisional.
func breakLease(t *testing.T, s *Store, name fencing.Name) {
	t.Helper()
	var token fencing.Token
	if err := s.peek(t.Context(), func() {
		for h := range s.memory.State().Records[name].Holders.All() {
			token = h.Token
		}
	}); err != nil {
		t.Fatal(err)
	}
	mustDo(t, s, fencing.BreakRequest{Name: name, Token: token})
}

// One client repeats a request that the database refuses: it is told so each time, and nobody else has an error, whether turns are of one
// message or of two.
func TestRefusedRequestBesideOthers(t *testing.T) {
	t.Parallel()
	onBothPlaces(t, func(t *testing.T, p *place) {
		refuseOwner(t, p, "refused")
		for _, alone := range []time.Duration{time.Nanosecond, -1} {
			o := Options{URL: p.url, Logger: testLog(t), aloneAfter: alone}
			stores := []*Store{openGateway(t, o)}
			if alone == -1 {
				stores = append(stores, openGateway(t, o))
			}
			for i, s := range stores { // what a store has to say of its own is said
				acquire(t, s, fencing.Name(fmt.Sprint("before/", alone, i)), time.Minute)
			}
			var gaps gapCounter
			defer stores[0].Watch(&gaps)()
			w := startWork(t, 8, 8, stores...)
			refusals := 0
			await(t, "the others go on", func() bool {
				r := request("refused", time.Minute)
				r.Owner = "refused"
				if _, err := stores[0].Do(t.Context(), r); code(err) != fencing.CodeUnavailable {
					t.Fatalf("what is refused: %v", err)
				}
				refusals++
				return refusals >= 20 && w.granted.Load() >= 100
			})
			w.end()
			t.Logf("%d refusals beside %d grants", refusals, w.granted.Load())
			if n := w.unavailable.Load(); n > 0 {
				t.Errorf("others had %d errors", n)
			}
			if n := gaps.Load(); n > int64(refusals)/10 {
				t.Errorf("memory was read anew %d times for %d refusals", n, refusals)
			}
			theSame(t, o, stores...)
		}
	})
}

// gapCounter is a fencing.EventSink that counts gaps.
type gapCounter struct{ atomic.Int64 }

func (*gapCounter) Event(fencing.Event) {}
func (g *gapCounter) Gap()              { g.Add(1) }

// readers notes which connection has last read a snapshot, and which the log.
type readers struct{ snapshot, log, snapshots atomic.Int64 }

// numbered is a connection with a number.
type numbered struct {
	connection
	no int64
	of *readers
}

func (n numbered) newest(ctx context.Context) (uint64, int, error) {
	n.of.snapshots.Add(1)
	n.of.snapshot.Store(n.no)
	return n.connection.newest(ctx)
}

func (n numbered) read(ctx context.Context, after uint64) (*begun, error) {
	n.of.log.Store(n.no)
	return n.connection.read(ctx, after)
}

// Who repeats what the database refuses has memory be read anew once, in turns of two messages too; and the connection that it was read by is
// not given up.
func TestARefusalCostsOneReload(t *testing.T) {
	t.Parallel()
	onBothPlaces(t, func(t *testing.T, p *place) {
		refuseOwner(t, p, "refused")
		var is readers
		var last atomic.Int64
		a := openGateway(t, Options{URL: p.url, Logger: testLog(t), wrap: through(func(conn connection) connection {
			return numbered{conn, last.Add(1), &is}
		})})
		acquire(t, a, "before", time.Minute)
		before := is.snapshots.Load()
		refuse := func() {
			t.Helper()
			r := request("refused", time.Minute)
			r.Owner = "refused"
			if _, err := a.Do(t.Context(), r); code(err) != fencing.CodeUnavailable {
				t.Fatalf("what is refused: %v", err)
			}
		}
		refuse()
		if _, err := a.Stats(t.Context()); err != nil {
			t.Fatal(err)
		}
		if is.log.Load() != is.snapshot.Load() {
			t.Errorf("memory was read anew by connection %d, and connection %d goes on", is.snapshot.Load(), is.log.Load())
		}
		for range 9 {
			refuse()
		}
		if n := is.snapshots.Load() - before; n != 1 {
			t.Errorf("10 refusals have memory be read anew %d times", n)
		}
		acquire(t, a, "refused", time.Minute)
		theSame(t, Options{URL: p.url, Logger: testLog(t)}, a)
	})
}

// refusing refuses, once, to commit what a store that has just been opened says of its own.
type refusing struct {
	connection
	armed *atomic.Bool
}

func (r refusing) commit(ctx context.Context, e *entry) error {
	d, err := machine.Decode(e.data)
	if err != nil {
		return err
	}
	for _, known := range d.Gateways() {
		if known.Rules > 0 && r.armed.CompareAndSwap(true, false) {
			return refused{errors.New("refused"), ofText}
		}
	}
	return r.connection.commit(ctx, e)
}

// A caller is not told that its request is at fault when the entry had something of the store's own beside it.
func TestRefusedForTheStoresOwn(t *testing.T) {
	t.Parallel()
	onBothPlaces(t, func(t *testing.T, p *place) {
		var armed atomic.Bool
		armed.Store(true)
		a := openGateway(t, Options{URL: p.url, Logger: testLog(t), wrap: through(func(conn connection) connection {
			return refusing{conn, &armed}
		})})
		if _, err := a.Do(t.Context(), request("a", time.Minute)); err != nil {
			t.Error(err)
		}
		if armed.Load() {
			t.Error("nothing was refused")
		}
	})
}

// Of a table that is not there the message tells whose it is, in any language.
func TestTablesThatAreNotThere(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		`relation "fencepost.store" does not exist`: noSchema.detail, "Relation »fencepost.store« existiert nicht": noSchema.detail,
		"la relation « fencepost.lease » n'existe pas": partial.detail, `relation "audit" does not exist`: "",
	} {
		err := postgresError(&pgconn.PgError{Code: "42P01", Message: message, SeverityUnlocalized: "ERROR"})
		if got := detailOf(err); got != want {
			t.Errorf("%s: %q, want %q", message, got, want)
		}
	}
	for message, want := range map[string]string{
		"Table 'locks.store' doesn't exist": noSchema.detail, "Tabelle 'locks.renewal' existiert nicht": partial.detail, "Table 'locks.audit' doesn't exist": "",
	} {
		err := mysqlError(&gomysql.MySQLError{Number: 1146, Message: message})
		if got := detailOf(err); got != want {
			t.Errorf("%s: %q, want %q", message, got, want)
		}
	}
}

// detailOf returns what a cause says; empty if an error has none.
func detailOf(err error) string {
	if f := fencing.FaultOf(err); f != nil {
		return f.Detail
	}
	return ""
}

// What the server refuses whoever asks is not tried apart: each half would be refused as well, one after the other.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]refusal{
		"42501": ofAll, "53100": ofAll, "53200": ofAll, "25006": ofAll, "55P03": ofAll, "57014": ofAll, "58030": ofAll, "XX000": ofAll, "ZF500": ofAll, "23505": ofAll, "": ofAll,
		"23514": ofContent, "P0001": ofContent, "54000": ofContent, "22P02": ofContent, "22021": ofText, "22P05": ofText, "22001": ofText,
	} {
		if got := refusedFor(postgresError(&pgconn.PgError{Code: code, SeverityUnlocalized: "ERROR"})); got != want {
			t.Errorf("%s: %d, want %d", code, got, want)
		}
	}
	for number, want := range map[uint16]refusal{
		1142: ofAll, 1205: ofAll, 1114: ofAll, 1290: ofAll, 1213: ofAll, 1062: ofAll, 1021: ofAll, 1644: ofContent, 1452: ofContent, 4025: ofContent, 1153: ofContent, 1366: ofText,
	} {
		if got := refusedFor(mysqlError(&gomysql.MySQLError{Number: number})); got != want {
			t.Errorf("%d: %d, want %d", number, got, want)
		}
	}
	if got := refusedError(postgresError(&pgconn.PgError{Code: "22021", SeverityUnlocalized: "ERROR"})); got.Code != fencing.CodeInvalidRequest {
		t.Errorf("a text that can't be held: %v", got)
	}
}

// Where the database's owner refuses the row that nobody has, by a code that does not tell what is refused, all go on whose rows it takes: behind a
// check of readiness, and behind a request that is refused.
func TestWhereAnOwnerTakesSomeRows(t *testing.T) {
	t.Parallel()
	onBothPlaces(t, func(t *testing.T, p *place) {
		a := openGateway(t, Options{URL: p.url, Logger: testLog(t)})
		asks := func(s *Store, name fencing.Name, owner string) error {
			r := request(name, time.Minute)
			r.Owner = owner
			_, err := s.Do(t.Context(), r)
			if err == nil {
				mustDo(t, s, fencing.ReleaseRequest{Name: name, Lease: r.Lease})
			}
			return err
		}
		if err := asks(a, "first", "team-a"); err != nil {
			t.Fatal(err)
		}
		takes := func(state string, number int) {
			statements := []string{"drop trigger if exists takes", fmt.Sprintf(
				"create trigger takes before insert on lease for each row if new.owner not like 'team-%%' then signal sqlstate '45000' set mysql_errno = %d; end if", number)}
			if p.postgres() {
				statements = []string{
					"create or replace function takes() returns trigger language plpgsql as $$ begin if new.owner not like 'team-%' then raise exception 'no team' using errcode = '" + state + "'; end if; return new; end $$",
					"create or replace trigger takes before insert on fencepost.lease for each row execute function takes()",
				}
			}
			for _, statement := range statements {
				if _, err := p.db.ExecContext(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
		}
		takes("45000", 5000)
		if err := a.Check(t.Context()); err != nil {
			t.Errorf("a gateway whose rows were taken is not ready: %v", err)
		}
		b := openGateway(t, Options{URL: p.url, Logger: testLog(t)}) // it knows of no row
		if err := b.Check(t.Context()); err != nil {
			t.Errorf("a gateway that knows of no row is not ready: %v", err)
		}
		for name, s := range map[string]*Store{"a": a, "b": b} {
			for _, owner := range []string{"team-a", "else", "team-b", "else", "team-c"} {
				err := asks(s, "next", owner)
				if want := owner != "else"; (err == nil) != want || err != nil && code(err) != fencing.CodeUnavailable {
					t.Errorf("gateway %s, owner %s: %v", name, owner, err)
				}
			}
			if err := s.Check(t.Context()); err != nil {
				t.Errorf("gateway %s is not ready: %v", name, err)
			}
		}
		if is, err := Examine(t.Context(), Options{URL: p.url}); err != nil || is.Unable == nil {
			t.Errorf("the doctor, who knows of no row and has to say what is refused: %v, %v", is.Unable, err)
		}
		held := request("held", time.Minute)
		held.Owner = "team-a"
		mustDo(t, a, held)
		if is, err := Examine(t.Context(), Options{URL: p.url}); err != nil || is.Unable != nil {
			t.Errorf("the doctor: %v, %v", is.Unable, err)
		}
		mustDo(t, a, fencing.ReleaseRequest{Name: held.Name, Lease: held.Lease})
		takes("42501", 1142) // it could be a right that is missing
		c := openGateway(t, Options{URL: p.url, Logger: testLog(t)})
		if err := c.Check(t.Context()); err == nil {
			t.Error("it is taken to be ready")
		}
		if err := c.Heartbeat(t.Context(), nil); err != nil {
			t.Errorf("it can't keep the places of who waits there: %v", err)
		}
		held.Lease, held.Stamp = fencing.NewLeaseID(time.Now()), fencing.NewStamp()
		mustDo(t, a, held)
		await(t, "it sees what the database takes from another gateway", func() bool { return c.Check(t.Context()) == nil })
	})
}
