package sql

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/sql/sqltest"
)

// On MariaDB the users of gateways and applications can do what they need, and no more.
func TestRightsOnMariaDB(t *testing.T) {
	t.Parallel()
	server := sqltest.MariaDB(t)
	url, gateway, program := server.Database(t), server.User(t, "secret"), server.User(t, "secret")
	rights := Rights{Gateway: gateway + "@127.0.0.1", Application: program + "@127.0.0.1"}
	if is, err := Init(t.Context(), url, rights); err != nil || !is.Made {
		t.Fatal(is, err)
	}
	if is, err := Init(t.Context(), url, Rights{}); err != nil || is.Made || is.Raised {
		t.Errorf("again: %+v, %v", is, err)
	}
	asGateway, asProgram := server.DB(t, sqltest.As(url, gateway, "secret")), server.DB(t, sqltest.As(url, program, "secret"))
	var stores []*Store
	for range 2 {
		s, err := Open(context.Background(), Options{URL: sqltest.As(url, gateway, "secret"), snapshotAt: 1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		stores = append(stores, s)
	}
	acquire := fencing.AcquireRequest{Name: "orders/42", Lease: fencing.NewLeaseID(time.Now()), TTL: time.Minute, Hold: 1, Stamp: "a"}
	token := mustDo(t, stores[0], acquire).Holder.Token
	mustDo(t, stores[1], fencing.RenewRequest{Name: acquire.Name, Lease: acquire.Lease, TTL: time.Hour})
	guard := fmt.Sprintf("select guard('orders/42', %d)", token)
	var found int64
	if err := asProgram.QueryRow("select fencing_token from leases where name = 'orders/42'").Scan(&found); err != nil || found != int64(token) {
		t.Errorf("the view shows %d, %v; want %d", found, err, token)
	}
	tx, err := asProgram.Begin()
	if err == nil {
		_, err = tx.Exec(guard)
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		t.Error(err)
	}
	mustDo(t, stores[1], fencing.ReleaseRequest{Name: acquire.Name, Lease: acquire.Lease})
	acquire.Name = "other"
	await(t, "a snapshot", func() bool {
		acquire.Lease = fencing.NewLeaseID(time.Now())
		mustDo(t, stores[0], acquire)
		mustDo(t, stores[1], fencing.ReleaseRequest{Name: acquire.Name, Lease: acquire.Lease})
		var snapshots int
		if err := server.DB(t, url).QueryRow("select count(*) from snapshot where no = 0").Scan(&snapshots); err != nil {
			t.Fatal(err)
		}
		return snapshots > 0
	})
	findings, err := stores[0].Examine(t.Context())
	if err != nil || len(findings) == 0 {
		t.Error(findings, err)
	}
	for _, statement := range []string{
		"update log set entry = ''", "update store set version = 7", "delete from store", "delete from snapshotter", "create table mine (a int)", "drop table log", guard,
	} {
		if _, err := asGateway.Exec(statement); err == nil || !strings.Contains(err.Error(), "denied") {
			t.Errorf("a gateway: %s: %v", statement, err)
		}
	}
	for _, statement := range []string{"select * from lease", "select * from log", "select * from store for update", "delete from lease", "delete from leases"} {
		if _, err := asProgram.Exec(statement); err == nil || !strings.Contains(err.Error(), "denied") {
			t.Errorf("an application: %s: %v", statement, err)
		}
	}
}

func TestMySQLUser(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"locks": "'locks'@'%'", "locks@10.0.0.%": "'locks'@'10.0.0.%'", `o'd\d`: `'o''d\\d'@'%'`} {
		if got := mysqlUser(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}
