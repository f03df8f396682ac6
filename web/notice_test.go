package web_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

const (
	notice    = `document.querySelector("#detail .notice").innerText`
	confirmed = `!document.getElementById("break").open && document.activeElement.id === "detail-name"`
)

// crowded has so many hold locks, of which one is stuck, and opens the page. With
// FENCEPOST_LONG there are as many as the page ever knows.
func crowded(t *testing.T) (g *gateway, b *tab, held lease, next *waiter, locks string) {
	g, b = startGateway(t), openTab(t)
	load, _ := scale()
	held, next = stuck(g, "shard/17/stuck")
	for i := range load.locks - 1 {
		g.acquireBehind(fmt.Sprintf("shard/%02d/job/%06d", i%37, i), "busy")
	}
	b.clock()
	b.live(g, "/")
	locks = fmt.Sprintf("%d,%03d", load.locks/1000, load.locks%1000)
	b.until(count + ` === "100 of ` + locks + ` live"`)
	return g, b, held, next, locks
}

// A person finds a stuck lock among very many, sees why it is waited for, breaks it with
// notice, sees the notice run out, and the next one get the lock.
func TestAStuckLockIsBrokenWithNotice(t *testing.T) {
	t.Parallel()
	g, b, held, next, locks := crowded(t)
	eval[bool](b, choose("held", "10m"))
	b.until(rowNames + ` === "shard/17/stuck" && ` + count + ` === "1 of ` + locks + ` live"`)
	b.do(chromedp.Click(chromedp.CSS("#rows tr a")))
	b.until(why + `.startsWith("\u2068worker-8\u2069 waits because \u2068worker-7\u2069 holds it exclusively. Unless it is renewed again, ")`)
	b.until(`document.querySelector("#detail .overlong").innerText.startsWith("Held for 1\u00a0h ")`)
	b.do(chromedp.Click(chromedp.CSS("#detail .break")))
	b.until(asksBreak)
	b.until(`document.getElementById("break-consequence").innerText.startsWith("The lease ends at once")`)
	eval[bool](b, `(() => { const s = document.getElementById("break-notice"); s.value = "30000"; return s.dispatchEvent(new Event("input")); })()`)
	b.do(chromedp.SendKeys(chromedp.CSS("#break-reason"), "deploy at 4"))
	b.do(chromedp.SendKeys(chromedp.CSS("#break-name"), "shard/17/stuck"))
	b.until(`document.getElementById("break-consequence").innerText.includes("It keeps the lock for 30\u00a0s, or until its present expiry")`)
	b.do(chromedp.Click(chromedp.CSS("#break .commands summary")))
	for _, want := range []string{
		fmt.Sprintf(`curl -X DELETE -H 'If-Match: "%d"' -d '{"reason":"deploy at 4"}' '%s/locks/shard/17/stuck?notice_ms=30000'`, held.Token, g.origin),
		fmt.Sprintf("lockctl break -notice 30s -reason 'deploy at 4' shard/17/stuck %d", held.Token),
	} {
		if got := b.text("#break .commands"); !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	for _, scheme := range []string{"light", "dark"} {
		b.media(scheme, false)
		for _, text := range eval[[]string](b, contrast) {
			t.Errorf("%s: contrast below 4.5: %s", scheme, text)
		}
		b.shoot("notice-dialog-" + scheme)
	}
	b.do(chromedp.Click(chromedp.CSS("#break .danger")))
	b.until(confirmed)

	// The holder has it still, for no less than it was told; everybody sees until when.
	b.until(`/^Given notice: the lease is broken in at most [2-6]\d\u00a0s\. deploy at 4$/.test(` + notice + `)`)
	b.until(why + `.includes("The holder was given notice: its lease is broken within ")`)
	b.until(row("shard/17/stuck") + `.querySelector(".mode").innerText === "given notice" && ` + historyShown + `.startsWith("Held worker-7,")`)
	for _, text := range eval[[]string](b, contrast) {
		t.Errorf("contrast below 4.5: %s", text)
	}
	b.shoot("notice-dark")
	b.advance(g, 20*time.Second)
	g.renew(held)
	b.until(`/broken in at most [1-4]\d\u00a0s/.test(` + notice + `)`)
	b.advance(g, time.Minute)
	g.expire(0)
	if got := next.granted(); got.Token <= held.Token {
		t.Errorf("the next has the token %d", got.Token)
	}
	b.until(historyShown + `.startsWith("Held worker-8,Broken worker-7,") && document.querySelector("#detail .notice").hidden`)
	b.until(`document.querySelector("#detail .history").innerText.includes("deploy at 4")`)
	b.until(`document.querySelectorAll("#detail .history [data-since-opened]").length === 1`)
}

// The same by the keyboard alone.
func TestAStuckLockIsBrokenWithNoticeByKeyboard(t *testing.T) {
	t.Parallel()
	g, b, _, next, _ := crowded(t)
	// The protocol sends a character although the page has taken its key.
	write := func(id, text string) {
		t.Helper()
		b.until(`document.activeElement.id === "` + id + `"`)
		eval[string](b, `document.activeElement.value = ""`)
		for _, key := range text {
			b.do(chromedp.KeyEvent(string(key)))
		}
	}
	b.do(chromedp.KeyEvent("/"))
	write("q", "STUCK")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.until(rowNames + ` === "shard/17/stuck"`)
	for range 60 { // out of the search, past the filters
		if eval[bool](b, `document.activeElement.matches(".lock-link")`) {
			break
		}
		b.do(chromedp.KeyEvent(kb.Tab))
	}
	b.do(chromedp.KeyEvent(kb.Enter))
	b.until(`document.activeElement.id === "detail-name" && ` + why + `.includes("worker-7")`)
	b.do(chromedp.KeyEvent("b"))
	b.until(asksBreak)
	write("break-name", "shard/17/stuck")
	b.do(chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent("1"), chromedp.KeyEvent("0"))
	b.until(`document.activeElement.id === "break-notice" && document.activeElement.value === "10000"`)
	b.do(chromedp.KeyEvent(kb.Tab))
	write("break-reason", "stuck")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.until(confirmed + ` && ` + `/in at most .*s\. stuck$/.test(` + notice + `)`)
	b.advance(g, time.Minute)
	g.expire(0)
	next.granted()
	b.until(historyShown + `.startsWith("Held worker-8,Broken worker-7,")`)
	b.do(chromedp.KeyEvent(kb.Escape))
	b.until(`document.getElementById("detail").hidden`)
}

// Somebody is taken out of the queue, and nobody else loses a place.
func TestAWaiterIsEvicted(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	held := g.acquire("orders/42", `{"owner":"ann","ttl_ms":600000}`)
	first := g.queue("orders/42", `{"owner":"first","ttl_ms":600000}`)
	second := g.queue("orders/42", `{"owner":"\u202eanosrep","ttl_ms":600000}`) // it turns the direction of what follows
	g.queue("orders/42", `{"owner":"third","ttl_ms":600000}`)
	b.live(g, "/#/locks/orders/42")
	b.until(`document.querySelectorAll("#detail .queue .evict").length === 3`)
	b.do(chromedp.Click(chromedp.CSS("#detail .queue tbody tr:nth-child(2) .evict")))
	b.until(asksBreak + ` && document.getElementById("break-title").innerText === "Evict a waiter" && document.getElementById("break-notice").hidden`)
	b.until(`document.querySelector("#break-text bdi").textContent === "\u202eanosrep"`)
	b.do(chromedp.SendKeys(chromedp.CSS("#break-reason"), "not before the migration"))
	b.do(chromedp.SendKeys(chromedp.CSS("#break-name"), "orders/42"))
	if got := eval[string](b, `document.querySelector("#break .commands").textContent`); !strings.Contains(got, "lockctl evict -reason 'not before the migration' orders/42 01") ||
		!strings.Contains(got, `curl -X DELETE -d '{"reason":"not before the migration"}' '`+g.origin+"/queues/orders/42?lease=01") {
		t.Errorf("the commands are %s", got)
	}
	b.shoot("evict-dialog")
	b.do(chromedp.Click(chromedp.CSS("#break .danger")))
	b.until(confirmed + ` && ` + queueShown + ` === "1 first,2 third"`)
	if <-second.done; second.err == nil || !strings.Contains(second.err.Error(), "412") {
		t.Errorf("the evicted one was told %v", second.err)
	}
	g.release(held)
	first.granted()
	b.until(queueShown + ` === "1 third" && ` + historyShown + ` === "Held first,Released ann"`)

	// Who has left meanwhile is told of as such.
	b.do(chromedp.Click(chromedp.CSS("#detail .queue .evict")))
	b.until(asksBreak)
	g.release(first.lease)
	b.until(queueShown + ` === ""`)
	b.do(chromedp.SendKeys(chromedp.CSS("#break-name"), "orders/42\r"))
	b.until(`document.querySelector("#break .problem").innerText === "It is no longer waiting: it has the lock, and its lease can be broken."`)
	b.do(chromedp.KeyEvent(kb.Escape))
}
