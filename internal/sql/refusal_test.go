package sql

import (
	"testing"
	"time"

	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"

	"fencepost/internal/fencing"
)

// refuseOwner has the database refuse rows with an owner, in words of its own.
func refuseOwner(t *testing.T, p *place, owner string) {
	t.Helper()
	statement := "create trigger refuses before insert on lease for each row if new.owner = '" + owner + "' then signal sqlstate '45000'; end if"
	if p.postgres() {
		statement = "alter table fencepost.lease add constraint refuses check (owner <> '" + owner + "')"
	}
	if _, err := p.db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
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
			w := startWork(t, 8, 8, stores...)
			refusals := 0
			await(t, "the others go on", func() bool {
				r := request("refused", time.Minute)
				r.Owner = "refused"
				if _, err := stores[0].Do(t.Context(), r); code(err) != fencing.CodeUnavailable {
					t.Fatalf("what is refused: %v", err)
				}
				refusals++
				return refusals >= 50 && w.granted.Load() >= 200
			})
			w.end()
			t.Logf("%d refusals beside %d grants", refusals, w.granted.Load())
			if n := w.unavailable.Load(); n > 0 {
				t.Errorf("others had %d errors", n)
			}
			theSame(t, o, stores...)
		}
	})
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
		1142: ofAll, 1205: ofAll, 1114: ofAll, 1290: ofAll, 1213: ofAll, 1062: ofAll, 1021: ofAll, 1644: ofContent, 4025: ofContent, 1153: ofContent, 1366: ofText,
	} {
		if got := refusedFor(mysqlError(&gomysql.MySQLError{Number: number})); got != want {
			t.Errorf("%d: %d, want %d", number, got, want)
		}
	}
	if got := refusedError(postgresError(&pgconn.PgError{Code: "22021", SeverityUnlocalized: "ERROR"})); got.Code != fencing.CodeInvalidRequest {
		t.Errorf("a text that can't be held: %v", got)
	}
}
