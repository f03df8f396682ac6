package web_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// load is how much TestManyLocksAndChanges asks of the page.
type load struct {
	locks, changes int // changes a second
	watch          time.Duration
}

// scale is a part of what the page has to bear, or with FENCEPOST_LONG all of it.
func scale() load {
	if os.Getenv("FENCEPOST_LONG") != "" {
		return load{locks: 100_000, changes: 1000, watch: 5 * time.Minute}
	}
	return load{locks: 3000, changes: 300, watch: 3 * time.Second}
}

// longestTask is what a task of the page's one thread may take: a person notices longer ones.
const longestTask = 100 // milliseconds

// heap returns how much memory the page's scripts use, after a collection.
func (b *tab) heap() float64 {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, func(ctx context.Context, tt *chromedp.Target) (chromedp.Void, error) {
		return chromedp.Void{}, tt.Call(ctx, heapprofiler.CollectGarbage.Method, nil, nil)
	}); err != nil {
		b.t.Fatal(err)
	}
	used, err := chromedp.Call(ctx, runtime.GetHeapUsage, cdp.Empty{})
	if err != nil {
		b.t.Fatal(err)
	}
	return used.UsedSize
}

// The page keeps its thread free and its memory flat, with very many locks in an order
// that is not theirs, while many change and somebody scrolls.
func TestManyLocksAndChanges(t *testing.T) {
	g, b, load := startGateway(t), openTab(t), scale()
	held := make([]lease, load.locks)
	for i := range held {
		held[i] = g.acquireBehind(fmt.Sprintf("shard/%02d/job/%06d", i%37, i), fmt.Sprintf("worker-%d", i%100))
	}
	b.do(chromedp.Navigate(g.origin + "/?sort=-held"))
	b.until(`document.readyState === "complete"`)
	eval[bool](b, `window.tasks = [], new PerformanceObserver((list) => tasks.push(...list.getEntries().map((e) => e.duration))).observe({type: "longtask", buffered: true}), true`)
	loaded := time.Now()
	for !eval[bool](b, `document.getElementById("announcement").innerText !== ""`) {
		// The model sorts all names for each page, which no store does.
		if time.Since(loaded) > 10*time.Minute {
			t.Fatalf("not all locks are read: %s", b.text("#count"))
		}
	}
	t.Logf("%d locks were read in %s", load.locks, time.Since(loaded).Round(100*time.Millisecond))

	var change sync.WaitGroup
	done := make(chan struct{})
	change.Add(1)
	go func() {
		defer change.Done()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			for range load.changes / 50 / 2 {
				g.releaseBehind(held[i%load.locks])
				held[i%load.locks] = g.acquireBehind(held[i%load.locks].Name, fmt.Sprintf("again-%d", i))
				i += 7919
			}
		}
	}()
	before := b.heap()
	eval[bool](b, `tasks.splice(0), true`) // a collection that is asked for is long
	for end := time.Now().Add(load.watch); time.Now().Before(end); {
		eval[bool](b, `scrollTo(0, Math.random() * document.documentElement.scrollHeight), true`)
		b.pass(300)
	}
	b.until(drawn + ` > 10 && ` + drawn + ` < 100`)
	tasks := eval[[]float64](b, `tasks`)
	close(done)
	change.Wait()
	after := b.heap()
	longest := 0.0
	for _, took := range tasks {
		longest = max(longest, took)
	}
	t.Logf("%d tasks of more than 50 ms, the longest %.0f ms; %.1f MB of memory, then %.1f MB; %s", len(tasks), longest, before/1e6, after/1e6, b.text("#count"))
	if os.Getenv("FENCEPOST_LONG") != "" && longest > longestTask {
		t.Errorf("a task took %.0f ms", longest)
	}
	if after > before*1.25+2e6 {
		t.Errorf("memory has grown from %.1f MB to %.1f MB", before/1e6, after/1e6)
	}
}
