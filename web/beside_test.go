package web_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"fencepost/internal/embedded"
)

// mostBeside is how much longer the p99 of others may be beside the page than without it.
const mostBeside = 1.2

// change has so many changes a second happen to locks, until stop is called. The embedded
// store has many of them made durable at once.
func (g *gateway) change(held []lease, perSecond int) (stop func()) {
	const hands = 20
	var all sync.WaitGroup
	done := make(chan struct{})
	for hand := range hands {
		all.Go(func() {
			pairs := time.NewTicker(2 * hands * time.Second / time.Duration(perSecond))
			defer pairs.Stop()
			for i := hand; ; i = (i + hands) % len(held) {
				select {
				case <-done:
					return
				case <-pairs.C:
				}
				g.releaseBehind(held[i])
				held[i] = g.acquireBehind(held[i].Name, "again")
			}
		})
	}
	return func() {
		close(done)
		all.Wait()
	}
}

// others ask for locks of their own, 100 times a second for as long as they are let, whoever else
// waits for an answer. It returns the p99 from when each was due until it was answered.
func (g *gateway) others(client *http.Client, during time.Duration) time.Duration {
	g.t.Helper()
	var mu sync.Mutex
	var took []time.Duration
	var all sync.WaitGroup
	slots := make(chan struct{}, 64)
	begin := time.Now()
	for at := time.Duration(0); at < during; at += 10 * time.Millisecond {
		due := begin.Add(at)
		<-time.After(time.Until(due)) // their pace
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			request, err := http.NewRequestWithContext(g.t.Context(), "POST", fmt.Sprintf("%s/locks/others/%d", g.origin, due.UnixNano()), strings.NewReader(`{"ttl_ms":1000}`))
			if err != nil {
				g.t.Error(err)
				return
			}
			response, err := client.Do(request)
			if err != nil {
				g.t.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, response.Body)
			response.Body.Close()
			if response.StatusCode != http.StatusCreated {
				g.t.Errorf("others are answered %s", response.Status)
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(due))
		})
	}
	all.Wait()
	slices.Sort(took)
	if len(took) == 0 {
		g.t.Fatal("no other was answered")
	}
	return took[len(took)*99/100]
}

// yielding starts a browser that takes the processor only when nobody else wants it: what the
// page costs its reader's machine is not to be counted as the gateway's. It is the scheduling
// policy that says so, for Chromium sets the niceness of its processes itself.
func yielding(t *testing.T) *tab {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), "chromium")
	if err := os.WriteFile(script, fmt.Appendf(nil, "#!/bin/sh\nexec chrt --idle 0 %s \"$@\"\n", path), 0o755); err != nil {
		t.Fatal(err)
	}
	browser, stop, err := launch(script)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	b := newTab(t, browser)
	t.Cleanup(func() {
		defer b.close()
		b.check()
	})
	return b
}

// The others of a gateway are answered as fast beside the page as without it, while it reads
// all locks, keeps them and hears of every change.
func TestOthersBesideThePage(t *testing.T) {
	load, long := scale()
	store, err := embedded.Open(embedded.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	g := startGateway(t, func(s *fallibleStore) { s.Store = store })
	open, rounds := yielding, 3
	if !long {
		open, rounds = openTab, 1 // what a second tells needs no browser of its own, nor to be told again
	}
	b := open(t)
	held := make([]lease, load.locks)
	var fill sync.WaitGroup
	for part := range 50 {
		fill.Go(func() {
			for i := part; i < len(held); i += 50 {
				held[i] = g.acquireBehind(fmt.Sprintf("shard/%02d/job/%06d", i%37, i), "worker")
			}
		})
	}
	fill.Wait()
	defer g.change(held, load.changes)()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	each := min(load.watch/3, 30*time.Second)
	var without, beside []time.Duration
	for range rounds {
		b.do(chromedp.Navigate("about:blank"))
		without = append(without, g.others(client, each))
		asked := g.front.count("list")
		b.do(chromedp.Navigate(g.origin + "/?sort=-held"))
		eventually(t, "the page reads", func() bool { return g.front.count("list") > asked })
		beside = append(beside, g.others(client, each))
		t.Logf("p99 of others: %s without the page, %s beside it; the page shows %s", without[len(without)-1], beside[len(beside)-1], b.text("#count"))
	}
	slices.Sort(without)
	slices.Sort(beside)
	ratio := float64(beside[rounds/2]) / float64(without[rounds/2])
	t.Logf("beside the page it is %.2f times that without", ratio)
	if long && ratio > mostBeside {
		t.Errorf("the p99 of others is %.2f times that without the page", ratio)
	}
}
