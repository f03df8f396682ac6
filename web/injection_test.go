package web_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"fencepost/internal/fencing"
)

// Owners and metadata are text on the page, whatever they say: 200 texts that are more
// than text elsewhere, of which some no gateway would take. None runs, opens a dialog or
// asks another site for something (a tab fails its test for that).
func TestInjections(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("../internal/http/testdata/injections.txt")
	if err != nil {
		t.Fatal(err)
	}
	g, b := startGateway(t), openTab(t)
	texts := map[string]string{}
	take := func(name, text string, metadata ...string) {
		entries := map[string]string{}
		for _, text := range metadata {
			entries[text] = "value of " + text
		}
		if _, err := g.store.Do(t.Context(), fencing.AcquireRequest{
			Name: fencing.Name(name), Lease: fencing.NewLeaseID(time.Now()), Stamp: fencing.NewStamp(), Mode: fencing.ModeExclusive, Hold: 1, TTL: time.Hour,
			Owner: text, Metadata: entries,
		}); err != nil {
			t.Fatal(err)
		}
		texts[name] = text
	}
	var all []string
	for line := range strings.Lines(string(content)) {
		var text string
		if err := json.Unmarshal([]byte(line), &text); err != nil {
			t.Fatal(err)
		}
		all = append(all, text)
	}
	for i, text := range all[1:] {
		i++
		if i%fencing.MaxMetadataEntries != 0 {
			take(fmt.Sprintf("inject/%03d", i), text)
		} else { // it has metadata for all up to the next
			take(fmt.Sprintf("inject/%03d", i), text, all[i:min(i+fencing.MaxMetadataEntries, len(all))]...)
		}
	}
	b.do(chromedp.EmulateViewport(1280, 16000)) // all are in view
	b.live(g, "/")
	b.do(chromedp.Click(chromedp.CSS("#more-button")))
	const rows = `document.querySelectorAll("#rows tr").length`
	b.until(rows + ` === 199`)
	take("inject/000", all[0], all[:fencing.MaxMetadataEntries]...) // an event tells of it
	b.until(rows + ` === 200`)
	shown := eval[map[string]string](b, `Object.fromEntries([...document.querySelectorAll("#rows tr")].map((row) => [row.dataset.name, row.querySelector(".owner-text").textContent]))`)
	for name, text := range texts {
		if got := shown[name]; got != text {
			t.Errorf("%s: the owner %q is shown as %q", name, text, got)
		}
	}
	for i := 0; i < len(all); i += fencing.MaxMetadataEntries {
		name := fmt.Sprintf("inject/%03d", i)
		some, _ := json.Marshal(all[i:min(i+fencing.MaxMetadataEntries, len(all))])
		eval[bool](b, fmt.Sprintf(`location.hash = "#/locks/%s", true`, name))
		b.until(fmt.Sprintf(`document.getElementById("detail-name").textContent === %q &&
			%s.every((text) => document.getElementById("detail").textContent.includes("value of " + text))`, name, some))
	}
	for _, text := range []string{all[0], all[4], `"'<&>`} {
		quoted, _ := json.Marshal(text)
		eval[bool](b, fmt.Sprintf(`(() => { const q = document.getElementById("q"); q.value = %s; q.dispatchEvent(new Event("input")); return true; })()`, quoted))
		b.until(fmt.Sprintf(`new URLSearchParams(location.search).get("q") === %s.trim()`, quoted))
	}
	if eval[bool](b, `window.attacked !== undefined`) {
		t.Error("a text was run")
	}
	if got := eval[int](b, `document.querySelectorAll("#rows :is(script, img, svg, iframe, style, link, form, input, object, embed, video, math, details), #detail :is(script, img, svg, iframe, style, link, form, input, object, embed, video, math, details:not(.commands))").length`); got > 0 {
		t.Errorf("%d elements came of texts", got)
	}
}
