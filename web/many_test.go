package web_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"fencepost/internal/fencing"
)

const (
	manyLocks   = 100_000
	manyNeedles = 40 // locks that a search finds, spread over all names
	manyWaited  = 40 // locks that somebody waits for
	manyWaiting = 508
)

// largeGateway is a gateway with so many locks. The store's clock stands still, so that what is about
// to expire stays so.
type largeGateway struct {
	*gateway
	clock *atomic.Int64 // the store's, in nanoseconds since the epoch
}

func startLarge(t *testing.T) *largeGateway {
	t.Helper()
	clock := new(atomic.Int64)
	clock.Store(time.Now().UnixNano())
	return &largeGateway{gateway: startGateway(t, indexed(t, func() time.Time { return time.Unix(0, clock.Load()) })), clock: clock}
}

func (c *largeGateway) pass(d time.Duration) { c.clock.Add(int64(d)) }

func (c *largeGateway) take(ctx context.Context, name, owner string, ttl, wait time.Duration) error {
	_, err := c.store.Do(ctx, fencing.AcquireRequest{
		Name: fencing.Name(name), Lease: fencing.NewLeaseID(time.Now()), Stamp: fencing.NewStamp(), Owner: owner, Mode: fencing.ModeExclusive, Hold: 1, TTL: ttl, Wait: wait,
	})
	return err
}

// fill takes all locks: first those that are waited for, each ten minutes after the one before; last
// those that are about to expire.
func (c *largeGateway) fill() {
	c.t.Helper()
	must := func(err error) {
		c.t.Helper()
		if err != nil {
			c.t.Fatal(err)
		}
	}
	waited := func(i int) string { return fmt.Sprintf("shard/%02d/waited/%02d", i*7%37, i) }
	for i := range manyWaited {
		must(c.take(c.t.Context(), waited(i), fmt.Sprintf("holder-%02d", i), 24*time.Hour, 0))
		c.pass(10 * time.Minute)
	}
	for i := range manyWaiting {
		must(c.take(c.t.Context(), waited((manyWaited - 1 - i%manyWaited)), fmt.Sprintf("waits-%03d", i), time.Hour, 24*time.Hour))
		if i < manyWaited {
			c.pass(10 * time.Minute)
		}
	}
	var all sync.WaitGroup
	work := make(chan int)
	for range 256 {
		all.Go(func() {
			for i := range work {
				owner := fmt.Sprintf("worker-%d", i%100)
				if i%(manyLocks/manyNeedles) == 0 {
					owner = fmt.Sprintf("needle-%d", i)
				}
				if err := c.take(c.t.Context(), fmt.Sprintf("shard/%02d/job/%06d", i%37, i), owner, 3*time.Hour, 0); err != nil {
					c.t.Error(err)
				}
			}
		})
	}
	for i := range manyLocks {
		work <- i
	}
	close(work)
	all.Wait()
	for i := range 4 {
		must(c.take(c.t.Context(), fmt.Sprintf("shard/%02d/nearly/%d", 9*i, i), fmt.Sprintf("hangs-%d", i), time.Duration(33+i)*time.Second, 0))
	}
	c.pass(25 * time.Second)
}

// churn releases locks and takes them again, so many changes a second, until the test is over.
func (c *largeGateway) churn(changes int) {
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan struct{})
	c.t.Cleanup(func() {
		cancel()
		<-done
	})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second * 2 / time.Duration(changes))
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				name := fmt.Sprintf("shard/%02d/busy/%d", i%37, i%10)
				lease := fencing.NewLeaseID(time.Now())
				_, err := c.store.Do(ctx, fencing.AcquireRequest{Name: fencing.Name(name), Lease: lease, Stamp: fencing.NewStamp(), Owner: "busy", Mode: fencing.ModeExclusive, Hold: 1, TTL: time.Hour})
				if err == nil {
					_, err = c.store.Do(ctx, fencing.ReleaseRequest{Name: fencing.Name(name), Lease: lease})
				}
				if err != nil && ctx.Err() == nil {
					c.t.Errorf("churn: %v", err)
					return
				}
			}
		}
	}()
}

// What an operator comes for, at 100,000 locks with 50 changes a second.
func TestAHundredThousandLocks(t *testing.T) {
	g, b := startLarge(t), openTab(t)
	began := time.Now()
	g.fill()
	t.Logf("the locks were taken in %s", time.Since(began).Round(100*time.Millisecond))
	g.churn(50)

	began = time.Now()
	b.do(chromedp.Navigate(g.origin))
	b.until(is("Live") + ` && /^100 of 100,04\d live$/.test(` + count + `)`)
	t.Logf("there after %s, with %.1f MB of memory", time.Since(began).Round(time.Millisecond), b.heap()/1e6)

	// Rows stay under the pointer, however much there is to say above them.
	const pointed = `document.elementFromPoint(600, 600).closest("tr").dataset.name`
	b.do(chromedp.MouseEvent("mouseMoved", 600, 600))
	row := eval[string](b, pointed)

	// Who is waited for longest, who holds what others wait for, who nearly lost a lease.
	const names = `[...document.querySelectorAll("#%s li a")].map((a) => a.textContent.replace(/.*\//, "")).join()`
	b.until(fmt.Sprintf(names, "waited") + ` === "39,38,37,36,35" && ` + fmt.Sprintf(names, "stuck") + ` === "00,01,02,03,04" && ` + fmt.Sprintf(names, "expiring") + ` === "0,1,2,3"`)
	b.until(figure("waiting") + ` === "508" && /^100,04\d$/.test(` + figure("held") + `)`)
	t.Logf("what needs attention was found after %s", time.Since(began).Round(time.Millisecond))
	b.until(fmt.Sprintf(`document.getElementById("attention").dataset.rows === "5" && %s === %q`, pointed, row))
	b.do(chromedp.MouseEvent("mouseMoved", 5, 5))
	eval[bool](b, `scrollTo(0, 0), true`)
	b.until(listed("stuck") + `.startsWith("shard/00/waited/00 ") && ` + listed("stuck") + `.includes("holder-00, never renewed")`)
	for _, scheme := range []string{"light", "dark"} {
		b.media(scheme, false)
		for _, width := range []int64{1280, 390} {
			b.do(chromedp.EmulateViewport(width, 844))
			b.until(fmt.Sprintf(`innerWidth === %d`, width))
			b.shoot(fmt.Sprintf("first-screen-%s-%d", scheme, width))
		}
	}
	b.media("light", false)
	b.do(chromedp.EmulateViewport(1280, 800))

	// The gateway finds what is waited for: all that is read is that.
	b.do(chromedp.Click(chromedp.CSS("#waited-all")))
	b.until(count + `.startsWith("40 of 100,0") && document.querySelector("#rows tr").dataset.name.endsWith("/39")`)
	b.shoot("waited")

	// A search goes on until it is through, and says how far it is.
	const note = `window.counts = [], new MutationObserver(() => counts.push(` + count + `)).observe(document.getElementById("count"), {childList: true, characterData: true, subtree: true}), true`
	b.do(chromedp.Navigate(g.origin + "/?q=none"))
	eval[bool](b, note)
	eval[bool](b, `document.getElementById("q").value = "needle-", document.getElementById("search").requestSubmit(), true`)
	b.until(count + ` === "40 found" && ` + drawn + ` === 40`)
	if counts := eval[[]string](b, `counts`); !strings.Contains(strings.Join(counts, "\n"), " names searched") {
		t.Errorf("it did not say how far it was: %q", counts)
	}
	b.until(figure("held") + ` === "40" && ` + figure("waiting") + ` === "0"`)
	b.shoot("search")

	// More is shown from where it ended.
	b.live(g.gateway, "/?q=worker-")
	b.until(count + ` === "100+ found" && !document.getElementById("more").hidden`)
	recording := g.front.record()
	b.do(chromedp.Click(chromedp.CSS("#more-button")))
	b.until(`/^[1-9],[01]\d\d\+ found$/.test(` + count + `)`)
	parts := slices.DeleteFunc(recording(), func(a asked) bool {
		return !strings.Contains(a.url, "q=worker-") || strings.Contains(a.url, "prefix=") || strings.Contains(a.url, "waiting=") || strings.Contains(a.url, "expires_within_ms=")
	})
	if len(parts) == 0 || !strings.Contains(parts[0].url, "cursor=") {
		t.Errorf("it began anew: %v", parts)
	}
	b.until(figure("waiting") + ` === "0" && /^[\d,]+\+$/.test(` + figure("held") + `)`)
	b.do(chromedp.Navigate(g.origin + "/?prefix=shard/00/"))
	b.until(figure("waiting") + ` === "25" && /^2,7\d\d$/.test(` + figure("held") + `)`)
}
