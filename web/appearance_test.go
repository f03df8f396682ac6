package web_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// contrast lists texts in view whose contrast with what is behind them is below
// 4.5:1, the bound of WCAG AA. Backgrounds here are opaque or fully transparent.
const contrast = `(() => {
	const parse = (color) => color.match(/[\d.]+/g).map(Number);
	const light = (rgb) => {
		const [r, g, b] = rgb.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
		return 0.2126 * r + 0.7152 * g + 0.0722 * b;
	};
	const behind = (node) => {
		for (; node; node = node.parentElement) {
			const [r, g, b, a = 1] = parse(getComputedStyle(node).backgroundColor);
			if (a === 1) return [r, g, b];
		}
		return [255, 255, 255];
	};
	const low = [];
	const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	while (walk.nextNode()) {
		const node = walk.currentNode.parentElement;
		if (walk.currentNode.data.trim() === "" || !node.checkVisibility() || node.closest(".visually-hidden")) continue;
		const [a, b] = [light(parse(getComputedStyle(node).color).slice(0, 3)), light(behind(node))];
		const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (ratio < 4.5) low.push(ratio.toFixed(2) + " " + walk.currentNode.data.trim());
	}
	return low;
})()`

// populate takes locks as a small shop would have them, over an hour of the
// store's time.
func populate(g *gateway) {
	for _, l := range []struct {
		name, fields string
		then         time.Duration
	}{
		{"printers/3rd-floor/the-one-that-always-jams/tray-2", `{"owner":"front desk","ttl_ms":86400000}`, 49 * time.Minute},
		{"cron/nightly-report", `{"owner":"cron@app-1","ttl_ms":3600000}`, 7 * time.Minute},
		{"deploy:production", `{"owner":"mira (release 2026.11.4)","ttl_ms":900000,"metadata":{"pull-request":"1187","why":"the hotfix of the checkout that could not wait until Monday"}}`, 3 * time.Minute},
		{"search/reindex~products", `{"owner":"indexer-blue-green-canary-with-a-long-name","ttl_ms":300000}`, 35 * time.Second},
		{"migrations/schema", `{"owner":"","ttl_ms":120000}`, 19 * time.Second},
		{"billing/invoices/2026-11", `{"owner":"billing-worker-3","ttl_ms":60000,"metadata":{"build":"42","host":"ip-10-0-3-17"}}`, 4 * time.Second},
		{"orders/42", `{"owner":"worker-7","ttl_ms":40000}`, 24 * time.Second},
		{"thumbnails/shard-11", `{"owner":"img-4","ttl_ms":20000}`, 4 * time.Second},
		{"imports/customers/eu-central", `{"owner":"import-7f9c","ttl_ms":30000}`, 2 * time.Second},
		{"orders/43", `{"owner":"worker-2","ttl_ms":45000}`, 0},
	} {
		g.acquire(l.name, l.fields)
		g.advance(l.then)
	}
}

// crowd has several hold and wait, and leaves a past behind.
func crowd(g *gateway) {
	for _, l := range []struct {
		owner string
		then  time.Duration
		end   func(lease)
	}{
		{"mira (release 2026.11.2)", 42 * time.Second, g.release},
		{"ci-runner-14", 0, func(lease) { g.expire(61 * time.Second) }},
		{"someone-with-a-rather-long-name@build-host-eu-central-1", 3 * time.Minute, g.break_},
		{"mira (release 2026.11.3)", 1700 * time.Millisecond, g.release},
	} {
		held := g.acquire("deploy:staging", fmt.Sprintf(`{"owner":%q,"ttl_ms":%d}`, l.owner, map[bool]int{true: 60000, false: 600000}[l.then == 0]))
		g.advance(l.then)
		l.end(held)
	}
	held := g.acquire("deploy:staging", `{"owner":"ci-runner-9","ttl_ms":900000}`)
	next := g.queue("deploy:staging", `{"owner":"mira (release 2026.11.4)","ttl_ms":900000}`)
	for _, owner := range []string{"ci-runner-14", "someone-with-a-rather-long-name@build-host-eu-central-1", ""} {
		g.advance(17 * time.Second)
		g.queue("deploy:staging", fmt.Sprintf(`{"owner":%q}`, owner))
	}
	g.queue("deploy:staging", `{"owner":"dashboard","mode":"shared"}`)
	g.advance(48 * time.Second)
	g.release(held)
	next.granted()
	for i, owner := range []string{"importer-eu-central-1a", "importer-eu-central-1b", "importer-us"} {
		g.acquire("pool/imports", fmt.Sprintf(`{"owner":%q,"mode":"shared","limit":3,"ttl_ms":%d}`, owner, 300000*(i+1)))
		g.advance(11 * time.Second)
	}
	g.queue("pool/imports", `{"owner":"importer-ap","mode":"shared","limit":3}`)
}

func TestAppearance(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"light", "dark"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			g, b := startGateway(t), openTab(t)
			look := func(name string) {
				t.Helper()
				b.shoot(name + "-" + scheme)
				for _, text := range eval[[]string](b, contrast) {
					t.Errorf("%s: contrast below 4.5: %s", name, text)
				}
				for _, heading := range eval[[]string](b, outline) {
					t.Errorf("%s: a heading is out of order: %s", name, heading)
				}
				if sideways := eval[float64](b, `document.documentElement.scrollWidth - innerWidth`); sideways > 0 {
					t.Errorf("%s: the page is %v pixels wider than the window", name, sideways)
				}
			}
			b.media(scheme, false)
			b.do(chromedp.Navigate(g.origin), chromedp.WaitVisible(chromedp.CSS("#empty")))
			look("empty")

			populate(g)
			b.do(chromedp.Reload())
			// The shortest lease is in its last third.
			b.until(row("thumbnails/shard-11") + ` && ` + row("orders/42") + `.querySelector(".bar").dataset.level === "low"`)
			look("list")

			open := func(name string) {
				t.Helper()
				eval[string](b, fmt.Sprintf(`location.hash = "#/locks/%s"`, name))
				b.until(`document.querySelector("#detail .holder")`)
			}
			open("deploy:production")
			look("detail")

			crowd(g)
			open("deploy:staging")
			b.until(`document.querySelectorAll("#detail .queue tbody tr").length === 4 && document.querySelectorAll("#detail .history tbody tr").length === 6`)
			look("detail-queue")
			eval[bool](b, `document.getElementById("detail").scrollTo(0, 1e6), true`)
			look("detail-history")
			open("pool/imports")
			b.until(`document.querySelectorAll("#detail .holders summary").length === 3`)
			b.do(chromedp.Click(chromedp.CSS("#detail .holders details:nth-child(2) summary")))
			look("detail-shared")
			eval[string](b, `location.hash = ""`)
			b.until(`document.getElementById("detail").hidden && ` + row("pool/imports"))
			look("list-queues")
			open("deploy:production")

			b.do(chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile))
			look("phone-detail")
			b.do(chromedp.Click(chromedp.CSS("#detail .close")))
			b.until(`document.getElementById("detail").hidden`)
			look("phone-list")

			open("deploy:staging")
			b.until(`document.querySelectorAll("#detail .queue tbody tr").length === 4`)
			look("phone-queue")
			eval[bool](b, `document.querySelector("#detail .past").scrollIntoView(), true`)
			look("phone-history")
		})
	}
}

// TestTableKeepsItsMeaning asks the browser's accessibility tree, in the layout
// that turns rows into cards.
func TestTableKeepsItsMeaning(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	g.acquire("orders/42", `{"owner":"worker-7","ttl_ms":600000}`)
	b.do(chromedp.EmulateViewport(390, 844), chromedp.Navigate(g.origin))
	b.until(row("orders/42"))
	roles := b.roles()
	for _, want := range []string{"table Live locks", "rowheader orders/42", "cell worker-7", "link orders/42", "searchbox Search by name, owner, lease or metadata"} {
		if !roles[want] {
			t.Errorf("assistive technology is not told %q; it gets %v", want, roles)
		}
	}
}

// An owner is cut off only where there is no room for it, beside names and on a phone.
func TestOwnersAreNotCutOff(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	const owner = "reports-worker-blue-7f9c@host-eu-central-1a"
	for i := range 5 {
		g.acquireBehind(fmt.Sprintf("job/%d", i), owner)
	}
	b.do(chromedp.Navigate(g.origin))
	for _, width := range []int64{1280, 390} {
		b.do(chromedp.EmulateViewport(width, 800))
		b.until(fmt.Sprintf(`innerWidth === %d && document.querySelectorAll("#rows .owner").length === 5 &&
			[...document.querySelectorAll("#rows .owner")].every((e) => e.innerText === %q && e.scrollWidth <= e.clientWidth)`, width, owner))
		b.shoot(fmt.Sprintf("owners-%d", width))
	}
	// A name that is longer takes no room that its owner needs.
	g.acquireBehind("printers/3rd-floor/the-one-that-always-jams-on-mondays/and-on-tuesdays-as-well/tray-2", "worker-7@host-eu-central-1a")
	b.do(chromedp.EmulateViewport(1280, 800))
	b.until(`[...document.querySelectorAll("#rows tr")].at(-1).querySelector(".owner").innerText.startsWith("worker-7") &&
		[...document.querySelectorAll("#rows tr")].at(-1).querySelector(".owner").scrollWidth <= [...document.querySelectorAll("#rows tr")].at(-1).querySelector(".owner").clientWidth`)
}

// Nothing runs by itself, whether less motion is wanted or not: each frame costs the reader's
// machine time. Bars move on a second at a time.
func TestNothingRunsByItself(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	g.acquire("orders/42", `{"ttl_ms":20000}`)
	for _, calm := range []bool{false, true} {
		b.media("light", calm)
		b.do(chromedp.Navigate(g.origin))
		b.until(row("orders/42"))
		first := eval[float64](b, edge("orders/42"))
		b.until(fmt.Sprintf(`document.getAnimations().length === 0 && %s < %f`, edge("orders/42"), first-1))
		g.release(g.acquire(fmt.Sprintf("orders/%t", calm), "{}"))
		b.until(`document.getAnimations().length === 0 && ` + row(fmt.Sprintf("orders/%t", calm)) + ` === null`)
		eval[bool](b, `location.hash = "#/locks/orders/42", true`)
		b.until(`document.getAnimations().length === 0 && document.querySelector("#detail .holder")`)
	}
}
