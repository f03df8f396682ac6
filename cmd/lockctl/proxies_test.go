package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"fencepost/internal/proxytest"
	"fencepost/internal/redis/redistest"
	"fencepost/verify/system"
)

// Through an nginx that has nothing but a proxy_pass events are shown as they come.
func TestWatchThroughNginx(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	front := redistest.FreeAddr(t)
	proxytest.Nginx(t, front, s.Gateways[0].Addr(), "")
	watch := exec.Command("lockctl", "watch", "seen/")
	watch.Env = append(os.Environ(), "FENCEPOST=http://"+front, "no_proxy=*")
	out, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	seen := make(chan bool, 1)
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() && !strings.Contains(lines.Text(), "seen/") {
		}
		seen <- strings.Contains(lines.Text(), "seen/")
	}()
	defer watch.Wait()
	defer watch.Process.Kill()
	if err := streaming(s.Gateways[0].URL()); err != nil {
		t.Fatal(err)
	}
	if status, out := lockctl(t, []string{"FENCEPOST=" + s.Gateways[0].URL(), "no_proxy=*"}, "run", "seen/it", "--", "true"); status != 0 {
		t.Fatal(status, out)
	}
	select {
	case is := <-seen:
		if !is {
			t.Error("it has ended, and nothing was shown")
		}
	case <-time.After(atMost):
		t.Error("nothing is shown")
	}
}

// streaming waits until a gateway tells somebody of events.
func streaming(gateway string) error {
	var last string
	for deadline := time.Now().Add(atMost); time.Now().Before(deadline); <-time.After(10 * time.Millisecond) {
		response, err := http.Get(gateway + "/metrics")
		if err != nil {
			return err
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			return err
		}
		if last = string(body); strings.Contains(last, "fencepost_http_streams{kind=\"events\"} 1\n") {
			return nil
		}
	}
	return fmt.Errorf("nobody watches: %s", last)
}
