//go:build unix

package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// Under run it is said once that renewals fail, and the command runs on if one succeeds in time.
func TestRunSaysThatRenewalsFail(t *testing.T) {
	t.Parallel()
	var puts atomic.Int64
	started := filepath.Join(t.TempDir(), "started")
	fails := func() bool {
		_, err := os.Stat(started)
		return err == nil && puts.Add(1) <= 3
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodDelete:
			w.WriteHeader(http.StatusNoContent)
			return
		case r.Method == http.MethodPut && fails():
			w.WriteHeader(http.StatusServiceUnavailable)
			io.WriteString(w, `{"code":"unavailable","status":503,"detail":"the store does not answer"}`)
			return
		}
		fmt.Fprintf(w, `{"name":"a","lease_id":%q,"fencing_token":7,"ttl_ms":60000,"expires_in_ms":60000,"renew_in_ms":100}`, r.Header.Get("Lease-Id"))
	}))
	defer server.Close()
	got, out := lockctl(t, []string{"FENCEPOST=" + server.URL}, "run", "-ttl", "1m", "a", "--", "sh", "-c", `: > "$0"; sleep 2`, started)
	if says := "could not be renewed yet: unavailable: "; got != 0 || strings.Count(out, says) != 1 || !strings.Contains(out, "lockctl: a: ") || puts.Load() < 4 {
		t.Errorf("%d after %d renewals: %s", got, puts.Load(), out)
	}
}
