package web_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

const (
	drawn = `document.querySelectorAll("#rows tr").length`
	rows  = `Number(document.getElementById("table").ariaRowCount) - 1` // of a list that is drawn in part
	count = `document.getElementById("count").innerText`
)

// choose sets a control of the filters as a person would.
func choose(name, value string) string {
	return fmt.Sprintf(`(() => {
		const control = document.getElementById("filters").elements[%q];
		if (control.type === "checkbox") control.checked = %[2]q !== "";
		else control.value = %[2]q;
		control.dispatchEvent(new Event("change", {bubbles: true}));
		return true;
	})()`, name, value)
}

// A list is read on as somebody comes to its end.
func TestMoreThanAPage(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	for i := range 130 {
		g.acquire(fmt.Sprintf("shard/%03d", i), `{"ttl_ms":600000}`)
	}
	b.do(chromedp.Navigate(g.origin))
	b.until(rows + ` === 100 && ` + count + ` === "100 of 130 live"`)
	eval[bool](b, `scrollTo(0, 1e6), true`)
	b.until(rows + ` === 130 && ` + count + ` === "130 live" && document.getElementById("more").hidden`)

	// Only rows in view, and some around them, are drawn: all that are say how long they have.
	eval[bool](b, `scrollTo(0, 0), true`)
	b.until(row("shard/000") + ` !== null && ` + row("shard/129") + ` === null && ` + drawn + ` < 60`)
	b.until(`[...document.querySelectorAll("tbody .left")].every((e) => e.textContent.startsWith("9\u00a0min"))`)
	eval[bool](b, `scrollTo(0, 1e6), true`)
	b.until(row("shard/000") + ` === null && ` + row("shard/129") + ` !== null`)
}

// Order and filters ask about all locks, are kept in the address, and only what is in view
// is drawn.
func TestFindAStuckLockAmongMany(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t, indexed(t, nil)), openTab(t)
	stuck := g.acquireBehind("shard/7/job/0815", "worker-stuck")
	g.advance(2 * time.Hour)
	g.renewBehind(stuck, 3*time.Hour)
	for i := range 1300 {
		g.acquireBehind(fmt.Sprintf("shard/%d/job/%04d", i%9, i), "worker")
	}
	b.live(g, "/")
	b.until(rows + ` === 100 && ` + count + ` === "100 of 1,301 live"`)

	// The tree counts what there is below each prefix.
	b.do(chromedp.Click(chromedp.CSS("#tree summary")))
	b.until(count + ` === "1,301 live" && document.getElementById("tree-list").innerText === "shard/ 1,301"`)
	b.until(drawn + ` < 80 && document.getElementById("table").getAttribute("aria-rowcount") === "1302"`)
	b.shoot("tree")
	b.do(chromedp.Click(chromedp.CSS("#tree-list a")))
	b.until(`location.search === "?prefix=shard%2F" && document.querySelectorAll("#tree-list li").length === 9`)
	b.do(chromedp.Click(chromedp.CSS("#tree-list li:nth-child(9) a")))
	b.until(`location.search === "?prefix=shard%2F8%2F" && ` + count + ` === "144 found"`)
	b.do(chromedp.NavigateBack())
	b.until(count + ` === "1,301 found"`)

	// All are there for who scrolls, at the place where they belong, and no more are drawn.
	eval[bool](b, `scrollTo(0, document.documentElement.scrollHeight / 2), true`)
	b.until(drawn + ` < 80 && [...document.querySelectorAll("#rows tr")].some((r) => Math.abs(Number(r.getAttribute("aria-rowindex")) - 650) < 40 && r.getBoundingClientRect().top > 0 && r.getBoundingClientRect().top < innerHeight)`)
	eval[bool](b, `scrollTo(0, 1e7), true`)
	b.until(row("shard/8/job/1295") + `?.getBoundingClientRect().bottom <= innerHeight`)

	eval[bool](b, choose("held", "1h"))
	b.until(rowNames + ` === "shard/7/job/0815" && ` + count + ` === "1 of 1,301 found"`)
	b.shoot("filtered")
	eval[bool](b, choose("held", ""))
	b.do(chromedp.Click(chromedp.CSS("th.since button")))
	b.until(`document.querySelector("#rows tr").dataset.name === "shard/7/job/0815" && document.querySelector("th.since").ariaSort === "descending"`)
	b.until(`location.search === "?prefix=shard%2F&sort=held"`)
	b.do(chromedp.Reload())
	b.until(`document.readyState === "complete" && document.querySelector("#rows tr")?.dataset.name === "shard/7/job/0815" && document.getElementById("filters").elements.sort.value === "held"`)
	b.shoot("sorted")

	// What happens to one that is not drawn is known, and of one in view it is exact.
	waiting := g.queue("shard/4/job/1003", `{"owner":"waits"}`)
	eval[bool](b, choose("waited", "1"))
	b.until(rowNames + ` === "shard/4/job/1003" && ` + row("shard/4/job/1003") + `.querySelector(".waiting").innerText.startsWith("1")`)
	waiting.leave()
	b.until(rowNames + ` === "" && document.querySelector("#empty h3").innerText === "No such lock"`)
	b.do(chromedp.Click(chromedp.CSS("#empty button")))
	b.until(`location.search === "" && ` + count + `.endsWith("live") && !document.getElementById("table").hidden`)
}

// The keyboard goes everywhere.
func TestKeys(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	for i := range 260 {
		g.acquireBehind(fmt.Sprintf("k/%03d", i), "me")
	}
	b.live(g, "/?sort=-name")
	b.until(drawn + ` > 10`)
	const at = `document.activeElement.closest("tr")?.dataset.name`
	b.do(chromedp.KeyEvent("j"))
	b.until(at + ` === "k/259"`)
	for range 60 {
		b.do(chromedp.KeyEvent("j"))
	}
	b.until(at + ` === "k/199" && document.activeElement.getBoundingClientRect().top > 0 && document.activeElement.getBoundingClientRect().bottom < innerHeight`)
	b.do(chromedp.KeyEvent("k"))
	b.until(at + ` === "k/200"`)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.until(`location.hash === "#/locks/k/200" && document.activeElement.id === "detail-name"`)
	b.do(chromedp.KeyEvent(kb.Escape))
	b.until(`document.getElementById("detail").hidden && ` + at + ` === "k/200"`)
	b.do(chromedp.KeyEvent("?"))
	b.until(`document.getElementById("help").open`)
	b.shoot("keys")
	b.do(chromedp.KeyEvent("j"), chromedp.KeyEvent(kb.Escape))
	b.until(`!document.getElementById("help").open && ` + at + ` === "k/200"`)
}

// walks tells whether a request is for what needs attention.
const walks = `/limit=1000(&q=\w+)?&(waiting|expires_within_ms)=\w+(&cursor|$)/.test(e.name)`

// Of very many locks, a filtered view reads those that meet the filter, which is the
// gateway's own, and hears of others that come to meet it.
func TestAFilterReadsOnlyWhatMeetsIt(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	old := g.acquireBehind("old", "worker")
	g.advance(2 * time.Hour)
	g.renewBehind(old, 3*time.Hour)
	for i := range 300 {
		g.acquireBehind(fmt.Sprintf("job/%04d", i), "worker")
	}
	g.acquire("pool", `{"mode":"shared","limit":3,"ttl_ms":3600000}`)
	g.acquire("several", `{"mode":"shared","ttl_ms":3600000}`)
	g.attach("streamed", `{"owner":"streams","ttl_ms":600000}`)
	g.queue("job/0007", `{"owner":"waits"}`)
	for _, c := range []struct{ address, asked, shown string }{
		{"/?held=1h", "held_for_ms=3600000", "old"},
		{"/?mode=shared&sort=-name", "mode=shared", "several,pool"},
		{"/?mode=permits", "mode=shared", "pool"},
		{"/?held=1h&mode=exclusive&q=OLD", "q=OLD&mode=exclusive&held_for_ms=3600000", "old"},
		{"/?attached=1&q=stream", "attached=true", "streamed"},
		{"/?unrenewed=1&q=l", "unrenewed=true", "pool,several"},
		{"/?waited=1", "waiting=true", "job/0007"},
	} {
		b.live(g, c.address)
		b.until(fmt.Sprintf(rowNames+` === %q`, c.shown))
		read := eval[[]float64](b, fmt.Sprintf(`performance.getEntriesByType("resource").filter((e) => e.name.includes("/locks?") && !`+walks+`).map((e) => e.name.includes(%q) ? e.decodedBodySize : -1)`, c.asked))
		if len(read) == 0 || slices.Min(read) < 0 || slices.Max(read) > 5000 {
			t.Errorf("%s: bytes read in each answer: %v (-1: without %s)", c.address, read, c.asked)
		}
	}
	b.until(count + ` === "1 of 304 live"`)
	eval[bool](b, `window.said = [], new MutationObserver((changes) => said.push(...changes.map((c) => c.target.textContent)))
		.observe(document.getElementById("rows"), {childList: true, subtree: true}), true`)
	second := g.queue("job/0200", `{"owner":"waits too"}`)
	b.until(rowNames + ` === "job/0007,job/0200" && ` + count + ` === "2 of 304 live"`)
	second.leave()
	b.until(rowNames + ` === "job/0007" && !said.includes("ended")`) // it is held
}

// An order or a filter that somebody asks for is that of all rows, wherever the pointer rests.
func TestOrderUnderThePointer(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	for _, name := range []string{"a", "b", "c"} {
		g.acquire(name, `{"owner":"ann","ttl_ms":3600000}`)
	}
	b.live(g, "/")
	b.until(rowNames + ` === "a,b,c"`)
	at := eval[[]float64](b, `(({x, y, height}) => [x + 10, y + height / 2])(`+row("a")+`.getBoundingClientRect())`)
	b.point(at[0], at[1])
	b.until(row("a") + `.matches(":hover")`)
	eval[bool](b, `((sort) => { sort.value = "-name"; sort.dispatchEvent(new Event("change", {bubbles: true})); return true; })(document.getElementById("filters").elements.sort)`)
	b.until(rowNames + ` === "c,b,a"`)
	b.until(row("c") + `.matches(":hover")`)
	eval[bool](b, `document.getElementById("filters").elements.expiring.click(), true`)
	b.until(rowNames + ` === ""`)
}

// The keyboard goes to the next row on the screen, where one that has the focus has kept its place.
func TestStepsOnTheScreen(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	held := map[string]lease{}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		held[name] = g.acquire(name, `{"owner":"ann","ttl_ms":3600000}`)
	}
	b.live(g, "/")
	b.until(rowNames + ` === "a,b,c,d,e"`)
	eval[bool](b, row("d")+`.querySelector("a").focus(), true`)
	g.release(held["a"])
	g.release(held["b"])
	b.until(rowNames + ` === "c,e,d"`)
	b.do(chromedp.KeyEvent("k"))
	b.until(row("e") + `.contains(document.activeElement)`)
}
