package sqltest

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
)

// one is a server of a process, which all its tests share.
type one struct {
	mu    sync.Mutex
	start func() (*Server, error)
	s     *Server
	err   error // of the start, which is not tried again
}

var (
	sharedPostgres = one{start: func() (*Server, error) { return startPostgres() }}
	sharedMariaDB  = one{start: func() (*Server, error) { return startMariaDB() }}
)

// Postgres returns the PostgreSQL that all tests of the process share. It is started when it is
// first needed; Stop ends it.
func Postgres(t testing.TB) *Server {
	t.Helper()
	return sharedPostgres.get(t)
}

// MariaDB returns the MariaDB that all tests of the process share. It is started when it is
// first needed; Stop ends it.
func MariaDB(t testing.TB) *Server {
	t.Helper()
	return sharedMariaDB.get(t)
}

func (o *one) get(t testing.TB) *Server {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.s == nil && o.err == nil {
		if o.s, o.err = o.start(); o.err == nil {
			o.s.shared = true
		}
	}
	if o.err != nil {
		t.Fatal(o.err)
	}
	return o.s
}

func (o *one) stop() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.s == nil {
		return nil
	}
	err := o.s.close()
	o.s = nil
	return err
}

// Stop ends the servers that the tests of the process share, if they were started.
func Stop() error { return errors.Join(sharedPostgres.stop(), sharedMariaDB.stop()) }

// Main runs the tests of a package, ends the servers that they share, and the process. It is for
// a TestMain.
func Main(m *testing.M) {
	code := m.Run()
	if err := Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}
