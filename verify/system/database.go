package system

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"

	"fencepost/internal/redis/redistest"
	"fencepost/internal/sql/sqltest"
)

// startDatabase starts a server, and makes the tables of the store in a database of it.
func (s *System) startDatabase() error {
	err := s.launch(func(t testing.TB) {
		if s.Kind == Postgres {
			s.Database = sqltest.StartPostgres(t)
		} else {
			s.Database = sqltest.StartMariaDB(t)
		}
		s.DatabaseURL = s.Database.Database(t)
	})
	if err != nil {
		return err
	}
	s.url = s.DatabaseURL
	path, err := Binary(s.options.Build)
	if err != nil {
		return err
	}
	command := exec.Command(path, "store", "init")
	command.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "FENCEPOST_STORE=" + s.url}
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("gateway store init: %w: %s", err, out)
	}
	return nil
}

// endDatabase ends the database, and starts it again at the end.
func endDatabase(end func(*sqltest.Server, testing.TB)) func(*System, *rand.Rand) (*Harm, error) {
	return func(s *System, _ *rand.Rand) (*Harm, error) {
		pids := s.Database.Processes()
		return Killed("the database", func() error { return s.withDatabase((*sqltest.Server).Restart) }, pids...), s.withDatabase(end)
	}
}

// stopDatabase has all processes of the database stand still.
func stopDatabase(s *System, _ *rand.Rand) (*Harm, error) {
	err := s.withDatabase((*sqltest.Server).Pause)
	return Paused("the database", func() error { return s.withDatabase((*sqltest.Server).Continue) }, s.Database.Processes()...), err
}

// withDatabase does something with the server. What would fail a test is its error.
func (s *System) withDatabase(do func(*sqltest.Server, testing.TB)) error {
	stop, err := redistest.Launch(func(t testing.TB) { do(s.Database, t) })
	if stopErr := stop(); err == nil {
		err = stopErr
	}
	return err
}

// dropBackends ends all connections of gateways, whatever they are doing.
func dropBackends(s *System, _ *rand.Rand) (*Harm, error) {
	return AtOnce("gateways", "connections closed", func() (closed int, err error) {
		err = s.withDatabase(func(server *sqltest.Server, t testing.TB) {
			const end = "select count(*) filter (where pg_terminate_backend(pid)) from pg_stat_activity where application_name = 'fencepost'"
			if err := server.DB(t, s.DatabaseURL).QueryRow(end).Scan(&closed); err != nil {
				t.Fatal(err)
			}
		})
		return closed, err
	})
}
