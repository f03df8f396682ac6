package web_test

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
)

// How much happens is counted as it happens.
func TestFigures(t *testing.T) {
	g, b := startGateway(t), openTab(t)
	figure := func(key string) string { return fmt.Sprintf(`document.getElementById("figure-%s").innerText`, key) }
	b.live(g, "/")
	b.until(figure("granted") + ` === "0.0/s"`)
	for range 20 {
		g.releaseBehind(g.acquireBehind("orders/1", "me"))
	}
	g.break_(g.acquireBehind("orders/1", "me"))
	b.until(`parseFloat(` + figure("granted") + `) >= 2 && parseFloat(` + figure("released") + `) >= 2 && parseFloat(` + figure("lost") + `) >= 0.1`)
	b.until(`new Set(document.getElementById("line-granted").getAttribute("d").split(/[ML]/).map((p) => p.split(" ")[1])).size > 2`)
	b.shoot("figures")
}

// mostBytes is what the page may weigh on its way, all of its files together.
const mostBytes = 100_000

func TestThePageIsLight(t *testing.T) {
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
