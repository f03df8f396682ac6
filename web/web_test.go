package web_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// row returns an expression for the row of a lock.
func row(name string) string {
	return fmt.Sprintf(`document.querySelector('tr[data-name="%s"]')`, name)
}

// seconds reads the remaining time that a row shows, below a minute.
func seconds(name string) string {
	return fmt.Sprintf(`parseFloat(%s.querySelector(".left").innerText)`, row(name))
}

// edge is where the bar of a row ends, in pixels.
func edge(name string) string {
	return fmt.Sprintf(`%s.querySelector(".bar-fill").getBoundingClientRect().right`, row(name))
}

// numberAnswers runs before any script of the page. It counts the answers that list locks, and writes into the owners of each which one it
// is, so that a row tells which answer it shows.
const numberAnswers = `window.answers = 0;
const send = fetch;
window.fetch = async (path, options) => {
	const response = await send(path, options);
	if (!response.ok || !path.startsWith("/locks?")) return response;
	const body = await response.json();
	answers++;
	for (const lock of body.locks) for (const holder of lock.holders) holder.owner += " #" + answers;
	return new Response(JSON.stringify(body), response);
};`

func TestALockAppearsCountsDownAndLeaves(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	b.first(numberAnswers)
	held := g.acquire("orders/42", `{"owner":"worker-7","ttl_ms":60000}`)
	g.advance(34 * time.Second)
	b.do(chromedp.Navigate(g.origin))
	b.until(row("orders/42"))
	for _, want := range []string{"worker-7", fmt.Sprint(held.Token)} {
		if got := b.text(`tr[data-name="orders/42"]`); !strings.Contains(got, want) {
			t.Errorf("the row lacks %q: %q", want, got)
		}
	}

	// Between two answers, once the page shows the first, the bar and the text go down, both at once, and a second at a time.
	type looks struct {
		Edges   []float64
		Seconds []float64
	}
	run := eval[looks](b, fmt.Sprintf(`new Promise((resolve) => {
		let run = null;
		const look = () => {
			const shown = parseInt(%[1]s.querySelector(".owner-text").innerText.split("#")[1]);
			if (run?.shown !== shown || shown !== answers) run = {shown, Edges: [], Seconds: []};
			const [edge, left] = [%[2]s, %[3]s];
			if (run.Seconds.at(-1) !== left || run.Edges.at(-1) !== edge) {
				run.Edges.push(edge);
				run.Seconds.push(left);
			}
			if (run.Edges.length > 3) resolve(run);
			else requestAnimationFrame(look);
		};
		look();
	})`, row("orders/42"), edge("orders/42"), seconds("orders/42")))
	for i := 1; i < len(run.Edges); i++ {
		if run.Edges[i] >= run.Edges[i-1] || run.Seconds[i] >= run.Seconds[i-1] {
			t.Fatalf("the bar and the time do not go down together: %v %v", run.Edges, run.Seconds)
		}
	}

	// A renewal makes no event, so the page looks for one when two fifths of the
	// TTL are left. The bar grows in place: the row stays the same element.
	eval[string](b, row("orders/42")+`.mark = "same"`)
	before := eval[float64](b, edge("orders/42"))
	g.renew(held)
	b.until(fmt.Sprintf(`%s > 30 && %s > %f`, seconds("orders/42"), edge("orders/42"), before+20))
	b.until(row("orders/42") + `.mark === "same"`)

	// What rows say as they leave is gone within a second: it is written down.
	eval[bool](b, `window.said = [], new MutationObserver((changes) => said.push(...changes.map((c) => c.target.textContent)))
		.observe(document.getElementById("rows"), {childList: true, subtree: true}), true`)
	g.release(held)
	b.until(row("orders/42") + ` === null && said.includes("released") && !said.includes("expired")`)

	broken := g.acquire("wrong", "{}")
	b.until(row("wrong"))
	g.break_(broken)
	b.until(row("wrong") + ` === null && said.includes("broken")`)

	g.acquire("brief", `{"ttl_ms":30000}`)
	b.until(row("brief"))
	g.expire(31 * time.Second)
	b.until(row("brief") + ` === null && said.includes("expired") && !document.getElementById("empty").hidden`)
}

func TestANewGrantTakesOverTheRow(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	first := g.acquire("cron/report", `{"owner":"first"}`)
	b.do(chromedp.Navigate(g.origin))
	b.until(row("cron/report"))
	eval[string](b, row("cron/report")+`.mark = "same"`)
	g.release(first)
	second := g.acquire("cron/report", `{"owner":"second"}`)
	b.until(fmt.Sprintf(`%s.innerText.includes("%d")`, row("cron/report"), second.Token))
	b.until(row("cron/report") + `.mark === "same" && ` + row("cron/report") + `.innerText.includes("second")`)
}

// The store's clock is hours ahead of the browser's. What counts is the time a
// lease has left, and since when it is held by the store's clock.
func TestTheBrowsersClockDoesNotMatter(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	g.advance(5 * time.Hour)
	g.acquire("orders/42", `{"ttl_ms":50000}`)
	g.advance(20 * time.Second)
	b.do(chromedp.Navigate(g.origin + "/#/locks/orders/42"))
	b.until(row("orders/42") + ` && document.querySelector("#detail .holder")`)
	if left := eval[float64](b, seconds("orders/42")); left > 30 || left < 20 {
		t.Errorf("%v s are shown, 30 are left at most", left)
	}
	if got := b.text("#detail"); !strings.Contains(got, "for 2") || !strings.Contains(got, "left of 50") {
		t.Errorf("the detail does not say for how long the lock is held:\n%s", got)
	}
}

func TestSearch(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	for _, name := range []string{"orders/1", "orders/2", "users/1"} {
		g.acquire(name, `{"owner":"owner-of-`+strings.ReplaceAll(name, "/", "-")+`"}`)
	}
	const names = `[...document.querySelectorAll("tbody tr")].map((r) => r.dataset.name).join()`
	b.do(chromedp.Navigate(g.origin))
	b.until(names + ` === "orders/1,orders/2,users/1"`)

	b.do(chromedp.KeyEvent("/"))
	b.until(`document.activeElement.id === "q"`)
	// The protocol sends the character although the page has taken the key.
	eval[string](b, `document.activeElement.value = ""`)
	b.do(chromedp.SendKeys(chromedp.CSS("#q"), "orders"))
	b.until(names + ` === "orders/1,orders/2"`)
	b.until(`location.search === "?q=orders" && document.getElementById("count").innerText === "2 found"`)
	b.do(chromedp.Reload())
	b.until(`document.readyState === "complete" && ` + names + ` === "orders/1,orders/2" && document.getElementById("q").value === "orders"`)

	eval[string](b, `document.getElementById("q").value = ""`)
	b.do(chromedp.SendKeys(chromedp.CSS("#q"), "owner-of-users"))
	b.until(names + ` === "users/1"`)
	b.do(chromedp.SendKeys(chromedp.CSS("#q"), "<b>"))
	b.until(`document.querySelector("#empty h3")?.innerText.includes("owner-of-users<b>")`)
	b.shoot("no-match")
	b.do(chromedp.Click(chromedp.CSS("#empty button")))
	b.until(names + ` === "orders/1,orders/2,users/1" && location.search === "" && document.activeElement.id === "q"`)
}

func TestDetail(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	held := g.acquire("orders/a:b@c", `{"owner":"worker-7","ttl_ms":60000,"metadata":{"build":"42","<i>":"<b>bold</b>"}}`)
	g.acquire("other", ``)
	public, secret, _ := strings.Cut(held.ID, ".")
	const link = `tr[data-name="orders/a:b@c"] a`
	b.do(chromedp.Navigate(g.origin), chromedp.WaitVisible(chromedp.CSS(link)), chromedp.Click(chromedp.CSS(link)))

	shown := func() {
		t.Helper()
		b.until(fmt.Sprintf(`location.hash === "#/locks/orders/a:b@c" && document.getElementById("detail").innerText.includes("%s")`, public))
		got := b.text("#detail")
		for _, want := range []string{"orders/a:b@c", "Held, exclusive", "worker-7", fmt.Sprint(held.Token), "build", "42", "<i>", "<b>bold</b>", "Last token issued"} {
			if !strings.Contains(got, want) {
				t.Errorf("the detail lacks %q:\n%s", want, got)
			}
		}
		if strings.Contains(eval[string](b, `document.documentElement.outerHTML`), secret) {
			t.Error("the page knows the secret of a lease")
		}
	}
	shown()
	b.until(`document.activeElement.id === "detail-name"`)
	b.do(chromedp.Reload())
	b.until(`document.readyState === "complete"`)
	shown()

	const detailEdge = `document.querySelector("#detail .bar-fill").getBoundingClientRect().right`
	first := eval[float64](b, detailEdge)
	b.until(fmt.Sprintf(`%s < %f`, detailEdge, first-0.5))

	g.release(held)
	b.until(`document.querySelector("#detail .state").innerText === "Free"`)
	if got := b.text("#detail"); !strings.Contains(got, fmt.Sprint(held.Token)) {
		t.Errorf("a free lock does not show its last token:\n%s", got)
	}
	b.shoot("detail-free")

	b.do(chromedp.KeyEvent(kb.Escape))
	b.until(`document.getElementById("detail").hidden && location.hash === ""`)
	b.do(chromedp.NavigateBack())
	b.until(`!document.getElementById("detail").hidden`)

	// An address is other people's text as well, and never becomes a request.
	eval[string](b, `location.hash = "#/locks/../metrics"`)
	b.until(`document.querySelector("#detail .state").dataset.state === "problem"`)
	b.until(`performance.getEntriesByType("resource").every((e) => !e.name.includes("metrics"))`)
}

// Who renews and does not come to an end does not look as one that has just begun: in the
// list it has an age, at every width, and in the detail its last renewal.
func TestRenewingButStuck(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	held := g.acquire("jobs/stuck", `{"owner":"worker-7","ttl_ms":3600000}`)
	g.acquire("pool", `{"mode":"shared","limit":3,"ttl_ms":86400000}`)
	b.do(chromedp.Navigate(g.origin + "/#/locks/jobs/stuck"))
	const renewed = `[...document.querySelectorAll("#detail .fact")].find((f) => f.innerText.startsWith("Last renewed")).querySelector("dd").innerText`
	b.until(renewed + ` === "never"`)
	for range 90 {
		g.advance(40 * time.Second)
		g.renew(held)
	}
	b.do(chromedp.Reload())
	b.until(`/^[\d.]+.(s|min( \d\d.s)?) ago$/.test(` + renewed + `)`)
	for _, width := range []int64{1280, 390} {
		b.do(chromedp.EmulateViewport(width, 800))
		eval[string](b, `location.hash = "#/locks/jobs/stuck"`)
		b.until(`document.querySelector("#detail .holder")`)
		b.do(chromedp.Click(chromedp.CSS("#detail .close")))
		b.until(row("jobs/stuck") + `.querySelector(".age").checkVisibility() && ` + row("jobs/stuck") + `.querySelector(".age").innerText.startsWith("1\u00a0h 0")`)
		b.until(row("pool") + `.querySelector(".owner").innerText.includes("shared, 1 of 3")`)
		b.shoot(fmt.Sprintf("stuck-%d", width))
	}
	eval[string](b, `location.hash = "#/locks/pool"`)
	b.until(`document.querySelector("#detail .state").innerText === "Held, shared by 1 of 3"`)
}

// outline lists the headings in view that are more than one level below the one before.
const outline = `[...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].filter((h) => h.checkVisibility()).map((h) => [Number(h.tagName[1]), h.innerText])
	.filter(([level], i, all) => level > (i === 0 ? 1 : all[i - 1][0] + 1)).map(([level, text]) => level + " " + text)`

func TestHostileTextIsText(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	const attack = `<img src=x onerror=\"window.attacked=1\"><script>window.attacked=2</script>`
	g.release(g.acquire("hostile", `{"owner":"past `+attack+`"}`))
	g.acquire("hostile", `{"owner":"`+attack+`","metadata":{"`+`<svg onload=window.attacked=3>`+`":"javascript:window.attacked=4"}}`)
	g.queue("hostile", `{"owner":"next `+attack+`"}`)
	b.do(chromedp.Navigate(g.origin+"/?q=%3Cimg#/locks/hostile"), chromedp.WaitVisible(chromedp.CSS("#detail .metadata")))
	want := strings.ReplaceAll(attack, `\"`, `"`)
	for selector, want := range map[string]string{
		`tr[data-name="hostile"]`: want, "#detail .holder": want, "#detail .queue": "next " + want, "#detail .history": "past " + want,
	} {
		if got := b.text(selector); !strings.Contains(got, want) {
			t.Errorf("%s does not show the owner as it is: %q", selector, got)
		}
	}
	b.until(`window.attacked === undefined && document.querySelectorAll("tbody img, #detail img, #detail svg, body script").length === 0`)
}

// TestTheWatchersWatch makes sure that a violation and an error would be seen.
func TestTheWatchersWatch(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	b.do(chromedp.Navigate(g.origin), chromedp.WaitVisible(chromedp.CSS("#empty")))
	eval[bool](b, `document.body.setAttribute("style", "color: red"), console.error("on purpose"), true`)
	b.until(`violations.length === 1 && getComputedStyle(document.body).color !== "rgb(255, 0, 0)"`)
	eval[[]string](b, `violations.splice(0)`)
	if got := strings.Join(b.faults(), "\n"); !strings.Contains(got, "on purpose") || !strings.Contains(got, "security") {
		t.Errorf("the console's errors were not seen: %q", got)
	}
}

// TestModules runs the unit tests of the modules that need no browser, all in one process.
func TestModules(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal("the modules of the page are tested with node, which is missing: apt-get install nodejs")
	}
	files, err := filepath.Glob("test/*.test.mjs")
	if err != nil || len(files) == 0 {
		t.Fatalf("the tests of the modules are missing: %v", err)
	}
	all := exec.CommandContext(t.Context(), node, append([]string{"--input-type=module", "--eval", `for (const file of process.argv.slice(1)) await import("./" + file)`, "--"}, files...)...)
	if out, err := all.CombinedOutput(); err != nil {
		t.Errorf("node: %v\n%s", err, out)
	}
}
