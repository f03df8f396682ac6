package web_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// is returns an expression for the state of the connection that the page shows.
func is(label string) string {
	return fmt.Sprintf(`document.getElementById("connection-label").textContent === %q`, label)
}

// live opens the page at an address below the gateway and waits until it has
// heard all there is: the stream is open and what preceded it is read.
func (b *tab) live(g *gateway, address string) {
	b.t.Helper()
	b.do(chromedp.Navigate(g.origin + address))
	b.until(is("Live"))
	eventually(b.t, "a stream and a list", func() bool { return g.front.streams.Load() == 1 && g.front.count("list") >= 2 })
	b.pass(500)
}

// pass lets the page's clock go on.
func (b *tab) pass(ms int) {
	b.t.Helper()
	b.until(fmt.Sprintf(`(window.passed ??= performance.now() + %d) < performance.now() && delete window.passed`, ms))
}

func TestConnectionState(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	g.acquire("orders/42", `{"ttl_ms":600000,"owner":"worker-7"}`)
	const stale = `document.documentElement.hasAttribute("data-stale") && !document.getElementById("banner").hidden && document.getElementById("banner-times").innerText.includes("This is what was true")`
	const calm = `document.getElementById("banner").hidden`
	b.live(g, "/#/locks/orders/42")
	b.until(row("orders/42") + ` && ` + calm)
	// What was last heard does not look as if it were so now.
	const (
		green = `getComputedStyle(document.querySelector("#detail .state"), "::before").backgroundColor === "rgb(31, 111, 92)"`
		said  = `document.querySelector("#detail .state").innerText`
	)
	b.until(green + ` && ` + said + ` === "Held, exclusive"`)

	// The stream breaks and its list fails, long before anybody would ask.
	g.door.Shut()
	b.until(is("Reconnecting") + ` && ` + stale + ` && ` + row("orders/42"))
	b.until(`!(` + green + `) && ` + said + ` === "Held, exclusive when the gateway last answered"`)
	b.shoot("reconnecting")
	g.acquireBehind("orders/44", "worker-8")
	g.door.Reopen()
	b.until(is("Live") + ` && ` + calm + ` && ` + row("orders/44") + ` && ` + green + ` && ` + said + ` === "Held, exclusive"`)

	g.store.down.Store(true)
	g.acquire("orders/43", "{}")
	b.until(is("Store unavailable") + ` && ` + stale + ` && ` + row("orders/42") + ` && document.querySelector("#retry").checkVisibility()`)
	b.shoot("store-unreachable")
	g.store.down.Store(false)
	eval[bool](b, `document.querySelector("#retry").click(), true`) // not by the mouse: the page may have tried by itself meanwhile
	b.until(is("Live") + ` && ` + calm + ` && ` + row("orders/43"))
}

// A page that is opened while the store can't be reached says what it waits for.
func TestOpenedWithoutAStore(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	g.acquire("orders/42", `{"ttl_ms":600000}`)
	g.store.down.Store(true)
	b.do(chromedp.Navigate(g.origin))
	b.until(is("Store unavailable") + ` && document.querySelector("#empty h3").innerText === "No lock is known yet"`)
	b.shoot("opened-without-a-store")
	g.store.down.Store(false)
	b.do(chromedp.Click(chromedp.CSS("#retry")))
	b.until(is("Live") + ` && ` + row("orders/42") + ` && document.getElementById("empty").hidden`)
}

// While nothing happens nothing is asked; what happens is seen at once, for the
// price of its own row.
func TestEventsTakeThePlaceOfAsking(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	g.acquire("quiet", `{"ttl_ms":3600000}`)
	b.live(g, "/")
	all := func() int { return g.front.count("list", "row", "walk", "lock", "history") }
	before := all()
	b.pass(5000)
	if n := all() - before; n != 0 {
		t.Fatalf("%d requests in 5 s without any event", n)
	}

	lists, rows := g.front.count("list"), g.front.count("row")
	held := g.acquire("busy", `{"ttl_ms":3600000}`)
	b.until(row("busy"))
	g.release(held)
	b.until(row("busy") + ` === null`)
	if n := g.front.count("list") - lists; n != 0 {
		t.Errorf("the list was read %d times for a single name", n)
	}
	if n := g.front.count("row") - rows; n < 1 || n > 2 {
		t.Errorf("%d requests for two changes of a name", n)
	}
	if n := g.front.count("events"); n != 1 {
		t.Errorf("%d streams were opened, want 1", n)
	}
}

// Thousands of events a second on one name cost four requests a second, and on
// many names one list a second.
func TestABurstOfEventsIsCoalesced(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	g.acquire("always", `{"ttl_ms":3600000}`)
	b.live(g, "/")

	// Each part of a burst is told before the next begins: a stream that falls behind
	// by more events than the gateway keeps has the page read the list, rightly.
	// A slow machine is given the time that so many requests of a kind take.
	burst := func(names int, kind string, least int) (events int, seconds float64) {
		t.Helper()
		before, told := g.front.count(kind), g.front.told.Load()
		began := eval[float64](b, `performance.now()`)
		for end := time.Now().Add(patience); ; {
			for range 500 {
				name := fmt.Sprintf("burst/%02d", events%names)
				g.releaseBehind(g.acquireBehind(name, "burst"))
				events += 2
			}
			eventually(t, "the events are told", func() bool { return g.front.told.Load()-told >= int64(events) })
			seconds = (eval[float64](b, `performance.now()`) - began) / 1000
			if seconds > 2 && events >= 5000 && g.front.count(kind)-before >= least || time.Now().After(end) {
				return events, seconds
			}
		}
	}

	rows, lists := g.front.count("row"), g.front.count("list")
	events, seconds := burst(1, "row", 2)
	n := g.front.count("row") - rows
	if n < 2 || float64(n) > 4*seconds+2 {
		t.Errorf("one name: %d requests for %d events in %.1f s", n, events, seconds)
	}
	if n := g.front.count("list") - lists; float64(n) > 1+seconds/20 { // the check of every 20 s
		t.Errorf("one name: %d lists for %d events in %.1f s", n, events, seconds)
	}
	t.Logf("one name: %.0f events a second, %d requests in %.1f s", float64(events)/seconds, n, seconds)

	rows, lists = g.front.count("row"), g.front.count("list")
	events, seconds = burst(40, "list", 1)
	n = g.front.count("list") - lists
	if n < 1 || float64(n) > seconds+2 {
		t.Errorf("40 names: %d lists for %d events in %.1f s", n, events, seconds)
	}
	if n := g.front.count("row") - rows; float64(n) > 8*2 {
		t.Errorf("40 names: %d requests for single rows", n)
	}
	t.Logf("40 names: %.0f events a second, %d lists in %.1f s", float64(events)/seconds, n, seconds)
	last := g.acquire("burst/99", `{"owner":"the last"}`)
	b.until(fmt.Sprintf(`%s.innerText.includes("%d")`, row("burst/99"), last.Token))
	b.until(`[...document.querySelectorAll("tbody tr")].map((r) => r.dataset.name).join() === "always,burst/99"`)
}

func TestAStreamThatIsRefusedIsMadeUpForByAsking(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	g.front.refuse.Store(true)
	held := g.acquire("orders/42", `{"ttl_ms":600000}`)
	b.do(chromedp.Navigate(g.origin))
	b.until(is("Live, every 2\u00a0s") + ` && document.getElementById("banner").hidden && !document.documentElement.hasAttribute("data-stale")`)
	b.shoot("without-events")
	g.release(held)
	b.until(row("orders/42") + ` === null`)

	g.front.refuse.Store(false)
	b.until(is("Live"))
	if g.front.streams.Load() != 1 {
		t.Error("it says that it is live without a stream")
	}
}

func TestAHiddenPageListensToNothing(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	g.acquire("orders/42", `{"ttl_ms":600000}`)
	b.live(g, "/")
	hide := func(hidden bool) {
		eval[bool](b, fmt.Sprintf(`Object.defineProperty(document, "hidden", {configurable: true, get: () => %t}),
			document.dispatchEvent(new Event("visibilitychange"))`, hidden))
	}
	hide(true)
	eventually(t, "the stream is closed", func() bool { return g.front.streams.Load() == 0 })
	before := g.front.count("list", "row", "walk", "events")
	g.acquire("orders/43", `{"ttl_ms":600000}`)
	b.pass(3000)
	if n := g.front.count("list", "row", "walk", "events") - before; n != 0 {
		t.Errorf("%d requests from a page that nobody sees", n)
	}
	hide(false)
	b.until(row("orders/43") + ` && ` + is("Live"))
	eventually(t, "the stream is open again", func() bool { return g.front.streams.Load() == 1 })
}

// A search shows what begins to match, and asks about nothing that can't.
func TestEventsUnderASearch(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	g.acquire("orders/1", `{"owner":"ann","ttl_ms":600000}`)
	const names = `[...document.querySelectorAll("tbody tr:not(.leaving)")].map((r) => r.dataset.name).join()`
	b.live(g, "/?q=ANN")
	b.until(names + ` === "orders/1"`)

	rows := g.front.count("row")
	for range 20 {
		g.release(g.acquire("users/1", `{"owner":"bob"}`))
	}
	g.acquire("annual", "{}")
	held := g.acquire("orders/0", `{"owner":"Annabel","ttl_ms":600000}`)
	b.until(names + ` === "annual,orders/0,orders/1"`)
	if n := g.front.count("row") - rows; n > 4 {
		t.Errorf("%d requests, want one for each that matches", n)
	}
	// The same lock in other hands does not match any more.
	g.release(held)
	g.acquire("orders/0", `{"owner":"bob"}`)
	b.until(names + ` === "annual,orders/1" && document.getElementById("count").innerText === "2 found"`)
}

func TestEventsOnAPageThatIsFull(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	var first lease
	for i := range 110 {
		l := g.acquire(fmt.Sprintf("shard/%03d", i), `{"ttl_ms":3600000}`)
		if i == 0 {
			first = l
		}
	}
	ends := func(from, to string) string {
		return fmt.Sprintf(`(() => {
			const rows = [...document.querySelectorAll("#rows tr:not(.leaving)")].map((r) => r.dataset.name);
			return rows.length === 100 && rows[0] === %q && rows[99] === %q && /^100 of 11\d live$/.test(document.getElementById("count").innerText);
		})()`, from, to)
	}
	b.do(chromedp.EmulateViewport(1280, 6000)) // all are in view
	b.live(g, "/")
	b.until(ends("shard/000", "shard/099"))
	rows := g.front.count("row", "list")
	g.release(g.acquire("shard/105x", "{}"))
	b.pass(1000)
	if n := g.front.count("row", "list") - rows; n != 0 {
		t.Errorf("%d requests for a name beyond the page", n)
	}
	g.acquire("a", `{"ttl_ms":3600000}`)
	b.until(ends("a", "shard/098"))
	g.release(first)
	b.until(ends("a", "shard/099"))
	b.until(row("shard/000") + ` === null`)
}
