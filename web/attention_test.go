package web_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
)

// listed is an expression for what one of the lists of what needs attention says, an entry a line.
func listed(key string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("#%s li")].map((li) => li.innerText.replaceAll("\n", " ")).join("; ")`, key)
}

// saidOf is an expression for what such a list says where it has no entry.
func saidOf(key string) string {
	return fmt.Sprintf(`document.getElementById("%s-none").innerText`, key)
}

// Of a few locks what needs attention is known from the list.
func TestWhatNeedsAttention(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	b.live(g, "/")
	b.until(saidOf("waited") + ` === "Nobody waits." && ` + saidOf("stuck") + ` === "Nobody waits for a held lock." && ` + saidOf("expiring") + ` === "Nothing is about to expire."`)
	b.until(`document.getElementById("store").innerText.startsWith("The store answered in ")`)
	b.shoot("attention-none")

	renews := g.acquire("jobs/renews", `{"owner":"ann","ttl_ms":3600000}`)
	g.advance(time.Second)
	g.acquire("jobs/never", `{"owner":"bob","ttl_ms":3600000}`)
	g.advance(10 * time.Minute)
	g.renew(renews)
	g.acquire("short", `{"owner":"cleo","ttl_ms":450000}`)
	first := g.queue("jobs/never", `{"owner":"waits"}`)
	g.advance(2 * time.Minute)
	g.queue("jobs/renews", `{"owner":"waits"}`)
	g.queue("jobs/renews", `{"owner":"waits"}`)
	g.advance(3*time.Minute + 15*time.Second)
	b.do(chromedp.Navigate("about:blank"))
	b.live(g, "/")
	b.until(listed("waited") + ` === "jobs/never 5\u00a0min 1 waiting; jobs/renews 3\u00a0min 2 waiting"`)
	b.until(listed("stuck") + ` === "jobs/renews 15\u00a0min ann; jobs/never 15\u00a0min bob, never renewed"`)
	b.until(`/^short [12].min \d\d.s cleo$/.test(` + listed("expiring") + `) && ` + figure("waiting") + ` === "3"`)
	b.shoot("attention")

	// Nothing moves while somebody points at it.
	place := eval[[]float64](b, `(({x, y, width, height}) => [x + width / 2, y + height / 2])(document.querySelector("#waited li a").getBoundingClientRect())`)
	b.do(chromedp.MouseEvent("mouseMoved", place[0], place[1]))
	b.until(`document.querySelector("#waited li:hover") !== null`)
	first.leave()
	b.until(figure("waiting") + ` === "2" && document.querySelectorAll("#waited li").length === 2 && ` + listed("waited") + `.startsWith("jobs/never over; ")`)
	b.do(chromedp.MouseEvent("mouseMoved", 5, 5))
	b.until(listed("waited") + `.startsWith("jobs/renews 3\u00a0min") && document.querySelectorAll("#waited li").length === 1`)

	// Nor does what somebody points at in the table, when the lists grow.
	held := eval[[]float64](b, `(({x, y, height}) => [x + 10, y + height / 2])(document.querySelector('tr[data-name="short"]').getBoundingClientRect())`)
	b.do(chromedp.MouseEvent("mouseMoved", held[0], held[1]))
	b.until(`document.querySelector('tr[data-name="short"]:hover') !== null && document.getElementById("attention").dataset.rows === "2"`)
	more := g.queue("short", `{"owner":"waits"}`)
	g.queue("jobs/never", `{"owner":"waits"}`)
	b.until(`document.querySelectorAll("#waited li").length === 3`)
	if at := eval[float64](b, `(({y, height}) => y + height / 2)(document.querySelector('tr[data-name="short"]').getBoundingClientRect())`); math.Abs(at-held[1]) > 1 {
		t.Errorf("the row that was pointed at is at %.0f, and was at %.0f", at, held[1])
	}
	b.do(chromedp.MouseEvent("mouseMoved", 5, 5))
	b.until(`document.getElementById("attention").dataset.rows === "3"`)
	b.shoot("attention-grown")
	more.leave()
	g.queue("jobs/renews", `{"owner":"waits"}`)

	b.do(chromedp.Click(chromedp.CSS("#waited-all")))
	b.until(`location.search === "?sort=waits&waited=1" && ` + rowNames + ` === "jobs/renews,jobs/never" && document.getElementById("filters").elements.sort.value === "waits"`)
	b.do(chromedp.NavigateBack())
	b.until(`location.search === "" && ` + rowNames + ` === "jobs/never,jobs/renews,short"`)
	b.do(chromedp.Click(chromedp.CSS("#expiring li a")))
	b.until(`location.hash === "#/locks/short" && document.querySelector("#detail .holder")`)
}

// Of a name that is too long the end is shown, and the name has the room before what is said of its holder.
func TestNamesThatNeedAttention(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	short := "shard/00/waited/of-30-char-001"
	long := "shard/00/" + strings.Repeat("rindfleischetikettierung/", 8) + "42"
	for _, name := range []string{short, long} {
		g.acquire(name, `{"owner":"`+strings.Repeat("donaudampfschifffahrt-", 4)+`","ttl_ms":3600000}`)
		g.queue(name, `{"owner":"waits"}`)
	}
	b.live(g, "/")
	b.until(`document.querySelectorAll("#stuck li").length === 2`)
	for _, width := range []int64{1280, 390} {
		b.do(chromedp.EmulateViewport(width, 844))
		b.until(fmt.Sprintf(`innerWidth === %d`, width))
		b.shoot(fmt.Sprintf("attention-names-%d", width))
		cut := eval[[]string](b, `[...document.querySelectorAll(".attention li a")].filter((a) => {
			const range = document.createRange(), text = a.querySelector("bdi").firstChild, box = a.getBoundingClientRect();
			range.setStart(text, Math.max(0, text.length - 16));
			range.setEnd(text, text.length);
			const end = range.getBoundingClientRect();
			return end.left < box.left - 1 || end.right > box.right + 1;
		}).map((a) => a.textContent)`)
		if len(cut) > 0 {
			t.Errorf("%d pixels: the end of %q is cut off", width, cut)
		}
		if wide := eval[float64](b, `document.documentElement.scrollWidth - innerWidth`); wide > 0 {
			t.Errorf("%d pixels: %.0f too wide", width, wide)
		}
	}
	b.do(chromedp.EmulateViewport(1280, 800))
	b.until(`innerWidth === 1280 && ((a) => a.scrollWidth <= a.clientWidth)(document.querySelector("#stuck li a"))`)
}

// A finger that is lifted points at nothing, though the browser goes on to say that it hovers.
func TestFingerThatIsLifted(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		g.acquire(name, `{"owner":"ann","ttl_ms":3600000}`)
	}
	first := g.queue("b", `{"owner":"waits"}`)
	b.live(g, "/")
	b.until(`document.querySelectorAll("#waited li").length === 1`)
	call := func(method string, params any) {
		t.Helper()
		b.do(func(ctx context.Context, tt *chromedp.Target) (chromedp.Void, error) {
			return chromedp.Void{}, tt.Call(ctx, method, params, nil)
		})
	}
	call(emulation.SetTouchEmulationEnabled.Method, emulation.SetTouchEmulationEnabledParams{Enabled: true})
	at := eval[[]float64](b, `(({x, y, width, height}) => [x + width - 5, y + height / 2])(document.querySelector("#waited li").getBoundingClientRect())`)
	call(input.DispatchTouchEvent.Method, input.DispatchTouchEventParams{Type: input.DispatchTouchEventTypeTouchStart, TouchPoints: []*input.TouchPoint{{X: at[0], Y: at[1]}}})
	call(input.DispatchTouchEvent.Method, input.DispatchTouchEventParams{Type: input.DispatchTouchEventTypeTouchEnd, TouchPoints: []*input.TouchPoint{}})
	b.until(`document.querySelector("#waited li").matches(":hover")`)
	first.leave()
	b.until(`document.querySelectorAll("#waited li").length === 0`)
}

// That nobody waits is not said while it is only unknown for how long somebody has waited.
func TestForHowLongIsNotKnownYet(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	g.acquire("jobs/1", `{"owner":"ann","ttl_ms":3600000}`)
	g.queue("jobs/1", `{"owner":"waits"}`)
	b.first(`addEventListener("DOMContentLoaded", () => {
		const none = document.getElementById("waited-none");
		window.said = new Set();
		new MutationObserver(() => said.add(none.textContent)).observe(none, {childList: true, characterData: true, subtree: true});
	})`)
	b.live(g, "/")
	b.until(`document.querySelectorAll("#waited li").length === 1`)
	if eval[bool](b, `said.has("Nobody waits.")`) {
		t.Error(`it said "Nobody waits."`)
	}
}
