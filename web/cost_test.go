package web_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/cdproto/systeminfo"
	"github.com/chromedp/chromedp"

	"fencepost/internal/embedded"
)

// churn has locks end and others begin, so many changes a second in all, until stop is called:
// each that is released is taken again a second later, by somebody else.
func (g *gateway) churn(held []lease, perSecond int) (stop func()) {
	var all sync.WaitGroup
	done := make(chan struct{})
	all.Go(func() {
		pairs := time.NewTicker(2 * time.Second / time.Duration(perSecond))
		defer pairs.Stop()
		var free []int
		for i := 0; ; i += 7919 {
			select {
			case <-done:
				return
			case <-pairs.C:
			}
			if at := i % len(held); held[at].ID != "" {
				g.releaseBehind(held[at])
				held[at].ID = ""
				free = append(free, at)
			}
			if len(free) > min(perSecond/2, len(held)/3) {
				held[free[0]] = g.acquireBehind(held[free[0]].Name, fmt.Sprintf("again-%d", i))
				free = free[1:]
			}
		}
	})
	return func() {
		close(done)
		all.Wait()
	}
}

// spent is what all processes of the browser have had of the processors since it began, by
// their kinds, in seconds.
func (b *tab) spent() map[string]float64 {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	info, err := chromedp.CallBrowser(ctx, systeminfo.GetProcessInfo, cdp.Empty{})
	if err != nil {
		b.t.Fatal(err)
	}
	spent := map[string]float64{}
	for _, p := range info.ProcessInfo {
		spent[p.Type] += p.CPUTime
		spent["all"] += p.CPUTime
	}
	return spent
}

// metrics are those of the page that the browser counts.
func (b *tab) metrics() map[string]float64 {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	got, err := chromedp.Call(ctx, performance.GetMetrics, cdp.Empty{})
	if err != nil {
		b.t.Fatal(err)
	}
	metrics := map[string]float64{}
	for _, m := range got.Metrics {
		metrics[m.Name] = m.Value
	}
	return metrics
}

// costs returns what the browser and the page have spent in a second, while somebody only looks.
func (b *tab) costs(during time.Duration) (cores, page map[string]float64) {
	b.t.Helper()
	b.do(func(ctx context.Context, tt *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, tt, performance.Enable, performance.EnableParams{})
		return chromedp.Void{}, err
	})
	began, cores, page := time.Now(), b.spent(), b.metrics()
	<-time.After(during) // what it costs is a matter of time
	seconds, coresThen, pageThen := time.Since(began).Seconds(), b.spent(), b.metrics()
	for key, value := range coresThen {
		cores[key] = (value - cores[key]) / seconds
	}
	for key, value := range pageThen {
		page[key] = (value - page[key]) / seconds
	}
	return cores, page
}

// mostStyles is how often a second the page may have its styles, and what follows from them, computed.
const mostStyles = 14

// With 50 changes a second a tab in view costs less than an eighth of a core, drawn without a graphics
// processor, whether less motion is wanted or not, and less than a fifth if all of them are among the locks
// that are shown. That is a matter of the machine, and judged with FENCEPOST_LONG; what it comes from, how
// often the page is drawn, is not.
func TestWhatTheTabCosts(t *testing.T) {
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
	g, b := startGateway(t, func(s *fallibleStore) { s.Store = store }), openTab(t)
	held := make([]lease, load.locks)
	var fill sync.WaitGroup
	for part := range 50 {
		fill.Go(func() {
			for i := part; i < len(held); i += 50 {
				held[i] = g.acquireBehind(fmt.Sprintf("job/%06d", i), fmt.Sprintf("worker-%d", i%100))
			}
		})
	}
	fill.Wait()
	during := 2 * time.Second
	if long {
		during = 15 * time.Second
	}
	changes := []struct {
		where string
		held  []lease
		most  float64 // cores, of all processes of the browser
	}{{"in view", held[:100], 0.2}, {"anywhere", held, 0.125}}
	if !long {
		changes = changes[:1]
	}
	for _, c := range changes {
		stop := g.churn(c.held, 50)
		for _, calm := range []bool{false, true} {
			b.media("light", calm)
			b.do(chromedp.Navigate("about:blank"))
			b.live(g, "/")
			b.until(drawn + ` > 10`)
			b.pass(2000) // what was there at first does not stand out any more
			cores, page := b.costs(during)
			t.Logf("changes %s, less motion wanted: %t: %.3f cores (%.3v); a second: styles %.1f times, layout %.1f times", c.where, calm, cores["all"], cores, page["RecalcStyleCount"], page["LayoutCount"])
			if page["RecalcStyleCount"] > mostStyles {
				t.Errorf("changes %s, less motion wanted: %t: styles are computed %.0f times a second", c.where, calm, page["RecalcStyleCount"])
			}
			if long && cores["all"] > c.most {
				t.Errorf("changes %s, less motion wanted: %t: the tab costs %.0f %% of a core", c.where, calm, 100*cores["all"])
			}
		}
		stop()
	}
}
