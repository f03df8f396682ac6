package web_test

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"fencepost/internal/redis/redistest"
)

// startProcess starts a gateway's program, and returns when it is ready; stop has it end at once.
func startProcess(t *testing.T, program, address, dir string) (stop func()) {
	t.Helper()
	gateway := exec.Command(program)
	var said bytes.Buffer
	gateway.Stdout, gateway.Stderr = &said, &said
	gateway.Env = append(os.Environ(), "FENCEPOST_LISTEN_ADDR="+address, "FENCEPOST_DATA_DIR="+dir, "FENCEPOST_STORE=embedded")
	if err := gateway.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	stop = func() {
		if !ended {
			ended = true
			_ = gateway.Process.Kill()
			_ = gateway.Wait()
			if t.Failed() {
				t.Logf("the gateway said\n%s", &said)
			}
		}
	}
	t.Cleanup(stop)
	eventually(t, "the gateway is ready", func() bool {
		response, err := http.Get("http://" + address + "/readyz")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return stop
}

// A gateway that was away for long, here by the page's own clock, is asked again every two seconds, so
// the page is live within three of when it is back.
func TestAGatewayThatComesBack(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "gateway")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../cmd/gateway").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	address, dir := redistest.FreeAddr(t), t.TempDir()
	stop := startProcess(t, program, address, dir)
	b := openTab(t)
	response, err := http.Post("http://"+address+"/locks/orders/42", "application/json", strings.NewReader(`{"ttl_ms":3600000}`))
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	b.clock()
	b.do(chromedp.Navigate("http://" + address))
	b.until(is("Live") + ` && ` + row("orders/42"))
	eval[bool](b, `window.tries = [], new MutationObserver(() => {
		const next = document.getElementById("banner-times").textContent.match(/Next try in (\d+)/);
		if (next !== null) tries.push(Number(next[1]));
	}).observe(document.getElementById("banner"), {subtree: true, childList: true, characterData: true}), true`)
	stop()
	b.until(is("Reconnecting") + ` && !document.getElementById("banner").hidden`)
	for range 8 {
		eval[bool](b, `moveOn(3000)`)
		b.until(`window.before !== (window.before = document.getElementById("banner-times").textContent)`)
	}
	if longest := eval[float64](b, `Math.max(...tries)`); longest > 2 {
		t.Errorf("the next try is %v s away", longest)
	}
	startProcess(t, program, address, dir)
	began := eval[float64](b, `performance.now()`)
	b.until(is("Live") + ` && ` + row("orders/42") + ` && document.getElementById("banner").hidden`)
	t.Logf("it is live %.1f s later", (eval[float64](b, `performance.now()`)-began)/1000)
}
