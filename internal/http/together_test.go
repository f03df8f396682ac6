package http

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestStreamsOfOneLeaseSentTogether: of streams with one lease id, one goes on, whatever the order
// in which the store, its messages and the answers come; the others are told so.
func TestStreamsOfOneLeaseSentTogether(t *testing.T) {
	for path, body := range map[string]string{"/locks/a": `{"ttl_ms":600000}`, "/locks": `{"names":["a","b"],"ttl_ms":600000}`} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			g := startRunning(t)
			for range 20 {
				id := newID()
				ctx, cancel := context.WithCancel(t.Context())
				replaced, over := make(chan struct{}, 3), sync.WaitGroup{}
				for range cap(replaced) {
					over.Go(func() {
						if g.isReplaced(ctx, path, body, id) {
							replaced <- struct{}{}
						}
					})
				}
				for range cap(replaced) - 1 {
					select {
					case <-replaced:
					case <-time.After(patience):
						t.Fatal("more than one stream has the lease")
					}
				}
				g.eventually("one has the lease", func() bool { l := g.lock("a"); return l.Held() && l.Holders[0].Attached != "" })
				if len(replaced) > 0 {
					t.Fatal("all were replaced")
				}
				cancel()
				over.Wait()
				g.free("a", "b")
			}
		})
	}
}

// isReplaced reports whether a stream, until ctx ends, is told that a newer request has its lease.
func (g *gateway) isReplaced(ctx context.Context, path, body, id string) bool {
	r, err := http.NewRequestWithContext(ctx, "POST", g.url+path, strings.NewReader(body))
	if err != nil {
		g.t.Error(err)
		return false
	}
	r.Header = http.Header{"Accept": {"text/event-stream"}, "Lease-Id": {id}}
	resp, err := g.client.Do(r)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	if token := resp.Header.Get("Fencing-Token"); resp.StatusCode != http.StatusOK && token != "" {
		g.t.Errorf("%s, and the token %s", resp.Status, token)
	}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if strings.Contains(lines.Text(), `"code":"replaced"`) {
			return true
		}
	}
	return false
}
