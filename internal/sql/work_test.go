package sql

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
	"fencepost/internal/sql/sqltest"
)

// openGateway opens a store as a gateway does.
func openGateway(t testing.TB, o Options) *Store {
	t.Helper()
	var s *Store
	if err := untilAnswered(t, func() (err error) {
		s, err = Open(context.Background(), o)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// through is for Options.wrap, and has each connection be another one. nil: it can't be had. No hints are passed on.
func through(each func(connection) connection) func(database) database {
	return func(db database) database { return wrapped{db, each} }
}

type wrapped struct {
	database
	each func(connection) connection
}

func (w wrapped) connect(ctx context.Context) (connection, error) {
	conn, err := w.database.connect(ctx)
	if err != nil {
		return nil, err
	}
	is := w.each(conn)
	if is == nil {
		conn.close()
		return nil, errors.New("unreachable")
	}
	return is, nil
}

// initialised makes the tables in a database, and returns its URL.
func initialised(t testing.TB, url string) string {
	t.Helper()
	if _, err := Init(t.Context(), url, Rights{}); err != nil {
		t.Fatal(err)
	}
	return url
}

// gatewayUser makes the tables in a database, unless they are there, and a user with the rights of a gateway. It returns its name, and the URL by which
// it connects.
func gatewayUser(t testing.TB, server *sqltest.Server, url string) (user, as string) {
	t.Helper()
	user = server.User(t, "secret")
	role := user
	if Kind(url) == kindMySQL {
		role += "@127.0.0.1"
	}
	if _, err := Init(t.Context(), url, Rights{Gateway: role}); err != nil {
		t.Fatal(err)
	}
	return user, sqltest.As(url, user, "secret")
}

// testLog shows what gateways say.
func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

// work is what clients do who hold names in turn, by some gateways. They ask again until they are told what became of what they asked
// for, and say where two of them have a name at once, or a token is not greater than the one before it.
type work struct {
	t      testing.TB
	stores []*Store
	stop   context.CancelFunc
	ctx    context.Context
	all    sync.WaitGroup

	mu                            sync.Mutex
	held                          map[fencing.Name]time.Time // until when somebody may believe to have a name
	tokens                        map[fencing.Name]fencing.Token
	granted, refused, unavailable atomic.Int64
}

// ttl is that of the leases of work: longer than what a test breaks takes to be mended.
const ttl = time.Minute

func startWork(t testing.TB, clients, names int, stores ...*Store) *work {
	w := &work{t: t, stores: stores, held: map[fencing.Name]time.Time{}, tokens: map[fencing.Name]fencing.Token{}}
	w.ctx, w.stop = context.WithCancel(context.Background())
	t.Cleanup(func() { // of a test that has failed: what goes on may not say so afterwards
		w.stop()
		w.all.Wait()
	})
	for c := range clients {
		w.all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(c), 1))
			for w.ctx.Err() == nil {
				w.turn(stores[random.IntN(len(stores))], fencing.Name(fmt.Sprintf("work/%d", random.IntN(names))), random.IntN(3))
			}
		})
	}
	return w
}

// end ends the work, and returns when nobody holds anything.
func (w *work) end() {
	w.stop()
	w.all.Wait()
	w.t.Logf("%d granted, %d refused, %d times unavailable", w.granted.Load(), w.refused.Load(), w.unavailable.Load())
}

// until asks again until the answer is certain, by any gateway.
func (w *work) until(op fencing.Op, first *Store) (fencing.Outcome, *fencing.Error) {
	for deadline, s := time.Now().Add(2*time.Minute), first; ; s = w.stores[rand.IntN(len(w.stores))] {
		out, err := s.Do(context.Background(), op)
		var code *fencing.Error
		if err == nil || errors.As(err, &code) && code.Code != fencing.CodeUnavailable {
			return out, code
		}
		w.unavailable.Add(1)
		if time.Now().After(deadline) {
			w.t.Errorf("nothing is answered for long: %v", err)
			w.stop()
			return out, code
		}
		time.Sleep(time.Millisecond)
	}
}

func (w *work) turn(s *Store, name fencing.Name, renewals int) {
	lease := fencing.NewLeaseID(time.Now())
	asked := time.Now()
	out, err := w.until(fencing.AcquireRequest{Name: name, Lease: lease, Stamp: fencing.NewStamp(), Mode: fencing.ModeExclusive, Hold: 1, TTL: ttl, Owner: "worker"}, s)
	if err != nil {
		w.refused.Add(1)
		return
	}
	w.granted.Add(1)
	w.mu.Lock()
	if until := w.held[name]; time.Now().Before(until) {
		w.t.Errorf("%s is granted to two at once, the second one with token %d", name, out.Holder.Token)
	}
	if out.Holder.Token <= w.tokens[name] {
		w.t.Errorf("%s is granted with token %d after %d", name, out.Holder.Token, w.tokens[name])
	}
	w.held[name], w.tokens[name] = asked.Add(ttl), out.Holder.Token
	w.mu.Unlock()
	for range renewals {
		if _, err := w.until(fencing.RenewRequest{Name: name, Lease: lease}, s); err != nil {
			w.t.Errorf("a lease of %s is lost long before its end: %v", name, err)
		}
	}
	w.mu.Lock()
	delete(w.held, name)
	w.mu.Unlock()
	if _, err := w.until(fencing.ReleaseRequest{Name: name, Lease: lease}, s); err != nil {
		w.t.Errorf("a lease of %s can't be released: %v", name, err)
	}
}

// stateOf returns all that a store remembers when it has read all that there is, and up to which entry that is.
func stateOf(t testing.TB, s *Store) (state []byte, applied uint64) {
	t.Helper()
	encode := func(l *looked) []byte {
		applied = l.machine.Applied()
		snapshot, err := l.machine.Snapshot()
		if err != nil { // the store writes one
			return nil
		}
		defer snapshot.Release()
		var b bytes.Buffer
		if err := snapshot.Write(&b, noLock{}); err != nil {
			t.Error(err)
		}
		return b.Bytes()
	}
	err := untilAnswered(t, func() (err error) {
		state, err = view(context.Background(), s, encode)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return state, applied
}

type noLock struct{}

func (noLock) Lock()   {}
func (noLock) Unlock() {}

// theSame fails the test unless all stores have the same state, to the byte, which is that of a fresh one too.
func theSame(t testing.TB, o Options, stores ...*Store) {
	t.Helper()
	fresh := openGateway(t, o)
	defer fresh.Close()
	all := append([]*Store{fresh}, stores...)
	states := make([][]byte, len(all))
	await(t, "nobody writes any more", func() bool {
		last := uint64(0)
		for i, s := range all {
			var applied uint64
			states[i], applied = stateOf(t, s)
			if states[i] == nil || i > 0 && applied != last {
				return false
			}
			last = applied
		}
		return true
	})
	want := decodedState(t, states[0])
	for i := range stores {
		if !bytes.Equal(decodedState(t, states[i+1]), want) {
			t.Errorf("gateway %d has another state than a fresh one", i)
		}
	}
}

// decodedState returns a state as it is read again, so that it does not matter what is remembered beside it.
func decodedState(t testing.TB, encoded []byte) []byte {
	t.Helper()
	r, err := machine.Read(bytes.NewReader(encoded))
	if err != nil {
		t.Fatal(err)
	}
	m := machine.NewFollowing()
	if err := m.Restore(r); err != nil {
		t.Fatal(err)
	}
	m.Ready()
	snapshot, err := m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := snapshot.Write(&b, noLock{}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// await returns when a condition is met. The limit is one that only a hang reaches.
func await(t testing.TB, what string, met func() bool) {
	t.Helper()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(5 * time.Minute); !met(); <-look.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within five minutes", what)
		}
	}
}

// untilAnswered asks again, as long as the database does not answer in time or has ended a session that was idle between two messages, in a
// transaction or not, what may be carried out twice. Both happen on a machine that is kept busy.
func untilAnswered(t testing.TB, ask func() error) (err error) {
	t.Helper()
	await(t, "the database answers", func() bool {
		err = ask()
		return err == nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, errNotThere) && !errors.Is(err, driver.ErrBadConn) && !strings.Contains(err.Error(), "SQLSTATE 57P05") && !strings.Contains(err.Error(), "SQLSTATE 25P03")
	})
	return err
}

// mustDo does what a request asks for, and fails the test where it is refused.
func mustDo(t testing.TB, s *Store, op fencing.Op) (out fencing.Outcome) {
	t.Helper()
	err := untilAnswered(t, func() (err error) {
		out, err = s.Do(t.Context(), op)
		return err
	})
	if err != nil {
		t.Fatalf("%#v: %v", op, err)
	}
	return out
}

// awaitQueued returns when so many items wait for a turn.
func awaitQueued(t testing.TB, s *Store, items int) {
	t.Helper()
	await(t, "they wait for a turn", func() bool {
		s.queue.mu.Lock()
		defer s.queue.mu.Unlock()
		return len(s.queue.items) == items
	})
}

func itoa(n int) string { return strconv.Itoa(n) }

func request(name fencing.Name, ttl time.Duration) fencing.AcquireRequest {
	return fencing.AcquireRequest{
		Name: name, Lease: fencing.NewLeaseID(time.Now()), Stamp: fencing.NewStamp(), Mode: fencing.ModeExclusive, Hold: 1, TTL: ttl, Owner: "worker",
	}
}

// grant is what a client knows of one.
type grant struct {
	lease fencing.LeaseID
	token fencing.Token
	asked time.Time
}

// acquire acquires a name that is free.
func acquire(t testing.TB, s *Store, name fencing.Name, ttl time.Duration) grant {
	t.Helper()
	r := request(name, ttl)
	asked := time.Now()
	return grant{r.Lease, mustDo(t, s, r).Holder.Token, asked}
}

// code returns the code of a refusal.
func code(err error) fencing.Code {
	var of *fencing.Error
	if errors.As(err, &of) {
		return of.Code
	}
	return ""
}

// caughtUp reports whether the only standby has all that a primary has.
func caughtUp(t testing.TB, primary *sqltest.Server) (is bool) {
	t.Helper()
	db := primary.DB(t, primary.Database(t))
	defer db.Close()
	if err := db.QueryRowContext(t.Context(), "select coalesce(bool_and(replay_lsn >= pg_current_wal_lsn()), false) from pg_stat_replication").Scan(&is); err != nil {
		t.Fatal(err)
	}
	return is
}
