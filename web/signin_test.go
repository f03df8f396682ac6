package web_test

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"fencepost/internal/auth"
)

// startKeys starts a gateway that wants keys, and returns one that may read what is below
// ours/.
func startKeys(t *testing.T) (g *gateway, key string) {
	t.Helper()
	reader, other := auth.NewKey(), auth.NewKey()
	line, err := auth.Line(reader, "reader", "read", "ours/", "")
	if err != nil {
		t.Fatal(err)
	}
	g = startGateway(t, func(s *fallibleStore) { s.keys = auth.New(parseKeys(t, line), nil) })
	otherLine, err := auth.Line(other, "other", "lock", "*", "")
	if err != nil {
		t.Fatal(err)
	}
	g.withoutReader = func() { g.store.keys.Replace(parseKeys(t, otherLine)) }
	return g, reader.Reveal()
}

func parseKeys(t *testing.T, line string) *auth.Set {
	t.Helper()
	set, err := auth.Parse([]byte(line + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

const (
	askedForKey = `!document.getElementById("signin").hidden && document.activeElement.id === "key" && document.getElementById("sign-out").hidden`
	signedIn    = `document.getElementById("signin").hidden && !document.getElementById("sign-out").hidden`
	rowNames    = `[...document.querySelectorAll("#rows tr")].map((r) => r.dataset.name).join()`
)

// signIn types a key.
func (b *tab) signIn(key string) {
	b.t.Helper()
	b.do(chromedp.SendKeys(chromedp.CSS("#key"), key+"\r"))
}

// The page asks for a key where the gateway wants one, shows what the key may see, as it
// happens, and keeps the key nowhere but in its tab.
func TestSignIn(t *testing.T) {
	t.Parallel()
	g, key := startKeys(t)
	b := openTab(t)
	g.acquireBehind("ours/1", "me")
	g.acquireBehind("theirs/1", "somebody")
	b.do(chromedp.Navigate(g.origin))
	b.until(askedForKey + ` && document.querySelector(".overview").offsetParent === null`)
	b.shoot("sign-in")

	if n := g.front.count("readyz"); n > 0 {
		t.Errorf("without a key the page has asked for /readyz %d times", n)
	}
	b.signIn("two words")
	b.until(`document.getElementById("signin-problem").innerText.includes("not a key")`)
	eval[string](b, `document.getElementById("key").value = ""`)
	b.signIn(auth.NewKey().Reveal())
	b.until(askedForKey + ` && document.getElementById("signin-problem").innerText.includes("not known")`)
	b.signIn(key)
	b.until(signedIn + ` && ` + is("Live") + ` && ` + rowNames + ` === "ours/1"`)
	g.acquireBehind("theirs/2", "somebody")
	g.acquireBehind("ours/2", "me")
	b.until(rowNames + ` === "ours/1,ours/2"`)
	b.do(chromedp.Reload())
	b.until(`document.readyState === "complete" && ` + signedIn + ` && ` + rowNames + ` === "ours/1,ours/2"`)
	for what, js := range map[string]string{
		"the page":   `document.documentElement.outerHTML + document.getElementById("key").value`,
		"an address": `location.href + performance.getEntriesByType("resource").map((e) => e.name).join()`,
		"a cookie":   `document.cookie`, "the local storage": `JSON.stringify(localStorage)`,
	} {
		if got := eval[string](b, js); strings.Contains(got, key) || what == "a cookie" && got != "" {
			t.Errorf("%s has the key", what)
		}
	}
	// Too many requests are no reason to forget a key.
	g.front.busy.Store(true)
	lists := g.front.count("list")
	b.do(chromedp.Reload())
	eventually(t, "the list is asked for again", func() bool { return g.front.count("list") > lists+1 })
	g.front.busy.Store(false)
	b.until(signedIn + ` && ` + rowNames + ` === "ours/1,ours/2"`)
	b.do(chromedp.Click(chromedp.CSS("#sign-out")))
	b.until(`document.readyState === "complete" && ` + askedForKey + ` && document.querySelectorAll("#rows tr").length === 0 && sessionStorage.length === 0`)
}

// A key that is withdrawn takes what it has shown with it.
func TestSignedOutByTheGateway(t *testing.T) {
	t.Parallel()
	g, key := startKeys(t)
	b := openTab(t)
	g.acquireBehind("ours/1", "me")
	b.do(chromedp.Navigate(g.origin + "/#/locks/ours/1"))
	b.until(askedForKey)
	b.signIn(key)
	b.until(signedIn + ` && ` + rowNames + ` === "ours/1"`)
	eval[bool](b, `window.before = true`)
	g.withoutReader()
	g.acquireBehind("ours/2", "me") // the stream ends with it
	eventually(t, "the page is loaded anew", func() bool {
		loaded, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](`window.before === undefined`))
		return err == nil && loaded // it fails between the two pages
	})
	b.until(`document.readyState === "complete" && ` + askedForKey + ` && document.querySelectorAll("#rows tr").length === 0`)
	b.until(`document.getElementById("signin-problem").innerText.includes("not known") && sessionStorage.length === 0`)
	if got := b.text("body"); strings.Contains(got, "me") && strings.Contains(got, "ours/1") {
		t.Errorf("the page still says\n%s", got)
	}
}

// No script of the page can turn text into markup: the browser refuses it.
func TestTrustedTypes(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	b.live(g, "/")
	for _, sink := range []string{
		`document.body.innerHTML = "<b>x</b>"`, `document.body.insertAdjacentHTML("beforeend", "<b>x</b>")`, `document.write("x")`,
		`document.createElement("script").src = "/assets/js/main.js"`, `trustedTypes.createPolicy("mine", {})`, `setTimeout("1")`, `new DOMParser().parseFromString("<b>x</b>", "text/html")`,
	} {
		if got := eval[string](b, `(() => { try { `+sink+`; return "allowed" } catch (e) { return e.name } })()`); got != "TypeError" {
			t.Errorf("%s: %s", sink, got)
		}
	}
	eval[bool](b, `violations.length = 0, true`)
	b.faults()
}
