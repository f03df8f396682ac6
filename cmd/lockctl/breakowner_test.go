package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/client"
	"fencepost/verify/system"
)

// TestBreakOwner: all leases of a host are broken, more than a page of locks and more holders than
// a list shows of a name, and nobody else's.
func TestBreakOwner(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	gateway := s.Gateways[0].URL()
	c, err := client.New(client.Options{Addresses: []string{gateway}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	acquire := func(name, owner string, options ...client.Option) int64 {
		t.Helper()
		l, err := c.TryAcquire(t.Context(), name, append(options, client.Owner(owner), client.NotRenewed(), client.TTL(10*time.Minute))...)
		if err != nil {
			t.Fatal(err)
		}
		return l.Token()
	}
	for i := range 130 {
		acquire(fmt.Sprintf("many/%03d", i), fmt.Sprint("dead:", i))
	}
	for i := range 40 { // the first ten are not the dead one's
		owner := "alive:1"
		if i >= 30 {
			owner = "dead:7"
		}
		acquire("permits", owner, client.Permit(100))
	}
	acquire("other/1", "dead2:1")
	acquire("other/2", "undead:1")
	acquire("other/3", "dead")
	owners := func() (all []string) {
		for l, err := range c.List(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			if l.HolderCount > len(l.Holders) {
				if l, err = c.Inspect(t.Context(), l.Name); err != nil {
					t.Fatal(err)
				}
			}
			for _, h := range l.Holders {
				all = append(all, h.Owner)
			}
		}
		return all
	}
	lockctl := func(want int, args ...string) string {
		t.Helper()
		status, out := lockctl(t, []string{"FENCEPOST=" + gateway, "no_proxy=*"}, args...)
		if status != want {
			t.Errorf("%q: status %d, want %d: %s", args, status, want, out)
		}
		return out
	}
	before := len(owners())
	if out := lockctl(exitUsage, "break", "-owner", "dead"); !strings.Contains(out, "-yes") || strings.Count(out, "dead") != 141 || len(owners()) != before {
		t.Errorf("without a terminal: %s", out)
	}
	lockctl(0, "break", "-owner", "dead", "-prefix", "many/00", "-yes", "-reason", "host is dead")
	if n := len(owners()); n != before-10 {
		t.Errorf("with a prefix: %d of %d are left", n, before)
	}
	if out := lockctl(0, "history", "many/000"); !strings.Contains(out, "broken: host is dead") {
		t.Errorf("history: %s", out)
	}
	if out := lockctl(0, "break", "-owner", "dead", "-yes", "-o", "json"); strings.Count(out, `"broken":true`) != 131 {
		t.Errorf("json: %s", out)
	}
	left := owners()
	if len(left) != 32 || slices.ContainsFunc(left, func(owner string) bool { return isOf(owner, "dead") }) {
		t.Errorf("left are %q", left)
	}
	if out := lockctl(0, "break", "-owner", "dead", "-yes"); !strings.Contains(out, "no lease belongs to dead") {
		t.Errorf("none left: %s", out)
	}
	if out := lockctl(0, "break", "-owner", "alive", "-notice", "1m", "-yes"); strings.Count(out, "alive:1 gets notice") != 30 {
		t.Errorf("with notice: %s", out)
	}
	for _, args := range [][]string{{"break", "-owner", "x", "a", "1"}, {"break", "-yes", "a", "1"}, {"break", "-prefix", "a", "a", "1"}, {"break"}, {"break", "a"}} {
		lockctl(exitUsage, args...)
	}
}

// TestBreakOwnerInPart: what is not broken is said of each, and is a failure; a lease that has ended
// by itself meanwhile is none, and the one that was granted after it stays.
func TestBreakOwnerInPart(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	to, err := url.Parse(s.Gateways[0].URL())
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Options{Addresses: []string{to.String()}, Owner: "dead:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	leases := map[string]*client.Lease{}
	for _, name := range []string{"a", "b", "c"} {
		if leases[name], err = c.TryAcquire(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodDelete && r.URL.Path == "/locks/a": // as of a key that may not
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"status":403,"code":"forbidden","detail":"not this name"}`)
			return
		case r.Method == http.MethodDelete && r.URL.Path == "/locks/b": // it ends, and is granted anew
			if err := leases["b"].Release(r.Context()); err != nil {
				t.Error(err)
			}
			if _, err := c.TryAcquire(r.Context(), "b"); err != nil {
				t.Error(err)
			}
		}
		r.Host = to.Host
		proxy.ServeHTTP(w, r)
	}))
	defer front.Close()
	var out, errOut bytes.Buffer
	status := run(t.Context(), []string{"break", "-gateway", front.URL, "-owner", "dead", "-yes"}, &out, &errOut)
	want := regexp.MustCompile(`(?s)^lockctl: a: the lease \d+ was not broken: forbidden.*\nlockctl: b: the lease \d+ had already ended\nlockctl: 1 of 3 leases were not broken\n$`)
	if status != exitFailed || !want.MatchString(errOut.String()) || !regexp.MustCompile(`\nc: the lease \d+ was broken\n$`).MatchString(out.String()) {
		t.Errorf("status %d: %s%s", status, &out, &errOut)
	}
	for name, held := range map[string]bool{"a": true, "b": true, "c": false} {
		if l, err := c.Inspect(t.Context(), name); err != nil || l.Held != held {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
	}
}

func TestIsOf(t *testing.T) {
	for owner, want := range map[string]bool{"host1": true, "host1:1": true, "host1:": true, "host10:1": false, "Host1:1": false, "host": false, "": false, "a host1:1": false} {
		if isOf(owner, "host1") != want {
			t.Errorf("%q: %t", owner, !want)
		}
	}
}
