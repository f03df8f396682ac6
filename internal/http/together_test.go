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
	t.Parallel()
	for path, body := range map[string]string{"/locks/a": `{"ttl_ms":600000}`, "/locks": `{"names":["a","b"],"ttl_ms":600000}`} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			g := startRunning(t)
			for range 20 {
				id := newID()
				ctx, cancel := context.WithCancel(t.Context())
				ends, over := make(chan string, 3), sync.WaitGroup{}
				for range cap(ends) {
					over.Go(func() {
						if end := g.endOfStream(ctx, path, body, id); end != "" {
							ends <- end
						}
					})
				}
				for range cap(ends) - 1 {
					select {
					case end := <-ends:
						if !strings.Contains(end, `"code":"replaced"`) {
							t.Fatalf("a stream ended with %s", end)
						}
					case <-time.After(patience):
						t.Fatal("more than one stream has the lease")
					}
				}
				g.eventually("one has the lease", func() bool { l := g.lock("a"); return l.Held() && l.Holders[0].Attached != "" })
				select {
				case end := <-ends:
					t.Fatalf("the last one ended with %s", end)
				default:
				}
				cancel()
				over.Wait()
				g.free("a", "b")
			}
		})
	}
}

// endOfStream returns the last thing that a stream says, empty if that is because ctx has ended.
func (g *gateway) endOfStream(ctx context.Context, path, body, id string) string {
	r, err := http.NewRequestWithContext(ctx, "POST", g.url+path, strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	r.Header = http.Header{"Accept": {"text/event-stream"}, "Lease-Id": {id}}
	resp, err := g.client.Do(r)
	if ctx.Err() != nil {
		return ""
	}
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	if token := resp.Header.Get("Fencing-Token"); resp.StatusCode != http.StatusOK && token != "" {
		g.t.Errorf("%s, and the token %s", resp.Status, token)
	}
	last := resp.Status
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if lines.Text() != "" {
			last = lines.Text()
		}
	}
	if ctx.Err() != nil {
		return ""
	}
	return last
}
