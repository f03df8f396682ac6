package clients

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// asked is what a program has sent with its requests.
type asked struct {
	mu   sync.Mutex
	seen map[string]string // the Authorization of the last request of each method
	bad  []string
	last string // its target
}

func (a *asked) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = r.URL.String()
	if key, before := r.Header.Get("Authorization"), a.seen[r.Method]; before != "" && before != key {
		a.bad = append(a.bad, r.Method+" "+key)
	} else {
		a.seen[r.Method] = key
	}
	if r.Method == http.MethodDelete {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	fmt.Fprint(w, `{"waited_ms":0,"expires_in_ms":30000,"renew_in_ms":500,"fencing_token":1795184727477314}`)
}

// The programs send the key of FENCEPOST_KEY with every request to the gateway, and not to the storage. All but Java, which keeps
// its authorities elsewhere, ask a gateway with TLS here.
func TestKeys(t *testing.T) {
	t.Parallel()
	for _, l := range languages {
		if slices.Contains((Languages{}).Missing(), l.command) {
			continue
		}
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			gateway, storage := &asked{seen: map[string]string{}}, &asked{seen: map[string]string{}}
			start := httptest.NewTLSServer
			if l.name == "java" {
				start = httptest.NewServer
			}
			server, stored := start(gateway), httptest.NewServer(storage)
			defer server.Close()
			defer stored.Close()
			ca := filepath.Join(t.TempDir(), "ca.pem")
			if l.name != "java" {
				if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var said bytes.Buffer
			cmd := exec.CommandContext(t.Context(), l.command, l.file)
			cmd.Dir, cmd.Stdout, cmd.Stderr = examples, &said, &said
			cmd.Env = append(os.Environ(), "FENCEPOST="+server.URL, "FENCEPOST_KEY=a.key", "STORAGE="+stored.URL+"/report?of=today", "no_proxy=*", javaOptions,
				"SSL_CERT_FILE="+ca, "CURL_CA_BUNDLE="+ca, "NODE_EXTRA_CA_CERTS="+ca)
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v: %s", err, &said)
			}
			for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
				if key := gateway.seen[method]; key != "Bearer a.key" {
					t.Errorf("%s is sent with the Authorization %q", method, key)
				}
			}
			if key, written := storage.seen[http.MethodPut]; !written || key != "" || len(gateway.bad)+len(storage.bad) > 0 {
				t.Errorf("written %t, the storage gets %q; %q, %q", written, key, gateway.bad, storage.bad)
			}
			if want := "/report?of=today"; storage.last != want {
				t.Errorf("%s is written instead of %s", storage.last, want)
			}
		})
	}
}
