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
	// Under a filter they are of all locks, under a prefix or a search of what these leave.
	g.acquireBehind("users/1", "cleo")
	g.queue("users/1", `{"owner":"waits"}`)
	for address, want := range map[string][2]string{"/?attached=1": {"2", "1"}, "/?prefix=users/": {"1", "1"}, "/?q=BOB": {"1", "0"}, "/?q=none-such": {"0", "0"}} {
		b.do(chromedp.Navigate(g.origin + address))
		b.until(fmt.Sprintf(is("Live")+` && `+figure("held")+` === %q && `+figure("waiting")+` === %q`, want[0], want[1]))
	}
}

// The words of a figure do not run into the next one.
func TestWordsOfFigures(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	g.acquire("orders/1", `{"owner":"ann","ttl_ms":3600000}`)
	b.live(g, "/")
	for _, width := range []int64{1280, 1180, 1024, 900, 860, 700, 390} {
		b.do(chromedp.EmulateViewport(width, 844))
		b.until(fmt.Sprintf(`innerWidth === %d`, width))
		if over := eval[[]string](b, `[...document.querySelectorAll(".figure dt")].filter((dt) => dt.scrollWidth > dt.clientWidth).map((dt) => dt.innerText)`); len(over) > 0 {
			t.Errorf("%d pixels: there is no room for %q", width, over)
		}
	}
}

// bars is an expression for the places of the points of a figure's line: from the left, 0 to 59.
func bars(key string) string {
	return fmt.Sprintf(`[...document.getElementById("line-%s").getAttribute("d").matchAll(/[ML]([\d.]+)/g)].map(([, x]) => Math.round(x * 59 / 120)).join()`, key)
}

// What is not known is no zero: before the page was opened, while the gateway is away, and where events were missed.
func TestUnknownIsNotZero(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	g.acquire("orders/1", `{"owner":"ann","ttl_ms":3600000}`)
	b.clock()
	b.live(g, "/")
	rates := []string{"granted", "handed", "released", "lost"}
	all := func(is string) string {
		expr := "true"
		for _, key := range rates {
			expr += ` && ` + figure(key) + ` === ` + is
		}
		return expr
	}
	b.advance(g, 6*time.Second)
	sinceOpened := `((places) => places.length > 1 && places.at(-1) === "59" && 60 - places[0] <= performance.now() / 2000)(` + bars("granted") + `.split(","))`
	b.until(all(`"0.0/s"`) + ` && ` + sinceOpened + ` && ` + bars("held") + `.endsWith("59")`)
	b.shoot("opened")

	g.door.Shut()
	b.until(is("Reconnecting") + ` && ` + all(`"\u2013"`) + ` && ` + figure("held") + ` === "1" && getComputedStyle(document.getElementById("figure-held")).fontWeight === "400"`)
	eval[bool](b, fmt.Sprintf(`moveOn(%d)`, 20_000))
	b.until(`Number(` + bars("granted") + `.split(",").at(-1)) < 51 && Number(` + bars("held") + `.split(",").at(-1)) < 51`)
	b.shoot("away")
	g.door.Reopen()
	eval[bool](b, `document.querySelector("#retry").click(), true`)
	b.until(is("Live"))
	eventually(t, "a stream", func() bool { return g.front.streams.Load() == 1 })
	b.pass(500)
	b.advance(g, 6*time.Second)
	b.until(all(`"0.0/s"`) + ` && ` + bars("granted") + `.endsWith("59") && document.getElementById("line-granted").getAttribute("d").split("M").length === 3`)
	b.shoot("back")
}

// readWhole runs before any script of a page, and has nothing be drawn before the browser has read the document to its end: a slow
// one draws what it has read so far, as a row of buttons whose last one is still to come, and then that moves.
const readWhole = `{
	const started = new MutationObserver(() => {
		started.disconnect();
		document.documentElement.hidden = true;
	});
	started.observe(document, {childList: true});
	document.addEventListener("readystatechange", () => { document.documentElement.hidden = false; }, {once: true});
}`

// shifts are what has moved by itself since the page was opened, as "how much: what, from
// where, to where"; what the page has changed so far is drawn before. What is smaller is the line of the connection's state: a word
// that grows moves a button beside it, on a machine that is slow enough to show both.
const shifts = `new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(() => {
	const at = ({x, y, width, height}) => [x, y, width, height].map(Math.round).join(" ");
	const observer = new PerformanceObserver(() => {});
	observer.observe({type: "layout-shift", buffered: true});
	resolve(observer.takeRecords().filter((e) => !e.hadRecentInput && e.value >= 0.001).flatMap((e) =>
		e.sources.map((s) => e.value.toFixed(4) + ": " + (s.node?.id || s.node?.className || s.node?.nodeName) + ", " + at(s.previousRect) + ", " + at(s.currentRect))));
})))`

// Nothing that is shown moves by itself while the page finds what there is.
func TestNothingShifts(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	for i := range 130 {
		g.acquireBehind(fmt.Sprintf("job/%03d", i), "worker")
	}
	b.first(readWhole)
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
