package web_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"fencepost/internal/fencing"
	"fencepost/internal/redis"
	"fencepost/internal/redis/redistest"
)

// A wrong password is told on the page, with what to set, and is gone when it is right.
func TestRefusalOfRedisIsShown(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	defer client.Close()
	if err := client.Do(t.Context(), "acl", "setuser", "default", "resetpass", ">correct").Err(); err != nil {
		t.Fatal(err)
	}
	store, err := redis.Open(t.Context(), redis.Options{URL: server.URL(), Password: "wrong", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	g, b := startGateway(t, func(s *fallibleStore) { s.Store = store }), openTab(t)
	b.do(chromedp.Navigate(g.origin))
	b.until(is("Store unavailable") + ` && document.getElementById("banner-sentence").innerText.includes("it does not accept the password") &&
		document.getElementById("banner-remedy").innerText.includes("set FENCEPOST_REDIS_PASSWORD")`)
	b.shoot("store-refuses")

	if err := client.Do(t.Context(), "acl", "setuser", "default", "resetpass", ">wrong").Err(); err != nil {
		t.Fatal(err)
	}
	b.until(is("Live") + ` && document.getElementById("banner").hidden && document.getElementById("banner-remedy").hidden`)
}

// refusing is a store that refuses whoever asks.
type refusing struct {
	fencing.Store
	fault *fencing.Fault
}

func (s refusing) Check(context.Context) error { return fencing.Unavailable(s.fault) }

func (s refusing) List(context.Context, fencing.ListRequest) (fencing.ListPage, error) {
	return fencing.ListPage{}, fencing.Unavailable(s.fault)
}

// What a server says is text, however long.
func TestRefusalIsText(t *testing.T) {
	t.Parallel()
	const attack = `<img src=x onerror="window.attacked=1">`
	g := startGateway(t, func(s *fallibleStore) {
		s.Store = refusing{s.Store, &fencing.Fault{
			Detail: "it says " + attack, Remedy: "set " + attack, Err: errors.New(strings.Repeat("long", 10000)),
		}}
	})
	for _, scheme := range []string{"light", "dark"} {
		b := openTab(t)
		b.media(scheme, false)
		b.do(chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile), chromedp.Navigate(g.origin))
		b.until(fmt.Sprintf(`document.getElementById("banner-sentence").innerText.includes(%q) && document.getElementById("banner-remedy").innerText.includes(%[1]q)`, attack))
		b.shoot("phone-refuses-" + scheme)
		b.until(`window.attacked === undefined && document.querySelectorAll("#banner img").length === 0`)
		if sideways := eval[float64](b, `document.documentElement.scrollWidth - innerWidth`); sideways > 0 {
			t.Errorf("%s: the page is %v pixels wider than the window", scheme, sideways)
		}
		if high := eval[float64](b, `document.getElementById("banner").offsetHeight`); high > 600 {
			t.Errorf("%s: the banner is %v pixels high", scheme, high)
		}
		for _, text := range eval[[]string](b, contrast) {
			t.Errorf("%s: contrast below 4.5: %s", scheme, text)
		}
	}
}
