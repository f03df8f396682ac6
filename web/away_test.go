package web_test

import "testing"

// A gateway that was away for long, here by the page's own clock, is asked again every two seconds, so
// the page is live within three of when it is back.
func TestAGatewayThatComesBack(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	g.acquire("orders/42", `{"ttl_ms":3600000}`)
	b.clock()
	b.live(g, "")
	b.until(row("orders/42"))
	eval[bool](b, `window.tries = [], new MutationObserver(() => {
		const next = document.getElementById("banner-times").textContent.match(/Next try in (\d+)/);
		if (next !== null) tries.push(Number(next[1]));
	}).observe(document.getElementById("banner"), {subtree: true, childList: true, characterData: true}), true`)
	g.door.Shut()
	b.until(is("Reconnecting") + ` && !document.getElementById("banner").hidden`)
	for range 8 {
		eval[bool](b, `moveOn(3000)`)
		b.until(`window.before !== (window.before = document.getElementById("banner-times").textContent)`)
	}
	if longest := eval[float64](b, `Math.max(...tries)`); longest > 2 {
		t.Errorf("the next try is %v s away", longest)
	}
	g.door.Reopen()
	began := eval[float64](b, `performance.now()`)
	b.until(is("Live") + ` && ` + row("orders/42") + ` && document.getElementById("banner").hidden`)
	t.Logf("it is live %.1f s later", (eval[float64](b, `performance.now()`)-began)/1000)
}
