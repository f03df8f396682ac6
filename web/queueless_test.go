package web_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"

	"fencepost/internal/fencing"
)

// queueless is a store without queues.
type queueless struct{ fencing.Store }

func (s queueless) List(ctx context.Context, r fencing.ListRequest) (fencing.ListPage, error) {
	if r.Waiting {
		return fencing.ListPage{}, &fencing.Error{Code: fencing.CodeUnsupportedByStore, Detail: "it has no queues"}
	}
	return s.Store.List(ctx, r)
}

// Where there are no queues nobody waits, and how many are held is not told from that.
func TestStoreWithoutQueues(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t, func(s *fallibleStore) { s.Store = queueless{s.Store} }), openTab(t)
	for i := range 120 {
		g.acquireBehind(fmt.Sprintf("job/%03d", i), "ann")
	}
	b.live(g, "/")
	b.until(saidOf("waited") + ` === "This store has no queues." && ` + figure("held") + ` === "120"`)
	b.do(chromedp.Click(chromedp.CSS(`#filters [name="waited"]`)))
	b.until(`location.search.includes("waited") && ` + drawn + ` === 0 && !document.getElementById("empty").hidden`)
	b.until(is("Live") + ` && ` + figure("held") + ` === "\u2013"`)
}
