package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/sql"
	"fencepost/internal/sql/sqltest"
)

// databaseBackups backs up and restores databases by the commands of the document, while clients use two gateways.
func databaseBackups(t *testing.T, blocks []string) {
	for _, d := range backedUp(blocks) {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			o := newOperator(t)
			a, z := d.gateways(o, longest)
			b := newBackups(t, a)
			must(t, z.start())
			load := startLoad(t, 8, a, z)
			d.copies(o)
			b.goesOn()
			load.goesOn()
			d.restores(o)
			b.restored()
			load.end()
			listTheSame(b.ledger, a, z)
		})
	}
}

// TestSystemRestoredUnderLoad restores one copy again and again under closed loops of clients: it goes each time, and what the copy lacks counts as
// lost each time.
func TestSystemRestoredUnderLoad(t *testing.T) {
	t.Parallel()
	var blocks []string
	for _, b := range shellBlocks(t, operations) {
		if strings.HasSuffix(b.section, ": Backup of a database") {
			blocks = append(blocks, b.text)
		}
	}
	for _, callers := range []int{8, 16} {
		for _, d := range backedUp(blocks) {
			t.Run(fmt.Sprintf("%s, %d", d.name, callers), func(t *testing.T) {
				t.Parallel()
				o := newOperator(t)
				a, z := d.gateways(o, time.Second)
				must(t, a.start())
				must(t, z.start())
				l := newLedger(t)
				kept := l.acquires(a, "kept", time.Hour)
				load := startLoad(t, callers, a, z)
				load.goesOn()
				d.copies(o)
				for range 10 {
					lost := l.acquires(a, "lost", time.Second)
					load.goesOn()
					d.restores(o)
					l.answers(z, http.MethodPut, "/locks/lost", map[string]string{"Lease-Id": lost.LeaseID}, http.StatusPreconditionFailed, `"reason":"unknown"`)
					l.answers(z, http.MethodPut, "/locks/kept", map[string]string{"Lease-Id": kept.LeaseID}, http.StatusOK, "")
				}
				load.goesOn()
				load.end()
				listTheSame(l, a, z)
			})
		}
	}
}

// backedUpDatabase is a kind of database, and the commands for it.
type backedUpDatabase struct {
	name          string
	start         func(o *operator) (store string) // has a database locks, and the shell's commands be about it
	copy, restore string
}

func backedUp(blocks []string) []backedUpDatabase {
	return []backedUpDatabase{
		{"PostgreSQL", func(o *operator) string {
			server, store := o.postgres()
			readsLeases(o.t, server, store)
			return store
		}, blocks[0], blocks[2]},
		{"MariaDB", (*operator).mariadb, blocks[1], blocks[3]},
	}
}

// gateways sets up two, which grant nothing for so long after a loss.
func (d *backedUpDatabase) gateways(o *operator, quarantine time.Duration) (a, z *service) {
	o.t.Helper()
	store := d.start(o)
	_, err := sql.Init(o.t.Context(), store, sql.Rights{})
	must(o.t, err)
	must(o.t, os.WriteFile(o.path("store"), []byte(store), 0o600))
	settings := []string{"FENCEPOST_STORE=" + store, "FENCEPOST_QUARANTINE=" + quarantine.String()}
	return o.gateway(settings...), o.gateway(settings...)
}

func (d *backedUpDatabase) copies(o *operator) { o.types(d.copy, false) }

func (d *backedUpDatabase) restores(o *operator) {
	o.t.Helper()
	o.types(d.restore, false, "/etc/fencepost/secrets/store", o.path("store"))
}

// postgres starts a PostgreSQL with a database locks, which psql and the like are about, and returns the URL of that.
func (o *operator) postgres() (server *sqltest.Server, store string) {
	o.t.Helper()
	server = sqltest.StartPostgres(o.t)
	at := o.locksIn(server)
	o.env = append(o.env, "PGHOST="+at.Hostname(), "PGPORT="+at.Port(), "PGUSER=postgres")
	return server, at.String()
}

// mariadb is postgres for MariaDB.
func (o *operator) mariadb() (store string) {
	o.t.Helper()
	at := o.locksIn(sqltest.StartMariaDB(o.t))
	for _, program := range []string{"mariadb", "mariadb-dump"} {
		path, err := exec.LookPath(program)
		must(o.t, err)
		o.shim(program, fmt.Sprintf(`exec %s --no-defaults --host=%s --port=%s --user=root "$@"`, path, at.Hostname(), at.Port()))
	}
	return at.String()
}

func (o *operator) locksIn(server *sqltest.Server) *url.URL {
	o.t.Helper()
	any := server.Database(o.t)
	at, err := url.Parse(any)
	must(o.t, err)
	_, err = server.DB(o.t, any).Exec("create database locks")
	must(o.t, err)
	at.Path = "/locks"
	return at
}

// readsLeases is an application that looks at the leases without end. What a restore or a deadlock does to it does not matter.
func readsLeases(t *testing.T, server *sqltest.Server, store string) {
	db := server.DB(t, store)
	var all sync.WaitGroup
	t.Cleanup(all.Wait)
	all.Go(func() {
		for t.Context().Err() == nil {
			_, _ = db.ExecContext(t.Context(), "select count(*) from fencepost.leases")
		}
	})
}

// load is clients that acquire and release without end, each a name of its own, at some gateways in turn.
type load struct {
	t       *testing.T
	granted atomic.Int64
	stop    chan struct{}
	all     sync.WaitGroup
}

func startLoad(t *testing.T, callers int, at ...*service) *load {
	l := &load{t: t, stop: make(chan struct{})}
	t.Cleanup(l.end)
	for c := range callers {
		l.all.Go(func() { l.calls(fmt.Sprint("load/", c), at) })
	}
	return l
}

func (l *load) calls(name string, at []*service) {
	last := int64(0)
	for i := 0; ; i++ {
		select {
		case <-l.stop:
			return
		default:
		}
		g := at[i%len(at)].gatewayProcess
		h, err := acquireAt(l.t.Context(), g, name, `{"ttl_ms":1000}`)
		if err != nil { // held off, in quarantine, or held by itself before a restore
			<-time.After(look)
			continue
		}
		if h.Token <= last {
			l.t.Errorf("%s: token %d after %d", name, h.Token, last)
		}
		last = h.Token
		l.granted.Add(1)
		_ = releaseAt(g, name, h)
	}
}

// goesOn returns when there were some grants more.
func (l *load) goesOn() {
	l.t.Helper()
	for enough, deadline := l.granted.Load()+50, time.Now().Add(patience); l.granted.Load() < enough; <-time.After(look) {
		if time.Now().After(deadline) {
			l.t.Fatal("clients are granted nothing any more")
		}
	}
}

// end ends the load. It may be called twice.
func (l *load) end() {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.all.Wait()
}

// listTheSame fails the test unless both gateways show the same locks, when nobody asks for any.
func listTheSame(l *ledger, a, z *service) {
	l.t.Helper()
	shows := func(s *service) (all []string) {
		status, body, err := request(http.MethodGet, "http://"+s.addr+"/locks", "", nil)
		var page struct {
			Locks []struct {
				Name  string `json:"name"`
				Token int64  `json:"fencing_token"`
			} `json:"locks"`
		}
		if err == nil {
			err = json.Unmarshal(body, &page)
		}
		if err != nil || status != http.StatusOK {
			l.t.Fatal(status, string(body), err)
		}
		for _, lock := range page.Locks {
			all = append(all, fmt.Sprint(lock.Name, " ", lock.Token))
		}
		return all
	}
	var first, second string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-time.After(look) { // leases run out in between
		if first, second = fmt.Sprint(shows(a)), fmt.Sprint(shows(z)); first == second {
			return
		}
	}
	l.t.Errorf("one gateway shows\n%s\nand the other\n%s", first, second)
}
