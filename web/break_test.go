package web_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

const (
	why       = `document.querySelector("#detail .why").innerText`
	asksBreak = `document.getElementById("break").open && document.activeElement.id === "break-name" && document.querySelector("#break .danger").disabled`
)

// stuck has a worker renew a lock for an hour that others held for seconds, and one wait.
func stuck(g *gateway, name string) (held lease, next *waiter) {
	for range 3 {
		l := g.acquire(name, `{"owner":"quick"}`)
		g.advance(4 * time.Second)
		g.release(l)
		g.advance(2 * time.Second)
	}
	held = g.acquire(name, `{"owner":"worker-7","ttl_ms":60000}`)
	next = g.queue(name, `{"owner":"worker-8","ttl_ms":600000}`)
	for range 90 {
		g.advance(40 * time.Second)
		g.renew(held)
	}
	return held, next
}

// A person finds a stuck lock, sees why it is waited for, breaks it, and sees the next one
// get it.
func TestAStuckLockIsBroken(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	held, next := stuck(g, "jobs/stuck")
	for i := range 30 {
		g.acquireBehind(fmt.Sprintf("jobs/%02d", i), "busy")
	}
	b.live(g, "/")
	b.do(chromedp.Click(chromedp.CSS("th.since button")))
	b.until(`document.querySelector("#rows tr")?.dataset.name === "jobs/stuck"`)
	b.do(chromedp.Click(chromedp.CSS("#rows tr a")))
	b.until(why + `.startsWith("\u2068worker-8\u2069 waits because \u2068worker-7\u2069 holds it exclusively. Unless it is renewed again, the lease ends within ")`)
	b.until(`document.querySelector("#detail .overlong").innerText.startsWith("Held for 1\u00a0h 00\u00a0min; the last 3 who released it had it for a median of 4.0\u00a0s. It was renewed ")`)

	// The line of each grant stands where its time was, with what was free between them.
	b.until(historyShown + ` === "Held worker-7,Released quick,Released quick,Released quick"`)
	b.until(`[...document.querySelectorAll("#detail .gap")].map((g) => g.innerText).join() === "after 2.0\u00a0s free,after 2.0\u00a0s free,after 2.0\u00a0s free,"`)
	b.until(`(() => {
		const at = [...document.querySelectorAll("#detail .hold")].map((h) => h.getBoundingClientRect()).reverse();
		return at.every((r, i) => i === 0 || r.left >= at[i - 1].right - 2) && at.at(-1).width > 300 && at[0].width < 10;
	})()`)
	// What was there when the page was opened is not marked.
	b.until(`document.querySelectorAll("[data-since-opened]").length === 0`)

	b.do(chromedp.Click(chromedp.CSS("#detail .commands summary")))
	commands := b.text("#detail .commands")
	for _, want := range []string{
		fmt.Sprintf(`curl -X DELETE -H 'If-Match: "%d"' %s/locks/jobs/stuck`, held.Token, g.origin), fmt.Sprintf("lockctl break jobs/stuck %d", held.Token),
		"lockctl get jobs/stuck", "lockctl history jobs/stuck", "lockctl watch jobs/stuck", "curl " + g.origin + "/history/jobs/stuck",
	} {
		if !strings.Contains(commands, want) {
			t.Errorf("no %q in\n%s", want, commands)
		}
	}
	b.shoot("stuck-detail")

	b.do(chromedp.Click(chromedp.CSS("#detail .break")))
	b.until(asksBreak)
	b.do(chromedp.SendKeys(chromedp.CSS("#break-name"), "jobs/stuc"))
	b.until(`document.getElementById("break-name").value === "jobs/stuc" && document.querySelector("#break .danger").disabled`)
	b.do(chromedp.SendKeys(chromedp.CSS("#break-name"), "k"))
	b.until(`!document.querySelector("#break .danger").disabled`)
	for _, scheme := range []string{"light", "dark"} {
		b.media(scheme, false)
		for _, text := range eval[[]string](b, contrast) {
			t.Errorf("%s: contrast below 4.5: %s", scheme, text)
		}
		b.shoot("break-" + scheme)
	}
	b.do(chromedp.SendKeys(chromedp.CSS("#break-reason"), "stuck since three"))
	b.do(chromedp.Click(chromedp.CSS("#break .danger")))
	b.until(`!document.getElementById("break").open && document.activeElement.id === "detail-name"`)
	if got := next.granted(); got.Token <= held.Token {
		t.Errorf("the next has the token %d", got.Token)
	}
	b.until(historyShown + `.startsWith("Held worker-8,Broken worker-7,") && document.querySelector("#detail .overlong").hidden`)
	b.until(`document.querySelector("#detail .history").innerText.includes("stuck since three")`)
	b.until(row("jobs/stuck") + `.matches("[data-since-opened]") && document.querySelectorAll("#detail .history [data-since-opened]").length === 1`)
}

// The same by the keyboard alone.
func TestAStuckLockIsBrokenByKeyboard(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	_, next := stuck(g, "jobs/stuck")
	g.acquireBehind("jobs/1", "busy")
	b.live(g, "/?waited=1&sort=held")
	b.until(rowNames + ` === "jobs/stuck"`)
	b.do(chromedp.KeyEvent("j"))
	b.until(`document.activeElement.closest("tr")?.dataset.name === "jobs/stuck"`)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.until(`document.activeElement.id === "detail-name" && ` + why + `.includes("worker-7")`)
	b.do(chromedp.KeyEvent("b"))
	b.until(asksBreak)
	b.do(chromedp.KeyEvent(kb.Enter)) // nothing is typed yet
	// The protocol sends the character although the page has taken the key.
	eval[string](b, `document.activeElement.value = ""`)
	for _, key := range "jobs/stuck" {
		b.do(chromedp.KeyEvent(string(key)))
	}
	b.until(`!document.querySelector("#break .danger").disabled`)
	if g.waiting("jobs/stuck") != 1 {
		t.Fatal("it was broken before its name was typed")
	}
	b.do(chromedp.KeyEvent(kb.Enter))
	next.granted()
	b.until(historyShown + `.startsWith("Held worker-8,Broken worker-7,") && document.activeElement.id === "detail-name"`)
	b.do(chromedp.KeyEvent(kb.Escape))
	b.until(`document.getElementById("detail").hidden`)
}

// Who may not break is told so, and nothing has happened.
func TestBreakingWantsItsScope(t *testing.T) {
	t.Parallel()
	g, key := startKeys(t)
	b := openTab(t)
	g.acquireBehind("ours/1", "me")
	b.do(chromedp.Navigate(g.origin + "/#/locks/ours/1"))
	b.until(askedForKey)
	b.signIn(key)
	b.until(signedIn + ` && document.querySelector("#detail .break")`)
	b.do(chromedp.Click(chromedp.CSS("#detail .commands summary")))
	b.until(`document.querySelector("#detail .commands").innerText.includes("-H \"Authorization: Bearer $FENCEPOST_KEY\"")`)
	b.do(chromedp.Click(chromedp.CSS("#detail .break")))
	b.until(asksBreak)
	b.do(chromedp.SendKeys(chromedp.CSS("#break-name"), "ours/1\r"))
	b.until(`document.querySelector("#break .problem").innerText.includes("scope admin")`)
	b.until(`document.querySelector("#detail .state").innerText.startsWith("Held")`)
	b.do(chromedp.KeyEvent(kb.Escape))
	b.until(`!document.getElementById("break").open`)
	if got := eval[string](b, `document.documentElement.outerHTML`); strings.Contains(got, key) {
		t.Error("the page shows the key")
	}
}

// The answer about one lock is no answer to what the dialog asks about another since.
func TestABreakThatWasCancelledSaysNothingOfTheNext(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	b.live(g, "/")
	got := eval[[]string](b, `import("/assets/js/break.js").then(async ({Break}) => {
		const dialog = document.body.appendChild(document.createElement("dialog")), answers = [], said = [];
		const breaking = new Break(dialog, {breakLease: () => new Promise((resolve, reject) => answers.push({resolve, reject}))}, {onDone: (name) => said.push("done: " + name)});
		const at = (selector) => dialog.querySelector(selector);
		const ask = (name) => breaking.open({name, waiters: [], waiting: 0}, {fencing_token: 1, owner: "x"});
		const go = () => {
			at("#break-name").value = "a";
			at("#break-name").dispatchEvent(new Event("input"));
			at(".danger").click();
			dialog.close();
		};
		for (const answer of [({reject}) => reject({status: 412, code: "stale_token", detail: ""}), ({resolve}) => resolve()]) {
			ask("a"), go(), ask("b");
			answer(answers.at(-1));
			await new Promise((resolve) => setTimeout(resolve));
			said.push(String(dialog.open) + at(".problem").textContent + at(".danger").disabled);
			dialog.close();
		}
		ask("a"), at("#break-name").value = "a", at("#break-name").dispatchEvent(new Event("input")), at(".danger").click();
		answers.at(-1).resolve();
		await new Promise((resolve) => setTimeout(resolve));
		said.push(String(dialog.open));
		return dialog.remove(), said;
	})`)
	if want := []string{"truetrue", "truetrue", "done: a", "false"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
