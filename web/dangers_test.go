package web_test

import (
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"fencepost/internal/fencing"
)

var badly = []fencing.Finding{
	{Node: "10.0.0.1:6379", Check: "role", OK: true, Detail: "this is a master"},
	{Node: "10.0.0.1:6379", Check: "eviction", Promise: "P1", Detail: "when memory is full, leases are dropped while their holders still believe they have them: maxmemory-policy is allkeys-lru", Remedy: "maxmemory-policy noeviction"},
	{Node: "10.0.0.2:6379", Check: "eviction", Promise: "P1", Detail: "when memory is full, leases are dropped while their holders still believe they have them: maxmemory-policy is allkeys-lru", Remedy: "maxmemory-policy noeviction"},
	{Node: "10.0.0.2:6379", Check: "replicas", Detail: "no replica follows this master: none can take its place", Remedy: "add a replica, or bring it back"},
	{Node: "10.0.0.2:6379", Check: "clock", Promise: "P1, P2", Detail: "its clock is <b>3s</b> ahead of this gateway's", Remedy: "synchronise both clocks"},
}

// setUp makes the store one that is set up badly.
func setUp(findings []fencing.Finding) func(*fallibleStore) {
	return func(s *fallibleStore) { s.findings.Store(&findings) }
}

func TestDangersAreShown(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t, setUp(badly)), openTab(t)
	populate(g)
	b.live(g, "/")
	b.until(`!document.getElementById("dangers").hidden && document.getElementById("quarantine").hidden`)
	text := b.text("#dangers")
	for _, want := range []string{
		"2 findings about the store endanger what locks promise.",
		"One live lease: When memory is full, leases are dropped while their holders still believe they have them: maxmemory-policy is allkeys-lru. This is about 10.0.0.1:6379, 10.0.0.2:6379.",
		"To change: maxmemory-policy noeviction",
		"One live lease, Growing tokens: Its clock is <b>3s</b> ahead of this gateway's. This is about 10.0.0.2:6379.",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if strings.Contains(text, "grants nothing") {
		t.Errorf("this gateway grants:\n%s", text)
	}
	if strings.Contains(text, "no replica") || strings.Contains(text, "master") {
		t.Errorf("what endangers nothing is shown:\n%s", text)
	}
	if roles := b.roles(); !roles["region What endangers the locks"] || !roles["status "] || !roles["listitem "] {
		t.Errorf("the dangers are not in the accessibility tree: %v", roles)
	}
	b.until(`document.querySelector("#dangers [role=status]").innerText !== ""`)
	for _, text := range eval[[]string](b, contrast) {
		t.Errorf("contrast below 4.5: %s", text)
	}
	b.shoot("dangers")
	b.media("dark", false)
	for _, text := range eval[[]string](b, contrast) {
		t.Errorf("dark: contrast below 4.5: %s", text)
	}
	b.shoot("dangers-dark")

	// What is repaired goes when the page has lost and found the gateway.
	eval[bool](b, `document.querySelector("#dangers li").mark = "same", true`)
	remaining := badly[:2]
	g.store.findings.Store(&remaining)
	g.examined("10.0.0.2", false)
	g.door.Shut()
	b.until(is("Reconnecting"))
	g.door.Reopen()
	b.until(`document.querySelectorAll("#dangers li").length === 1 && document.getElementById("dangers-sentence").innerText.startsWith("The setup of the store")`)
	none := badly[:1]
	g.store.findings.Store(&none)
	g.examined("eviction", false)
	b.do(chromedp.Reload())
	b.until(is("Live") + ` && document.getElementById("dangers").hidden`)
}

// examined waits until what is known of the store holds a text, or does not.
func (g *gateway) examined(text string, holds bool) {
	g.t.Helper()
	eventually(g.t, "the store is examined", func() bool { return strings.Contains(g.readiness(), text) == holds })
}

func TestStrictGatewaySaysThatItGrantsNothing(t *testing.T) {
	t.Parallel()
	g := startGateway(t, setUp(badly), func(s *fallibleStore) { s.strict = true })
	b := openTab(t)
	b.live(g, "/")
	b.until(`document.getElementById("dangers-sentence").innerText.endsWith("what locks promise. This gateway grants nothing until this is put right.")`)
}

func TestEmptyPageInQuarantine(t *testing.T) {
	t.Parallel()
	until := time.Now().Add(time.Hour)
	g, b := startGateway(t, func(s *fallibleStore) { s.quarantine.Store(&until) }), openTab(t)
	b.clock()
	b.live(g, "/")
	b.until(`/^No new leases are granted for at most another 59.min \d\d.s\.$/.test(document.querySelector("#empty .held").innerText)`)
	b.shoot("empty-quarantine")
	b.advance(g, time.Hour)
	b.until(`document.querySelector("#empty .held").hidden`)
}

func TestQuarantineIsShownUntilItEnds(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	b.clock()
	g.acquire("orders/42", `{"ttl_ms":86400000}`)
	b.live(g, "/")
	b.until(`document.getElementById("store").textContent.startsWith("The store answered") && document.getElementById("quarantine").hidden`)
	until := g.store.clock().Add(time.Hour)
	g.store.quarantine.Store(&until)
	b.advance(g, 30*time.Second) // so often the page looks
	b.until(`!document.getElementById("quarantine").hidden && document.getElementById("dangers").hidden`)
	text := b.text("#quarantine")
	if !strings.Contains(text, "no new ones are granted for now. Leases that it still has can be renewed.") || !strings.Contains(text, "For at most 59") {
		t.Errorf("%s", text)
	}
	b.shoot("quarantine")
	b.advance(g, until.Sub(g.store.clock())-time.Minute)
	b.until(`/For at most 5\d.s/.test(document.getElementById("quarantine-left").innerText)`)
	b.advance(g, 20*time.Second)
	b.until(`/For at most 3\d.s/.test(document.getElementById("quarantine-left").innerText) && !document.getElementById("quarantine").hidden`)
	b.advance(g, 40*time.Second)
	b.until(`document.getElementById("quarantine").hidden`)
	if early := until.Sub(g.store.clock()); early > 0 {
		t.Errorf("the quarantine is not shown any more, %s before its end", early)
	}
	if n := g.front.count("readyz"); n > 8 {
		t.Errorf("the page asked %d times for an hour's quarantine of which it sees some seconds", n)
	}
}
