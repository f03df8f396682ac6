package web_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// queueShown is an expression for the queue of the lock that is open.
const queueShown = `[...document.querySelectorAll("#detail .queue tbody tr")].map((r) => r.querySelector(".position").innerText + " " + r.querySelector(".owner").innerText).join()`

// historyShown is an expression for its history.
const historyShown = `[...document.querySelectorAll("#detail .history tbody tr")].map((r) => r.querySelector(".outcome span:last-child").innerText + " " + r.querySelector(".owner").innerText).join()`

func TestAQueueAppearsAndMoves(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	first := g.acquire("orders/42", `{"owner":"first","ttl_ms":600000}`)
	b.live(g, "/#/locks/orders/42")
	b.until(`document.querySelector("#detail .holder") && document.querySelector("#detail .waiters").hidden`)
	length := row("orders/42") + `.querySelector(".waiting").innerText`
	b.until(length + `.startsWith("0") && !` + row("orders/42") + `.querySelector(".owner .mode").checkVisibility()`)

	second := g.queue("orders/42", `{"owner":"second","ttl_ms":600000}`)
	third := g.queue("orders/42", `{"owner":"third","ttl_ms":600000}`)
	fourth := g.queue("orders/42", `{"owner":"fourth","ttl_ms":600000}`)
	b.until(length + `.startsWith("3") && ` + queueShown + ` === "1 second,2 third,3 fourth"`)
	b.until(`document.querySelector("#detail .waiters h3").innerText === "Queue 3 waiting"`)

	// How long they wait counts on between answers, and never back.
	const longest = `parseFloat(document.querySelector("#detail .queue tbody .waiting").innerText)`
	g.front.settled("lock") // events that came together are answered by one request, a little later
	before := g.front.count("lock")
	steps := eval[[]float64](b, fmt.Sprintf(`new Promise((resolve) => {
		const seen = [];
		const look = () => {
			seen.push(%s);
			if (seen.at(-1) - seen[0] >= 0.8) resolve([...new Set(seen)]);
			else requestAnimationFrame(look);
		};
		look();
	})`, longest))
	for i := 1; i < len(steps); i++ {
		if steps[i] < steps[i-1] {
			t.Fatalf("the wait went back: %v", steps)
		}
	}
	if len(steps) < 3 {
		t.Errorf("the wait jumps: %v", steps)
	}
	if n := g.front.count("lock") - before; n != 0 {
		t.Errorf("counting took %d requests", n)
	}

	eval[string](b, `document.querySelectorAll("#detail .queue tbody tr")[1].mark = "same"`)
	g.release(first)
	second.granted()
	b.until(row("orders/42") + `.innerText.includes("second") && ` + length + `.startsWith("2") && ` + queueShown + ` === "1 third,2 fourth"`)
	b.until(`document.querySelector("#detail .queue tbody tr").mark === "same"`)
	third.leave()
	b.until(queueShown + ` === "1 fourth"`)
	g.release(second.lease)
	g.release(fourth.granted())
	b.until(row("orders/42") + ` === null && document.querySelector("#detail .waiters").hidden && document.querySelector("#detail .state").innerText === "Free"`)
	b.until(historyShown + ` === "Released fourth,Released second,Released first"`)
}

// A waiter is shown about how long it will wait yet, once three leases have ended.
func TestAWaiterSeesWhenItsTurnWillBe(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	for range 3 {
		id := g.acquire("orders/42", `{"ttl_ms":3600000}`)
		g.advance(10 * time.Minute)
		g.release(id)
	}
	id := g.acquire("orders/42", `{"owner":"first","ttl_ms":3600000}`)
	waiter := g.queue("orders/42", `{"owner":"second","ttl_ms":3600000}`)
	b.live(g, "/#/locks/orders/42")
	b.until(`/\nabout \d+.(min|s) more$/.test(document.querySelector("#detail .queue tbody .waiting")?.innerText)`)
	g.release(id)
	g.release(waiter.granted())
}

// A lease that its gateway renews, because it is attached to a stream, is told from one that
// its client renews: the first says nothing of whether the client gets on.
func TestAnAttachedLeaseIsTold(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	g.attach("jobs/a", `{"owner":"streams","ttl_ms":600000}`)
	own := g.acquire("jobs/b", `{"owner":"renews","ttl_ms":600000}`)
	g.advance(10 * time.Second)
	g.renew(own)
	renewed := func(name, want string) {
		t.Helper()
		b.live(g, "/#/locks/"+name)
		b.until(`document.querySelector("#detail-name").innerText === "` + name + `" && ` + want +
			`.test([...document.querySelectorAll("#detail .fact")].find((f) => f.innerText.startsWith("Last renewed")).innerText)`)
	}
	renewed("jobs/a", `/never by its gateway: attached to a stream$/`)
	renewed("jobs/b", `/ ago$/`)
	b.until(row("jobs/a") + `.querySelector(".owner").innerText === "streams attached" && ` + row("jobs/b") + `.querySelector(".owner").innerText.trim() === "renews"`)
}

func TestAQueueLongerThanThePage(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	g.acquire("busy", `{"ttl_ms":600000}`)
	for i := range 60 {
		g.queue("busy", fmt.Sprintf(`{"owner":"w%d"}`, i))
	}
	b.do(chromedp.Navigate(g.origin + "/#/locks/busy"))
	b.until(`document.querySelectorAll("#detail .queue tbody tr").length === 50 && document.querySelector("#detail .waiters .rest").innerText === "and 10 more behind them"`)
}

func TestSeveralHolders(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	var held []lease
	for i, owner := range []string{"ann", "bob", "cy"} {
		held = append(held, g.acquire("pool", fmt.Sprintf(`{"owner":%q,"mode":"shared","limit":3,"ttl_ms":%d,"metadata":{"build":"%d"}}`, owner, 600000+i, i)))
	}
	g.queue("pool", `{"owner":"dan","mode":"shared","limit":3}`)
	b.live(g, "/#/locks/pool")
	b.until(row("pool") + `.querySelector(".owner").innerText === "3 of 3 holders ann, bob, cyshared"`)
	b.until(`document.querySelector("#detail .state").innerText === "Held, shared by 3 of 3"`)
	b.until(row("pool") + `.querySelector(".owner .mode").checkVisibility()`)
	const lines = `[...document.querySelectorAll("#detail .holders summary")].map((s) => s.querySelector(".who").innerText + " " + s.querySelector(".slot").innerText).join()`
	b.until(lines + ` === "ann slot 0,bob slot 1,cy slot 2" && ` + queueShown + ` === "1 danshared"`)

	// A line opens by the keyboard, and stays open when others come and go.
	eval[bool](b, `document.querySelectorAll("#detail .holders summary")[1].focus(), true`)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.until(`document.querySelectorAll("#detail .holders details")[1].open`)
	if got := b.text("#detail .holders details:nth-child(2)"); !strings.Contains(got, fmt.Sprint(held[1].Token)) || !strings.Contains(got, "build") || !strings.Contains(got, "shared, at most 3, slot 1") {
		t.Errorf("a holder's line opens to %q", got)
	}
	g.release(held[0])
	b.until(lines + ` === "bob slot 1,cy slot 2,dan slot 0" && document.querySelectorAll("#detail .holders details")[0].open`)
	b.until(`document.activeElement.tagName === "SUMMARY"`)

	g.acquire("weights", `{"owner":"ann","mode":"shared","limit":9,"permits":3,"ttl_ms":600000}`)
	g.acquire("weights", `{"owner":"bob","mode":"shared","limit":9,"permits":2,"ttl_ms":600000}`)
	g.queue("weights", `{"owner":"cy","mode":"shared","limit":9,"permits":5}`)
	b.live(g, "/#/locks/weights")
	b.until(`document.querySelector("#detail .state").innerText === "Held, shared by 2, 5 of 9 permits taken"`)
	b.until(lines + ` === "ann 3 permits, slots 0-2,bob 2 permits, slots 3-4" && ` + queueShown + ` === "1 cy5 permits"`)
}

func TestHistory(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	b.live(g, "/#/locks/jobs/7")
	b.until(`document.querySelector("#detail .past").innerText.includes("No earlier holder is remembered")`)

	g.release(g.acquire("jobs/7", `{"owner":"ann"}`))
	b.until(historyShown + ` === "Released ann"`)
	g.acquire("jobs/7", `{"owner":"bob","ttl_ms":30000}`)
	b.until(historyShown + ` === "Held bob,Released ann"`)
	g.expire(40 * time.Second)
	b.until(historyShown + ` === "Expired bob,Released ann"`)
	b.until(`document.querySelector("#detail .history tbody .held").innerText === "30\u00a0s"`)
	held := g.acquire("jobs/7", `{"owner":"cy","ttl_ms":600000}`)
	next := g.queue("jobs/7", `{"owner":"dan","ttl_ms":600000}`)
	g.advance(65 * time.Second)
	g.break_(held)
	next.granted()
	b.until(historyShown + ` === "Held dan,Broken cy,Expired bob,Released ann"`)
	for what, want := range map[string]string{".waited": "1\u00a0min 05\u00a0s", ".token": fmt.Sprint(next.lease.Token)} {
		if got := b.text("#detail .history tbody tr " + what); got != want {
			t.Errorf("%s of the newest grant shows %q, want %q", what, got, want)
		}
	}
	const why = `[...document.querySelectorAll("#detail .history .why")].map((w) => w.innerText).join("|")`
	if got := eval[string](b, why); got != "|stuck, <b>ann</b> asked||" {
		t.Errorf("the reasons are %q", got)
	}
	// What is held counts on; what has ended does not.
	const lengths = `[...document.querySelectorAll("#detail .history tbody .held")].map((c) => c.innerText)`
	before := eval[[]string](b, lengths)
	b.until(fmt.Sprintf(`%s[0] !== %q`, lengths, before[0]))
	if after := eval[[]string](b, lengths); strings.Join(after[1:], ",") != strings.Join(before[1:], ",") {
		t.Errorf("leases that have ended go on: %v, %v", before, after)
	}
}

// TestAdvice: what there is to remark stands in the detail while it is so, under a heading
// of its own, and moves nothing above it.
func TestAdvice(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	b.live(g, "/#/locks/jobs/7")
	for range 4 {
		g.acquire("jobs/7", `{"owner":"ann","ttl_ms":30000}`)
		g.expire(40 * time.Second)
	}
	const shown = `[...document.querySelectorAll("#detail .advice li")].map((li) => li.dataset.code).join()`
	b.until(shown + ` === "ttl_short"`)
	if text := b.text("#detail .advice"); !strings.HasPrefix(text, "4 of the last 4 leases with a TTL of 30s expired without a renewal") {
		t.Errorf("it says %q", text)
	}
	if below := eval[bool](b, `document.querySelector("#detail .advice").getBoundingClientRect().top >= document.querySelector("#detail .history").getBoundingClientRect().bottom`); !below {
		t.Error("it stands above the history")
	}
	for range 16 {
		g.release(g.acquire("jobs/7", `{"owner":"ann","ttl_ms":30000}`))
	}
	b.until(shown + ` === ""`)
	if heading := b.text("#detail"); strings.Contains(heading, "Advice") {
		t.Error("the heading stays")
	}
}

// TestQueueAndHistoryKeepTheirMeaning asks the browser's accessibility tree on
// a phone, and what is read aloud while a lock changes hands all the time.
func TestQueueAndHistoryKeepTheirMeaning(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	g.release(g.acquire("orders/42", `{"owner":"ann"}`))
	held := g.acquire("orders/42", `{"owner":"bob","ttl_ms":600000}`)
	g.queue("orders/42", `{"owner":"cy","ttl_ms":600000}`)
	b.do(chromedp.EmulateViewport(390, 844))
	b.clock()
	b.live(g, "/#/locks/orders/42")
	b.until(historyShown + ` === "Held bob,Released ann"`)
	roles := b.roles()
	for _, want := range []string{
		"table Who waits, in the order of the queue", "columnheader Place", "cell cy",
		"table Who held the lock, newest first", "columnheader Outcome", "columnheader Token", "cell Released", "cell Held",
	} {
		if !roles[want] {
			t.Errorf("assistive technology is not told %q; it gets %v", want, roles)
		}
	}
	token := fmt.Sprintf("cell %d", held.Token) // and how long nobody held it before, if it took the test some milliseconds
	if !slices.ContainsFunc(slices.Collect(maps.Keys(roles)), func(role string) bool { return strings.HasPrefix(role, token) }) {
		t.Errorf("assistive technology is not told %q; it gets %v", token, roles)
	}

	eval[bool](b, `window.said = [], new MutationObserver(() => said.push(document.querySelector("#detail [role=status]").textContent))
		.observe(document.querySelector("#detail [role=status]"), {childList: true, characterData: true, subtree: true}), true`)
	for i := range 4 {
		w := g.queue("orders/42", fmt.Sprintf(`{"owner":"w%d"}`, i))
		b.advance(g, 10*time.Second) // something may be read aloud again
		b.until(fmt.Sprintf(`%s.includes("w%d")`, queueShown, i))
		w.leave()
		b.advance(g, 10*time.Second)
		b.until(fmt.Sprintf(`!%s.includes("w%d")`, queueShown, i))
	}
	if said := eval[[]string](b, `said`); len(said) > 0 {
		t.Errorf("every change of the queue is read aloud: %q", said)
	}
}
