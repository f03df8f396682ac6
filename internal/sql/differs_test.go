package sql

import (
	"errors"
	"strings"
	"testing"
	"time"

	"fencepost/internal/machine"
	"fencepost/internal/sql/sqltest"
)

// A gateway that computes other results than the one that wrote the log stops, and none like it starts: else two would grant the same
// name.
func TestALogThatComesToSomethingElse(t *testing.T) {
	t.Parallel()
	for _, server := range []*sqltest.Server{sqltest.Postgres(t), sqltest.MariaDB(t)} {
		url := initialised(t, server.Database(t))
		o := Options{URL: url, Version: "v1", Logger: testLog(t)}
		a := openGateway(t, o)
		acquire(t, a, "a", time.Minute)
		db, err := newDatabase(url)
		if err != nil {
			t.Fatal(err)
		}
		other, err := db.connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		b, err := other.begin(t.Context(), 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		e := machine.Entry{Now: int64(b.now), Behind: b.entries[len(b.entries)-1].seq, Digest: 1, Writer: "v2"}
		is, _, err := encoded(&e, e.Behind+1)
		if err != nil {
			t.Fatal(err)
		}
		if err := other.commit(t.Context(), is); err != nil {
			t.Fatal(err)
		}
		other.close()
		select {
		case <-a.Failed():
		case <-time.After(2 * time.Minute):
			t.Fatal("it goes on")
		}
		if err := a.Cause(); !errors.Is(err, machine.ErrDiffers) || !strings.Contains(err.Error(), "start version v2 here") {
			t.Errorf("it stops for %v", err)
		}
		if _, err := a.Do(t.Context(), request("b", time.Minute)); err == nil {
			t.Error("it grants something")
		}
		if s, err := Open(t.Context(), o); !errors.Is(err, machine.ErrDiffers) {
			t.Errorf("another one starts: %v", err)
			if err == nil {
				s.Close()
			}
		}
	}
}
