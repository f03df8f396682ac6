package web_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
)

// point moves the mouse to a place in the window.
func (b *tab) point(x, y float64) {
	b.t.Helper()
	b.do(func(ctx context.Context, tt *chromedp.Target) (chromedp.Void, error) {
		return chromedp.Void{}, tt.Call(ctx, input.DispatchMouseEvent.Method, input.DispatchMouseEventParams{Type: "mouseMoved", X: x, Y: y}, nil)
	})
}

// lookOn notes, whenever the rows change, how many that are in view are leaving, and by how much the
// row of a name has moved since.
func lookOn(name string) string {
	return fmt.Sprintf(`(() => {
		const top = () => %[1]s?.getBoundingClientRect().top;
		const first = top();
		window.seen = {changes: 0, came: 0, went: 0, looks: 0, leaving: 0, most: 0, moved: 0, aimed: 0};
		window.looking?.disconnect();
		window.looking = new MutationObserver((changes) => {
			for (const {addedNodes, removedNodes} of changes) [seen.came, seen.went] = [seen.came + addedNodes.length, seen.went + removedNodes.length];
			seen.changes++;
			if (%[1]s?.matches(".leaving:hover")) seen.aimed++;
			const view = [...document.querySelectorAll("#rows tr")].filter((r) => r.getBoundingClientRect().bottom > 0 && r.getBoundingClientRect().top < innerHeight);
			const leaving = view.filter((r) => r.classList.contains("leaving")).length;
			seen.looks += view.length;
			seen.leaving += leaving;
			seen.most = Math.max(seen.most, leaving / view.length);
			seen.moved = Math.max(seen.moved, Math.abs((top() ?? first) - first)); // what has gone has not moved
		});
		looking.observe(document.getElementById("rows"), {childList: true, subtree: true, attributes: true, attributeFilter: ["class"]});
		return true;
	})()`, row(name))
}

// seenOf is what lookOn has noted.
type seenOf struct{ Changes, Came, Went, Looks, Leaving, Most, Moved float64 }

// However often something happens, how much it is is written.
func TestRatesUnderChurn(t *testing.T) {
	t.Parallel()
	g, b := startLarge(t), openTab(t)
	g.churn(50)
	b.live(g.gateway, "/")
	b.until(`parseFloat(` + figure("granted") + `) > 5 && parseFloat(` + figure("released") + `) > 5 && ` + figure("hold") + ` !== "–" && ` + heights("granted") + ` > 1`)
}

// With 50 changes a second among the rows in view, those that have ended make room at once, and the
// one that somebody points at, or has the focus on, stays where it is.
func TestRowsUnderChurn(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	held := make([]lease, 120)
	for i := range held {
		held[i] = g.acquireBehind(fmt.Sprintf("job/%03d", i), fmt.Sprintf("worker-%d", i))
	}
	const aimed = "job/007"
	b.live(g, "/")
	b.until(row(aimed))
	stop := g.churn(append(held[:7:7], held[8:30]...), 50)
	stopped := false
	defer func() {
		if !stopped {
			stop()
		}
	}()
	much := func(what string) seenOf {
		t.Helper()
		b.until(`seen.changes >= 8 && seen.came > 40 && seen.went > 40`)
		seen := eval[seenOf](b, `seen`)
		t.Logf("%s: %+v", what, seen)
		if seen.Most > 0.25 || seen.Leaving > 0.1*seen.Looks {
			t.Errorf("%s: %.0f %% of the rows in view are leaving, at most %.0f %%", what, 100*seen.Leaving/seen.Looks, 100*seen.Most)
		}
		return seen
	}
	eval[bool](b, lookOn(aimed))
	much("nobody points")

	type place struct{ X, Y float64 }
	at := eval[place](b, `(() => { const r = `+row(aimed)+`.getBoundingClientRect(); return {x: r.left + 100, y: r.top + r.height / 2}; })()`)
	b.point(at.X, at.Y)
	b.until(row(aimed) + `.matches(":hover")`)
	eval[bool](b, lookOn(aimed))
	if seen := much("somebody points"); seen.Moved > 1 {
		t.Errorf("the row under the pointer has moved by %.0f pixels", seen.Moved)
	}
	b.until(row(aimed) + `.matches(":hover")`)

	// What has ended stays under the pointer, and can't be clicked, but not for ever: so it is written down.
	eval[bool](b, lookOn(aimed))
	g.releaseBehind(held[7])
	side := 0.0
	eventually(t, "the row under the pointer says that it has ended", func() bool {
		side = 1 - side
		b.point(at.X+side, at.Y) // of one that rests what has ended goes after a while
		return eval[bool](b, `seen.aimed > 0`)
	})
	if seen := eval[seenOf](b, `seen`); seen.Moved > 1 {
		t.Errorf("the row under the pointer has moved by %.0f pixels when it ended", seen.Moved)
	}
	b.until(row(aimed) + ` === null`)
	held[7] = g.acquireBehind(aimed, "again")
	b.point(5, 5)
	b.until(row(aimed))

	// The same with the keyboard.
	eval[bool](b, row(aimed)+`.querySelector("a").focus(), true`)
	eval[bool](b, lookOn(aimed))
	if seen := much("somebody has the focus there"); seen.Moved > 1 {
		t.Errorf("the row with the focus has moved by %.0f pixels", seen.Moved)
	}
	b.until(row(aimed) + `.contains(document.activeElement)`)
	stop()
	stopped = true
	b.until(`document.querySelectorAll("#rows .leaving").length === 0`)
}
