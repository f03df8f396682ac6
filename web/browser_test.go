package web_test

import (
	"context"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// patience bounds every wait for the page. It is long because machines that run
// tests are slow at times; nothing waits longer than it must.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	status := m.Run()
	for _, b := range idle {
		b.close()
	}
	os.Exit(status)
}

// launch starts a browser with one tab; stop ends it, and returns when its process is gone.
func launch() (browser context.Context, stop func(), err error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, nil, fmt.Errorf("the page is tested in a real Chromium, which is missing: apt-get install chromium: %w", err)
	}
	profile, err := os.MkdirTemp("", "fencepost-chromium-")
	if err != nil {
		return nil, nil, err
	}
	allocator, cancel := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(path), chromedp.UserDataDir(profile), chromedp.WSURLReadTimeout(patience),
		chromedp.Flag("headless", true), chromedp.Flag("no-sandbox", true), chromedp.Flag("disable-gpu", true),
		chromedp.Flag("no-first-run", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
	)
	browser, end := chromedp.NewContext(allocator)
	stop = func() {
		chromedp.Cancel(browser) // waits until the process is gone
		end()
		cancel()
		os.RemoveAll(profile)
	}
	if err := chromedp.Do(browser); err != nil {
		stop()
		return nil, nil, err
	}
	return browser, stop, nil
}

// tab is a page in the browser.
type tab struct {
	t       *testing.T
	ctx     context.Context
	close   func()
	console func() (chromedp.ConsoleMessage, error, bool)
	scripts []page.ScriptIdentifier // that the test has run before those of a page
}

// watchPolicy runs before any script of the page.
const watchPolicy = `window.violations = [];
addEventListener("securitypolicyviolation", (e) => violations.push(e.effectiveDirective + " " + e.blockedURI));`

// idle are tabs that tests have left, for the next ones; each has an origin of its own. Every tab has a
// browser of its own, for tests run beside each other and only one tab of a browser has the focus: there
// are as many browsers as tests run at once.
var (
	idle   []*tab
	idleMu sync.Mutex
)

// openTab opens a tab of 1280 by 800. When the test ends it fails for anything
// the page has complained about.
func openTab(t *testing.T) *tab {
	t.Helper()
	var b *tab
	idleMu.Lock()
	if n := len(idle); n > 0 {
		b, idle = idle[n-1], idle[:n-1]
	}
	idleMu.Unlock()
	if b != nil {
		b.t = t
		b.faults() // of the page that was left
	} else {
		b = newTab(t)
	}
	b.do(chromedp.EmulateViewport(1280, 800))
	b.media("light", false)
	t.Cleanup(func() {
		defer func() {
			if t.Failed() {
				b.close()
			} else {
				idleMu.Lock()
				idle = append(idle, b)
				idleMu.Unlock()
			}
		}()
		b.check()
		b.leave()
	})
	return b
}

func newTab(t *testing.T) *tab {
	t.Helper()
	ctx, end, err := launch()
	if err != nil {
		t.Fatalf("chromium does not start: %v", err)
	}
	b := &tab{t: t, ctx: ctx}
	var stop func()
	b.console, stop = iter.Pull2(chromedp.Console(ctx))
	b.close = func() {
		stop()
		end()
	}
	b.first(watchPolicy)
	b.scripts = nil // this one stays
	return b
}

// first has a script run before those of each page that is opened from now on.
func (b *tab) first(script string) {
	b.t.Helper()
	b.do(func(ctx context.Context, tt *chromedp.Target) (chromedp.Void, error) {
		added, err := cdp.Call(ctx, tt, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: script})
		b.scripts = append(b.scripts, added.Identifier)
		return chromedp.Void{}, err
	})
}

// check fails the test for what the page has complained about.
func (b *tab) check() {
	b.t.Helper()
	if b.t.Failed() {
		b.shoot("failed-" + strings.ReplaceAll(b.t.Name(), "/", "-"))
	}
	for _, violation := range eval[[]string](b, `window.violations ?? []`) {
		b.t.Errorf("content security policy: %s", violation)
	}
	for _, fault := range b.faults() {
		b.t.Errorf("console: %s", fault)
	}
}

// leave ends what the test has begun in the tab.
func (b *tab) leave() {
	b.t.Helper()
	b.do(chromedp.Navigate("about:blank"))
	for _, script := range b.scripts {
		b.do(func(ctx context.Context, tt *chromedp.Target) (chromedp.Void, error) {
			return chromedp.Void{}, tt.Call(ctx, page.RemoveScriptToEvaluateOnNewDocument.Method, page.RemoveScriptToEvaluateOnNewDocumentParams{Identifier: script}, nil)
		})
	}
	b.scripts = nil
}

// faults returns the errors and warnings that the console got since the last
// call. Requests that fail are left out: the browser logs them by itself, and
// whether they should fail is what the tests look at.
func (b *tab) faults() []string {
	b.t.Helper()
	const mark = "up to here"
	eval[bool](b, fmt.Sprintf(`console.debug(%q), true`, mark))
	var faults []string
	for {
		message, err, ok := b.console()
		if err != nil || !ok {
			b.t.Fatalf("the console has ended: %v", err)
		}
		switch {
		case message.Text == mark:
			return faults
		case message.Source == "network":
		case message.Type == "debug" || message.Type == "log" || message.Type == "info":
		default:
			faults = append(faults, fmt.Sprintf("%s: %s %s", message.Type, message.Source, message.Text))
		}
	}
}

func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatalf("chromium: %v", err)
	}
}

// media sets the theme that the reader prefers, and whether less motion.
func (b *tab) media(scheme string, calm bool) {
	b.t.Helper()
	motion := "no-preference"
	if calm {
		motion = "reduce"
	}
	b.do(func(ctx context.Context, tt *chromedp.Target) (chromedp.Void, error) {
		return chromedp.Void{}, tt.Call(ctx, emulation.SetEmulatedMedia.Method, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{
				{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: motion},
			}}, nil)
	})
}

// eval evaluates an expression, or what a promise comes to.
func eval[T any](b *tab, js string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	got, err := chromedp.Run(ctx, chromedp.Evaluate[T](js, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("chromium: %v in %s", err, js)
	}
	return got
}

// until waits in the page for an expression to become true. (chromedp.Poll
// compiles a string in the page, which its policy forbids.)
func (b *tab) until(js string) {
	b.t.Helper()
	seen := eval[string](b, fmt.Sprintf(`new Promise((resolve) => {
		const end = performance.now() + %d;
		const look = () => {
			let met = false;
			try { met = %s; } catch { /* what it looks at is not there yet */ }
			if (met) resolve("");
			else if (performance.now() > end) resolve("the page shows: " + document.body.innerText);
			else setTimeout(look, 20);
		};
		look();
	})`, (patience-5*time.Second).Milliseconds(), js))
	if seen != "" {
		b.t.Fatalf("never true: %s\n%s", js, seen)
	}
}

// movableClock runs before any script of a page, and lets its clock be moved on: what it
// counts and waits by, not the browser's own animations and time limits. It is moved between
// two requests, for one that takes a minute has the page leave the gateway in peace.
const movableClock = `{
	const now = performance.now.bind(performance), sleep = setTimeout.bind(window), wake = clearTimeout.bind(window), timers = new Map();
	const ask = fetch.bind(window);
	let last = 0, ahead = 0, asked = 0;
	window.fetch = async (...what) => {
		asked++;
		const over = () => sleep(() => asked--, 30); // the page is yet to look at the clock
		try {
			const response = await ask(...what);
			const streams = response.headers.get("Content-Type")?.startsWith("text/event-stream");
			(streams ? Promise.resolve() : response.clone().arrayBuffer()).then(over, over); // its body is read
			return response;
		} catch (error) {
			over();
			throw error;
		}
	};
	window.moveOn = (ms) => new Promise((resolve) => {
		const look = () => {
			if (asked > 0) return void sleep(look, 5);
			ahead += ms;
			resolve(true);
		};
		look();
	});
	performance.now = () => now() + ahead;
	window.setTimeout = (run, ms = 0, ...args) => {
		const id = ++last, due = performance.now() + ms;
		const look = () => {
			const left = due - performance.now();
			if (left > 0) return void timers.set(id, sleep(look, Math.min(left, 20)));
			timers.delete(id);
			run(...args);
		};
		timers.set(id, sleep(look, Math.min(ms, 20)));
		return id;
	};
	window.clearTimeout = (id) => {
		wake(timers.get(id));
		timers.delete(id);
	};
}`

// clock has the clock of the pages that are opened from now on be moved by advance.
func (b *tab) clock() {
	b.t.Helper()
	b.first(movableClock)
}

// advance moves the clocks of the store and of the page.
func (b *tab) advance(g *gateway, d time.Duration) {
	b.t.Helper()
	g.advance(d)
	eval[bool](b, fmt.Sprintf(`moveOn(%d)`, d.Milliseconds()))
}

func (b *tab) text(selector string) string {
	b.t.Helper()
	return eval[string](b, fmt.Sprintf(`document.querySelector(%q)?.innerText ?? "nothing at " + %[1]q`, selector))
}

// shoot writes a picture of the window if FENCEPOST_SCREENSHOTS names a directory.
func (b *tab) shoot(name string) {
	b.t.Helper()
	dir := os.Getenv("FENCEPOST_SCREENSHOTS")
	if dir == "" {
		return
	}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// roles returns what the accessibility tree holds, each as "role name".
func (b *tab) roles() map[string]bool {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	tree, err := chromedp.Call(ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	if err != nil {
		b.t.Fatal(err)
	}
	got := map[string]bool{}
	for _, node := range tree.Nodes {
		if node.Role != nil && node.Name != nil && !node.Ignored {
			got[strings.Trim(string(node.Role.Value), `"`)+" "+strings.Trim(string(node.Name.Value), `"`)] = true
		}
	}
	return got
}
