package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// P4, P6: a crowd of clients leaves, each with a set that lacks but one of its names.
// The leases they have no TTL yet; all go back. FENCEPOST_LONG makes the crowd 1,500.
func TestIncompleteSetsAreGivenBack(t *testing.T) {
	clients := times(150, 1500)
	g := start(t, "FENCEPOST_MAX_WAIT=10m")
	url := "http://" + g.addr
	if _, err := acquireAt(t.Context(), g, "zz", `{"ttl_ms":3600000}`); err != nil {
		t.Fatal(err)
	}
	conns := make([]net.Conn, clients)
	var asking sync.WaitGroup
	for i := range conns {
		asking.Go(func() {
			var names []string
			for n := range fencing.MaxNames - 1 {
				names = append(names, fmt.Sprintf(`"c%d/n%d"`, i, n))
			}
			body := `{"names":[` + strings.Join(names, ",") + `,"zz"],"wait_ms":600000}`
			conn, err := net.Dial("tcp", g.addr)
			if err != nil {
				t.Error(err)
				return
			}
			conns[i] = conn
			fmt.Fprintf(conn, "POST /locks HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		})
	}
	asking.Wait()
	if t.Failed() {
		return
	}
	await := func(what string, limit time.Duration, holds func() bool) {
		t.Helper()
		for deadline := time.Now().Add(limit); !holds(); <-time.After(100 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("waited in vain for %s: %d names are held", what, heldNames(t, url))
			}
		}
	}
	await("nearly all to wait for the last name", 5*time.Minute, func() bool {
		status, body, err := request(http.MethodGet, url+"/locks/zz", "", nil)
		var lock struct{ Waiting int }
		return err == nil && status == http.StatusOK && json.Unmarshal(body, &lock) == nil && lock.Waiting >= clients*9/10 // a loaded machine cuts some off
	})
	if held := heldNames(t, url); held < clients*9/10*(fencing.MaxNames-1) {
		t.Fatalf("%d names are held", held)
	}
	for _, conn := range conns {
		conn.Close()
	}
	await("all names to be free", time.Minute, func() bool { return heldNames(t, url) == 1 })
}

// heldNames returns how many names have a holder, by the gateway's metrics.
func heldNames(t *testing.T, url string) (held int) {
	t.Helper()
	_, body, err := request(http.MethodGet, url+"/metrics", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(body), "\nfencepost_locks_held ")
	if !ok {
		t.Fatal("there is no such metric")
	}
	var value float64
	fmt.Sscan(rest, &value)
	return int(value)
}
