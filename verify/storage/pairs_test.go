package storage_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"fencepost/fence"
	"fencepost/fence/fencetest"
	"fencepost/internal/seed"
)

// pair is two recipes by which one resource may be written: they keep one mark.
type pair struct {
	one, other string
	starts     []string // whose setup makes the place; each is tried
	writes     int      // at random
	permits    bool     // the other may write with slots
}

var pairs = []pair{
	{"postgresql/table", "fence.SQL/PostgreSQL", []string{"postgresql/table", "fence.SQL/PostgreSQL"}, 300, true},
	{"postgresql/trigger", "fence.SQL/PostgreSQL", []string{"postgresql/trigger"}, 300, false},
	{"postgresql/update", "postgresql/upsert", []string{"postgresql/update"}, 100, false},
	{"sqlite/table", "fence.SQL/SQLite", []string{"sqlite/table", "fence.SQL/SQLite"}, 300, true},
	{"sqlite/update", "sqlite/upsert", []string{"sqlite/update"}, 100, false},
	{"mariadb/table", "fence.SQL/MySQL", []string{"mariadb/table", "fence.SQL/MySQL"}, 300, true},
	{"redis/eval", "redis/function", []string{"redis/function"}, 100, false},
	{"files/write", "fence.Dir", []string{"files/write"}, 60, true},
}

// eachPair runs a test with a pair at every place that one of them has made.
func eachPair(t *testing.T, test func(t *testing.T, p pair, one, other fencetest.Storage)) {
	for _, p := range pairs {
		for _, start := range p.starts {
			t.Run(strings.ReplaceAll(p.one+" and "+p.other+", made by "+start, "/", "."), func(t *testing.T) {
				t.Parallel()
				made := recipeNamed(start)
				address := made.start(t, made, made.text(t, true))
				var opened [2]fencetest.Storage
				for i, name := range []string{p.one, p.other} {
					r := recipeNamed(name)
					storage, err := r.open(r, r.text(t, true), address)
					if err != nil {
						t.Fatal(err)
					}
					if g, ok := storage.(*guarded); ok && start == "postgresql/trigger" {
						g.first = "SELECT set_config('fence.token', '%d', true)"
					}
					opened[i] = storage
				}
				test(t, p, opened[0], opened[1])
			})
		}
	}
}

// What one has written with a newer token the other does not write over with an older one, in both
// directions; and whoever comes, each is judged as by a single mark.
func TestPairs(t *testing.T) {
	start := seed.Of(t)
	eachPair(t, func(t *testing.T, p pair, one, other fencetest.Storage) {
		w := pairOfWriters{t: t, names: [2]string{p.one, p.other}, storages: [2]fencetest.Storage{one, other}}
		for first := range 2 {
			w.begin("first-" + strconv.Itoa(first))
			for _, of := range []struct{ who, token int }{{first, 10}, {1 - first, 9}, {1 - first, 10}, {1 - first, 11}, {first, 10}, {first, 11}, {1 - first, 11}} {
				w.write(of.who, int64(of.token), fence.NoSlot)
			}
			if first != 1 || !p.permits {
				continue
			}
			// Whoever knows of no slots is below the highest of any, and above all once it is admitted.
			w.begin("slots")
			for _, of := range []struct{ who, token, slot int }{
				{first, 12, 3}, {1 - first, 11, -1}, {first, 11, 2}, {1 - first, 11, -1}, {1 - first, 12, -1}, {first, 11, 2}, {first, 12, 2}, {first, 14, 0}, {first, 13, 1},
				{1 - first, 13, -1}, {1 - first, 15, -1}, {first, 14, 0}, {first, 15, 9999},
			} {
				w.write(of.who, int64(of.token), of.slot)
			}
		}
		random := rand.New(rand.NewPCG(start, 0))
		token := 0
		for i := range p.writes {
			if i%20 == 0 {
				w.begin("random-" + strconv.Itoa(i/20))
				token = 5
			}
			token += random.IntN(2)
			who, slot := random.IntN(2), fence.NoSlot
			if who == 1 && p.permits && random.IntN(2) == 0 {
				slot = random.IntN(3)
			}
			w.write(who, int64(token-random.IntN(5)), slot)
		}
		if w.refused == 0 || w.admitted == 0 {
			t.Errorf("%d were refused, %d admitted: this proves nothing", w.refused, w.admitted)
		}
	})
}

// pairOfWriters writes one resource in turn, and holds what comes of it against one mark.
type pairOfWriters struct {
	t                 *testing.T
	names             [2]string
	storages          [2]fencetest.Storage
	resource          string
	mark              fence.Mark
	stored            string
	n                 int
	refused, admitted int
}

func (w *pairOfWriters) begin(resource string) {
	w.resource, w.mark, w.stored = resource, fence.Mark{}, ""
}

func (w *pairOfWriters) write(who int, token int64, slot int) {
	w.t.Helper()
	before := fence.Mark{Token: w.mark.Token, Slots: maps.Clone(w.mark.Slots)}
	wanted := w.mark.Admit(token, slot)
	w.n++
	value := fmt.Sprintf("%d of token %d", w.n, token)
	err := w.storages[who].Write(w.t.Context(), fencetest.Write{Resource: w.resource, Token: strconv.FormatInt(token, 10), Slot: slot, Value: value})
	if wanted == nil {
		w.admitted++
		w.stored = value
	} else {
		w.refused++
	}
	if wanted == nil && err != nil || wanted != nil && !errors.Is(err, fencetest.ErrRefused) {
		w.t.Fatalf("%s: token %d, slot %d of %s at the mark %v: %v, and wanted %v", w.resource, token, slot, w.names[who], before, err, wanted)
	}
	for i, s := range w.storages {
		if stored, err := s.Read(w.t.Context(), w.resource); err != nil || stored != w.stored {
			w.t.Fatalf("%s: %s reads %q, %v, and %q was written", w.resource, w.names[i], stored, err, w.stored)
		}
	}
}

// mixed is storage that its writers write in turn.
type mixed struct {
	one, other fencetest.Storage
	permits    bool // the other's
	turn       atomic.Int64
}

func (m *mixed) Write(ctx context.Context, w fencetest.Write) error {
	if m.permits && w.Slot != fence.NoSlot || m.turn.Add(1)%2 == 0 {
		return m.other.Write(ctx, w)
	}
	return m.one.Write(ctx, w)
}

func (m *mixed) Read(ctx context.Context, resource string) (string, error) {
	return m.one.Read(ctx, resource)
}

// Nothing gets through a pair whose writers write at once.
func TestPairsAttack(t *testing.T) {
	eachPair(t, func(t *testing.T, p pair, one, other fencetest.Storage) {
		o := fencetest.Options{Permits: p.permits, Rounds: 5, Writers: 6}
		if recipeNamed(p.one).rounds > 0 {
			o.Rounds, o.Writers = recipeNamed(p.one).rounds, 4
		}
		report, err := fencetest.Attack(t.Context(), &mixed{one: one, other: other, permits: p.permits}, o)
		if err != nil {
			t.Fatal(err)
		}
		if report.Err() != nil {
			t.Error(report)
		}
	})
}

// Transactions of both at once, at every isolation level, each repeated where the database refuses it: what is
// written, without a slot by the statements of the page, only grows.
func TestPairsIsolation(t *testing.T) {
	of := map[string]string{"PostgreSQL": "postgresql/table", "SQLite": "sqlite/table", "MySQL": "mariadb/table"}
	for name, database := range guardedDatabases {
		for _, level := range database.levels {
			t.Run(name+"/"+level.String(), func(t *testing.T) {
				t.Parallel()
				db, guard := openGuarded(t, database.s, database.dialect)
				r := recipeNamed(of[name])
				byPage := admitByPage(name == "PostgreSQL", r.text(t, true)["write"])
				const writers, writes = 6, 10
				if _, err := db.ExecContext(t.Context(), "CREATE TABLE log (n INTEGER PRIMARY KEY, token BIGINT NOT NULL, slot INTEGER NOT NULL)"); err != nil {
					t.Fatal(err)
				}
				var all sync.WaitGroup
				for i := range writers {
					all.Go(func() {
						for k := range writes {
							token, slot, admit := int64(1+(k*writers+i)), i%3-1, guard.Admit
							if i%2 == 1 {
								slot, admit = fence.NoSlot, byPage
							}
							if err := appendToLog(t.Context(), db, admit, level, token, slot); err != nil {
								t.Errorf("token %d, slot %d: %v", token, slot, err)
							}
						}
					})
				}
				all.Wait()
				judgeLog(t, db, writers*writes)
			})
		}
	}
}

// admitByPage admits a token by the statements of a page, in a transaction that was begun.
func admitByPage(pg bool, text string) admission {
	return func(ctx context.Context, tx *sql.Tx, resource string, token int64, _ int) error {
		for _, s := range statements(text) {
			if !strings.Contains(s.text, "fences") {
				continue
			}
			rows, err := (&database{pg: pg}).one(ctx, tx, s, map[string]any{"resource": resource, "token": token})
			if err == nil && s.noRow && rows == 0 {
				err = &fence.StaleError{Token: token}
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
}
