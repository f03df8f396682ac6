package web_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
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

// ask asks for what the page has asked for, each at its time, and reads the answers. It costs
// the gateway what the page does, and this machine next to nothing beside.
func (g *gateway) ask(client *http.Client, all []asked) (stop func()) {
	ctx, cancel := context.WithCancel(g.t.Context())
	var asking sync.WaitGroup
	begin := time.Now()
	for _, one := range all {
		asking.Go(func() {
			select {
			case <-time.After(time.Until(begin.Add(one.after))):
			case <-ctx.Done():
				return
			}
			request, err := http.NewRequestWithContext(ctx, "GET", g.origin+one.url, nil)
			if err != nil {
				g.t.Error(err)
				return
			}
			request.Header = one.header
			response, err := client.Do(request)
			if err != nil {
				if ctx.Err() == nil {
					g.t.Error(err)
				}
				return
			}
			_, _ = io.Copy(io.Discard, response.Body)
			response.Body.Close()
			if response.StatusCode >= 400 {
				g.t.Errorf("%s is answered %s", one.url, response.Status)
			}
		})
	}
	return func() {
		cancel()
		asking.Wait()
	}
}

// The others of a gateway are answered as fast beside the page as without it, while it reads
// all locks, keeps them and hears of every change. What the reader's browser costs its machine is not the
// gateway's: so the page opens, and then the same is asked for at the same pace without a browser.
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
	rounds := 3
	if !long {
		rounds = 1 // what a second tells need not be told again
	}
	b := openTab(t)
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
	var ratios []float64
	for range rounds {
		without := g.others(client, each)
		recording := g.front.record()
		before := g.front.count("list")
		b.do(chromedp.Navigate(g.origin + "/?sort=-held"))
		eventually(t, "the page reads", func() bool { return g.front.count("list") > before })
		besideBrowser := g.others(client, each)
		shows := b.text("#count")
		b.do(chromedp.Navigate("about:blank"))
		all := recording()
		stop := g.ask(client, all)
		beside := g.others(client, each)
		stop()
		ratios = append(ratios, float64(beside)/float64(without))
		t.Logf("p99 of others: %s without the page, %s beside the %d requests of one that shows %s, %s beside its browser on this machine",
			without, beside, len(all), shows, besideBrowser)
	}
	slices.Sort(ratios)
	t.Logf("beside the page it is %.2f times that without", ratios[rounds/2])
	if long && ratios[rounds/2] > mostBeside {
		t.Errorf("the p99 of others is %.2f times that without the page", ratios[rounds/2])
	}
}
