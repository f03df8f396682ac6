package web_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// figure is an expression for one of the figures.
func figure(key string) string {
	return fmt.Sprintf(`document.getElementById("figure-%s").innerText`, key)
}

// heights is an expression for how many heights the line of a figure has.
func heights(key string) string {
	return fmt.Sprintf(`new Set(document.getElementById("line-%s").getAttribute("d").split(/[ML]/).map((p) => p.split(" ")[1])).size`, key)
}

// How much happens is counted as it happens, and how much there is with each list.
func TestFigures(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	held := g.acquire("orders/2", `{"owner":"ann","ttl_ms":600000}`)
	next := g.queue("orders/2", `{"owner":"bob","ttl_ms":600000}`)
	b.live(g, "/")
	b.until(figure("granted") + ` === "0.0/s" && ` + figure("held") + ` === "1" && ` + figure("waiting") + ` === "1" && ` + figure("wait") + ` === "\u2013"`)
	g.advance(90 * time.Second)
	g.release(held)
	next.granted()
	b.until(figure("wait-p99") + `.startsWith("1\u00a0min ") && ` + figure("hold") + `.startsWith("1\u00a0min ") && parseFloat(` + figure("handed") + `) > 0 && ` + figure("waiting") + ` === "0"`)
	for range 20 {
		g.releaseBehind(g.acquireBehind("orders/1", "me"))
	}
	g.break_(g.acquireBehind("orders/1", "me"))
	b.until(`parseFloat(` + figure("granted") + `) >= 2 && parseFloat(` + figure("released") + `) >= 2 && parseFloat(` + figure("lost") + `) >= 0.1`)
	b.until(figure("wait") + ` === "0\u00a0ms" && ` + figure("held") + ` === "1"`)
	b.until(heights("granted") + ` > 2 && ` + heights("hold") + ` > 1`)
	b.shoot("figures")
	// Of some locks only it is not known how many there are.
	b.do(chromedp.Navigate(g.origin + "/?waited=1"))
	b.until(is("Live") + ` && ` + figure("held") + ` === "\u2013" && ` + figure("waiting") + ` === "\u2013"`)
}

// What most wait for, and what has been held longest, is found among all locks once somebody
// asks for it, and leads to the locks.
func TestLeaders(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	g.acquireBehind("z/old", "worker")
	g.advance(time.Hour)
	for i := range 130 {
		g.acquireBehind(fmt.Sprintf("job/%03d", i), "worker")
	}
	for range 3 {
		g.queue("job/111", `{"owner":"waits"}`)
	}
	g.queue("job/120", `{"owner":"waits"}`)
	b.live(g, "/")
	b.until(count + ` === "100 of 131 live"`)
	b.do(chromedp.Click(chromedp.CSS("#leaders summary")))
	b.until(figure("waiting") + ` === "4" && document.getElementById("contended").innerText.replaceAll("\n", " ") === "job/111 3 waiting job/120 1 waiting"`)
	b.until(`document.querySelectorAll("#longest li").length === 10 && document.querySelector("#longest li").innerText.replaceAll("\n", " ") === "z/old 1\u00a0h 00\u00a0min"`)
	b.until(`document.getElementById("store").innerText.startsWith("The store answered in ")`)
	b.shoot("leaders")
	b.do(chromedp.Click(chromedp.CSS("#longest li a")))
	b.until(`location.hash === "#/locks/z/old" && document.querySelector("#detail .holder")`)
}

// shifts are what has moved by itself since the page was opened, as "how much: what, from
// where, to where". What is smaller is the line of the connection's state: a word that grows moves a
// button beside it, on a machine that is slow enough to show both.
const shifts = `new Promise((resolve) => {
	const at = ({x, y, width, height}) => [x, y, width, height].map(Math.round).join(" ");
	new PerformanceObserver((list) => resolve(list.getEntries().filter((e) => !e.hadRecentInput && e.value >= 0.001).flatMap((e) =>
		e.sources.map((s) => e.value.toFixed(4) + ": " + (s.node?.id || s.node?.className || s.node?.nodeName) + ", " + at(s.previousRect) + ", " + at(s.currentRect))))).observe({type: "layout-shift", buffered: true});
	setTimeout(() => resolve([]), 500);
})`

// Nothing that is shown moves by itself while the page finds what there is.
func TestNothingShifts(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	for i := range 130 {
		g.acquireBehind(fmt.Sprintf("job/%03d", i), "worker")
	}
	for _, width := range []int64{1280, 390} {
		for _, address := range []string{"/", "/?sort=held", "/#/locks/job/007"} {
			b.do(chromedp.Navigate("about:blank"), chromedp.EmulateViewport(width, 800))
			b.live(g, address)
			b.until(drawn + ` > 5 && ` + figure("granted") + ` !== "\u2013"`)
			if moved := eval[[]string](b, shifts); len(moved) > 0 {
				t.Errorf("%s at %d pixels: %q", address, width, moved)
			}
			t.Logf("%s at %d pixels: first paint %.0f ms after the navigation began", address, width,
				eval[float64](b, `performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? -1`))
		}
	}
	// What moves is found.
	b.live(g, "/?q=job")
	b.until(drawn + ` > 5`)
	eval[bool](b, `document.querySelector(".overview").prepend(Object.assign(document.createElement("div"), {textContent: "in the way"})), true`)
	b.pass(100)
	if moved := eval[[]string](b, shifts); len(moved) == 0 {
		t.Error("a shift is not found")
	}
}

// mostBytes is what the page may weigh on its way, all of its files together.
const mostBytes = 100_000

func TestThePageIsLight(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	b.do(chromedp.Navigate(g.origin))
	b.until(is("Live"))
	const files = `[...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource").filter((e) => e.name.includes("/assets/"))]`
	weight := eval[float64](b, files+`.reduce((sum, e) => sum + e.transferSize, 0)`)
	if n := eval[int](b, files+`.length`); n < 20 || weight == 0 || weight > mostBytes {
		t.Errorf("%d files weigh %.0f bytes, want at most %d", n, weight, mostBytes)
	}
	t.Logf("%.0f bytes", weight)
	if elsewhere := eval[int](b, `performance.getEntriesByType("resource").filter((e) => !e.name.startsWith(location.origin)).length`); elsewhere != 0 {
		t.Errorf("%d requests go elsewhere", elsewhere)
	}
}
