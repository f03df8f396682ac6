package web_test

import (
	"strings"
	"testing"
	"time"

	"fencepost/internal/proxytest"
	"fencepost/internal/redis/redistest"
)

// Behind an nginx that has nothing but a proxy_pass the page shows what happens as it happens.
func TestThePageThroughNginx(t *testing.T) {
	t.Parallel()
	g, b := startGateway(t), openTab(t)
	front := redistest.FreeAddr(t)
	proxytest.Nginx(t, front, strings.TrimPrefix(g.origin, "http://"), "")
	through := *g
	through.origin = "http://" + front
	b.live(&through, "/")
	lists, began := g.front.count("list"), time.Now()
	held := g.acquire("orders/42", `{"ttl_ms":3600000}`)
	b.until(row("orders/42"))
	g.release(held)
	b.until(row("orders/42") + ` === null`)
	if n := g.front.count("list") - lists; n > 1+int(time.Since(began)/(20*time.Second)) { // the check of every 20 s
		t.Errorf("it lives by %d lists in place of events", n)
	}
}
