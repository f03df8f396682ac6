package sql

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/sql/sqltest"
)

// cable is what is between a gateway and a server, and fails as one does of which an end stands still, or is cut: all connections stay
// open, and nothing more comes through.
type cable struct {
	cut  atomic.Pointer[string] // what has it fail: a message with this text, of which the end is missing
	deaf atomic.Bool            // nothing comes back, and nobody takes it from the server
	dead atomic.Bool
}

// ending is how many bytes are missing: less than what a commit has behind its entry. One that is cut in the entry itself a server throws
// out, as it is idle to it.
const ending = 20

// lay returns the URL of a database behind a cable.
func lay(t testing.TB, rawURL string) (*cable, string) {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	c := &cable{}
	server := u.Host
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			if c.dead.Load() {
				t.Cleanup(func() { near.Close() })
				continue
			}
			far, err := net.Dial("tcp", server)
			if err != nil {
				near.Close()
				continue
			}
			t.Cleanup(func() { near.Close(); far.Close() })
			go c.carry(far, near, true)
			go c.carry(near, far, false)
		}
	}()
	u.Host = l.Addr().String()
	return c, u.String()
}

func (c *cable) carry(to, from net.Conn, there bool) {
	defer to.Close()
	b := make([]byte, 1<<20)
	for {
		n, err := from.Read(b)
		if text := c.cut.Load(); there && text != nil && n > ending && bytes.Contains(b[:n], []byte(*text)) {
			c.dead.Store(true)
			_, _ = to.Write(b[:n-ending])
		}
		if c.dead.Load() || !there && c.deaf.Load() {
			select {}
		}
		if _, writeErr := to.Write(b[:n]); err != nil || writeErr != nil {
			return
		}
	}
}

// goOn fails a test unless a gateway goes on while another one has the turn and is gone. How long that takes at most is judged in make verify.
func goOn(t *testing.T, a *Store) {
	t.Helper()
	began := time.Now()
	r := request("others", time.Minute)
	await(t, "others go on", func() bool {
		_, err := a.Do(t.Context(), r)
		return err == nil
	})
	t.Logf("others waited for %s", time.Since(began))
}

// A gateway of whose commit only a part has come, as its machine has lost its power, or the cable is cut, keeps nobody waiting for long: a
// server of PostgreSQL waits for the rest for as long as the system's keepalives let it.
func TestHalfACommit(t *testing.T) {
	t.Parallel()
	for name, server := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := server(t)
			url := initialised(t, s.Database(t))
			a := openGateway(t, Options{URL: url, Logger: testLog(t)})
			acquire(t, a, "before", time.Minute)
			cable, through := lay(t, url)
			c, err := Open(t.Context(), Options{URL: through, Logger: testLog(t), aloneAfter: -1})
			if err != nil {
				t.Fatal(err)
			}
			text := "cut/here" // the lock that it is about
			cable.cut.Store(&text)
			r := request("cut/here", time.Minute)
			r.Metadata = map[string]string{"filler": strings.Repeat("x", 2000)}
			go func() { _, _ = c.Do(context.Background(), r) }()
			t.Cleanup(func() { c.Close() })
			await(t, "the cable is cut", cable.dead.Load)
			goOn(t, a)
			if n := a.TurnsEnded(); name == "PostgreSQL" && n != 1 {
				t.Errorf("%d sessions were ended", n)
			}
			theSame(t, Options{URL: url, Logger: testLog(t)}, a)
		})
	}
}

// A gateway that stands still while it is sent something in its turn keeps nobody waiting for long: to its server it is at work.
func TestDeafInATurn(t *testing.T) {
	t.Parallel()
	for name, server := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := server(t)
			url := initialised(t, s.Database(t))
			a := openGateway(t, Options{URL: url, Logger: testLog(t), aloneAfter: -1})
			acquire(t, a, "before", time.Minute)
			cable, through := lay(t, url)
			deaf := connect(t, through)
			if _, err := deaf.begin(t.Context(), 0, nil); err != nil {
				t.Fatal(err)
			}
			cable.deaf.Store(true)
			ctx, cancel := context.WithCancel(t.Context())
			var asks sync.WaitGroup
			t.Cleanup(func() { // before it is closed
				cancel()
				asks.Wait()
			})
			asks.Go(func() {
				switch deaf := deaf.(type) {
				case *postgresConn:
					_, _ = deaf.Exec(ctx, "select repeat('x', 100000000)")
				case *mysqlConn:
					_ = deaf.ask(ctx, strings.Repeat("select repeat('x', 10000000);", 10), nil)
				}
			})
			goOn(t, a)
		})
	}
}

// What is no turn of a gateway is not ended, but named: a transaction of another user, a lock of the table, and a command of the
// gateway's own that keeps turns off.
func TestOthersThatLockTheStore(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url := server.Database(t)
	user, as := gatewayUser(t, server, url)
	if _, err := server.DB(t, url).Exec("grant update on fencepost.store to " + user); err != nil {
		t.Fatal(err)
	}
	a := openGateway(t, Options{URL: as, Logger: testLog(t)})
	acquire(t, a, "before", time.Minute)
	for what, by := range map[string]struct{ url, statement string }{
		"another user":      {url, "select from fencepost.store for update"},
		"the whole table":   {as, "lock fencepost.store in exclusive mode"},
		"also for readers":  {url, "lock fencepost.store"},
		"the leases":        {url, "lock fencepost.lease"},
		"the log":           {url, "lock fencepost.log"},
		"a command of ours": {as + "&application_name=fencepost%20store%20hold", "select from fencepost.store for update"},
	} {
		tx, err := server.DB(t, by.url).BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(by.statement); err != nil {
			t.Fatal(err)
		}
		var pid int
		if err := tx.QueryRow("select pg_backend_pid()").Scan(&pid); err != nil {
			t.Fatal(err)
		}
		await(t, what+" is named", func() bool { // a machine that has much to do finds it in a later turn
			_, err := a.Do(t.Context(), request(fencing.Name("x/"+itoa(pid)), time.Minute))
			return code(err) == fencing.CodeUnavailable && strings.Contains(err.Error(), "process "+itoa(pid))
		})
		if c, err := Examine(t.Context(), Options{URL: as}); !strings.Contains(fmt.Sprint(err, c.Unable), "process "+itoa(pid)) {
			t.Errorf("%s: the doctor says %v, %v", what, err, c.Unable)
		}
		if err := tx.Commit(); err != nil {
			t.Errorf("%s was ended: %v", what, err)
		}
		acquire(t, a, fencing.Name("after/"+itoa(pid)), time.Minute)
	}
	if n := a.TurnsEnded(); n > 0 {
		t.Errorf("%d sessions were ended", n)
	}
}
