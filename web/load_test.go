package web_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
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

// scale is a part of what the page has to bear, or with FENCEPOST_LONG all of it: for five
// minutes, or for as long as it says ("40s").
func scale() (of load, long bool) {
	value := os.Getenv("FENCEPOST_LONG")
	if value == "" {
		return load{locks: 1500, changes: 300, watch: 1500 * time.Millisecond}, false
	}
	watch, err := time.ParseDuration(value)
	if err != nil {
		watch = 5 * time.Minute
	}
	return load{locks: 100_000, changes: 1000, watch: watch}, true
}

// longestTask is what a task of the page's one thread may take, of the processor's time (how
// long it waited for one says more of the machine): a person notices longer ones.
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
	g, b := startGateway(t, indexed(t, nil)), openTab(t)
	load, long := scale()
	held := make([]lease, load.locks)
	for i := range held {
		held[i] = g.acquireBehind(fmt.Sprintf("shard/%02d/job/%06d", i%37, i), fmt.Sprintf("worker-%d", i%100))
	}
	b.do(chromedp.Navigate(g.origin + "/?sort=-held"))
	b.until(`document.readyState === "complete"`)
	loaded := time.Now()
	for !eval[bool](b, `document.getElementById("announcement").innerText !== ""`) {
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
	var tasks []task
	for end := time.Now().Add(load.watch); time.Now().Before(end); {
		part := time.Now().Add(min(time.Until(end), 20*time.Second)) // what a trace has room for
		tasks = append(tasks, b.tasks(func() {
			for time.Now().Before(part) {
				eval[bool](b, `scrollTo(0, Math.random() * document.documentElement.scrollHeight), true`)
				b.pass(300)
			}
		})...)
	}
	b.until(drawn + ` > 10 && ` + drawn + ` < 100`)
	close(done)
	change.Wait()
	after := b.heap()
	slices.SortFunc(tasks, func(a, b task) int { return cmp.Compare(b.cpu, a.cpu) })
	if len(tasks) == 0 {
		t.Fatal("the trace has no task of the page")
	}
	over := slices.IndexFunc(tasks, func(task task) bool { return task.cpu <= 50 })
	t.Logf("%d tasks ran for more than 50 ms, the longest for %.0f ms; %.1f MB of memory, then %.1f MB; %s", over, tasks[0].cpu, before/1e6, after/1e6, b.text("#count"))
	for _, task := range tasks[:min(len(tasks), 10)] {
		t.Logf("a task ran for %.0f ms, in %.0f ms: %s", task.cpu, task.wall, task.what)
	}
	if long && tasks[0].cpu > longestTask {
		t.Errorf("a task ran for %.0f ms", tasks[0].cpu)
	}
	if after > before*1.25+2e6 {
		t.Errorf("memory has grown from %.1f MB to %.1f MB", before/1e6, after/1e6)
	}
}
