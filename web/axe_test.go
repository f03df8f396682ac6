//go:build axe

package web_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"fencepost/internal/fencing"
)

// giveNotice tells the holder of a lock that it is to be broken in an hour.
func (g *gateway) giveNotice(name, reason string) {
	g.t.Helper()
	out, err := g.store.Do(g.t.Context(), fencing.InspectRequest{Name: fencing.Name(name)})
	if err != nil {
		g.t.Fatal(err)
	}
	if _, err := g.store.Do(g.t.Context(), fencing.BreakRequest{Name: fencing.Name(name), Token: out.Lock.Holders[0].Token, Notice: time.Hour, BreakReason: reason}); err != nil {
		g.t.Fatal(err)
	}
}

// axe has axe-core look at what is in view, and returns what it finds wrong, as "rule: where:
// why". That comes from npm, so this is no part of the other tests: make test-axe.
func (b *tab) axe() []string {
	b.t.Helper()
	if !eval[bool](b, `window.axe !== undefined`) {
		source, err := os.ReadFile("node_modules/axe-core/axe.min.js")
		if err != nil {
			b.t.Fatalf("%v: npm ci --prefix web", err)
		}
		eval[bool](b, string(source)+"\n;true")
	}
	return eval[[]string](b, `axe.run(document, {resultTypes: ["violations"]}).then(({violations}) =>
		violations.flatMap(({id, nodes}) => nodes.map(({target, failureSummary}) => id + ": " + target.join(" ") + ": " + failureSummary)))`)
}

// accessible looks at a view in both themes, on a wide and a narrow window.
func (b *tab) accessible(view string) {
	b.t.Helper()
	for _, scheme := range []string{"light", "dark"} {
		b.media(scheme, true) // what moves has colours in between
		for _, width := range []int64{1280, 390} {
			b.do(chromedp.EmulateViewport(width, 844))
			b.until(fmt.Sprintf(`innerWidth === %d && document.getAnimations().every((a) => a.playState !== "running")`, width))
			b.shoot(fmt.Sprintf("view-%s-%s-%d", strings.NewReplacer(" ", "-", "/", "-", ":", "-").Replace(view), scheme, width))
			for _, found := range b.axe() {
				b.t.Errorf("%s, %s, %d px: %s", view, scheme, width, found)
			}
		}
	}
	b.do(chromedp.EmulateViewport(1280, 800))
}

func TestAxe(t *testing.T) {
	t.Run("locks", func(t *testing.T) {
		g, b := startGateway(t), openTab(t)
		b.media("light", true)
		b.live(g, "/")
		b.until(`!document.getElementById("empty").hidden`)
		b.accessible("nothing is locked")
		populate(g)
		crowd(g)
		b.live(g, "/?sort=held")
		b.until(drawn + ` > 3`)
		b.until(`document.querySelectorAll("#waited li").length > 0 && document.querySelectorAll("#stuck li").length > 0`)
		b.accessible("the list")
		b.do(chromedp.Click(chromedp.CSS("#tree summary")))
		b.until(`document.querySelectorAll("#tree-list li").length > 1`)
		b.accessible("the tree")
		b.live(g, "/?q=none-such")
		b.until(`!document.getElementById("empty").hidden`)
		b.accessible("no match")
		b.do(chromedp.Click(chromedp.CSS("#help-button")))
		b.until(`document.getElementById("help").open`)
		b.accessible("the keys")
		for _, name := range []string{"deploy:staging", "pool/imports", "free", "not//valid"} {
			b.live(g, "/#/locks/"+name)
			b.until(`document.querySelector("#detail .state").innerText !== "Looking\u2026"`)
			eval[bool](b, `document.querySelectorAll("#detail details").forEach((d) => { d.open = true }), true`)
			b.accessible("the lock " + name)
		}
		b.live(g, "/#/locks/deploy:staging")
		b.until(`document.querySelector("#detail .break")`)
		b.do(chromedp.Click(chromedp.CSS("#detail .break")))
		b.until(asksBreak)
		b.accessible("breaking")
		b.do(chromedp.KeyEvent(kb.Escape))
		b.do(chromedp.Click(chromedp.CSS("#detail .evict")))
		b.until(asksBreak)
		eval[bool](b, `document.querySelector("#break details").open = true`)
		b.accessible("evicting")
		b.do(chromedp.KeyEvent(kb.Escape))
		g.giveNotice("deploy:staging", "the migration")
		b.until(`!document.getElementById("break").open && !document.querySelector("#detail .notice").hidden`)
		b.accessible("a notice")
	})
	t.Run("sign-in", func(t *testing.T) {
		g, _ := startKeys(t)
		b := openTab(t)
		b.media("light", true)
		b.do(chromedp.Navigate(g.origin))
		b.until(askedForKey)
		b.accessible("signing in")
		b.signIn("two words")
		b.until(`!document.getElementById("signin-problem").hidden`)
		b.accessible("a key that is refused")
	})
	t.Run("store", func(t *testing.T) {
		until := time.Now().Add(time.Hour)
		g, b := startGateway(t, setUp(badly), func(s *fallibleStore) { s.quarantine.Store(&until) }), openTab(t)
		b.media("light", true)
		g.acquire("orders/42", `{"owner":"worker-7","ttl_ms":600000}`)
		b.live(g, "/")
		b.until(`!document.getElementById("quarantine").hidden && !document.getElementById("dangers").hidden`)
		b.accessible("quarantine and dangers")
	})
	t.Run("store away", func(t *testing.T) {
		g, b := startGateway(t), openTab(t)
		b.media("light", true)
		g.acquire("orders/42", `{"owner":"worker-7","ttl_ms":600000}`)
		b.live(g, "/#/locks/orders/42")
		g.store.down.Store(true)
		g.acquire("orders/43", "{}")
		b.until(is("Store unavailable") + ` && !document.getElementById("banner").hidden`)
		b.accessible("the store is away")
		b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(g.origin))
		b.until(is("Store unavailable") + ` && document.querySelector("#empty h3").innerText === "No lock is known yet"`)
		b.accessible("opened while the store is away")
	})
}

// What axe is there to find, it finds.
func TestAxeFindsWhatIsWrong(t *testing.T) {
	g, b := startGateway(t), openTab(t)
	b.media("light", true)
	b.live(g, "/")
	eval[bool](b, `document.querySelector("label[for=q]").remove(), document.getElementById("q").placeholder = "",
		document.getElementById("help-button").style.color = "rgb(120 120 120)", document.getElementById("help-button").style.backgroundColor = "rgb(140 140 140)", true`)
	found := strings.Join(b.axe(), "\n")
	for _, rule := range []string{"label: #q", "color-contrast: #help-button"} {
		if !strings.Contains(found, rule) {
			t.Errorf("no %q in\n%s", rule, found)
		}
	}
}
