package system

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"
)

// Two versions of the gateway whose libraries differ decide beside each other in one Redis: each by its own rules, and neither grants what
// the other has granted, while gateways are replaced and killed.
func TestSystemLibrariesBesideEachOther(t *testing.T) {
	path, err := filepath.Abs("../../internal/redis/library/acquire.lua")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const before = "\n  p = asked\n"
	if strings.Count(string(source), before) != 1 {
		t.Fatalf("%s has no single line %q", path, before)
	}
	changed := strings.Replace(string(source), before, before+"  if asked[TTL] > 5 * 60 * 1000000 then\n    return invalid('hold', 0)\n  end\n", 1)
	one := Build{LDFlags: "-X main.version=v1"}
	other := Build{LDFlags: "-X main.version=v3", Overlay: overlaid(t, path, changed)}

	u := startUpgrade(t, Redis, 2, one)
	u.may() // the other refuses what this one grants
	more, stop := u.load()
	more(3)
	first, last := u.Gateways[0], u.Gateways[1]
	decides := func(g *Gateway, status int) {
		t.Helper()
		u.eventually("it decides by its own rules", func() (bool, string) {
			a := u.ask(g, http.MethodPost, u.fresh(), "", tenMinutes, status)
			return a.Status == status, a.String()
		})
	}
	u.replace(last, other)
	decides(first, http.StatusCreated)
	decides(last, http.StatusBadRequest)
	more(3)
	client := u.Servers[0].Client()
	t.Cleanup(func() { client.Close() })
	libraries, err := client.FunctionList(t.Context(), goredis.FunctionListQuery{LibraryNamePattern: "fencepost_*"}).Result()
	if err != nil || len(libraries) != 2 {
		t.Errorf("libraries %+v, %v, want two", libraries, err)
	}
	for _, g := range []*Gateway{last, first} {
		if err := g.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := g.Start(); err != nil {
			t.Fatal(err)
		}
		decides(first, http.StatusCreated)
		decides(last, http.StatusBadRequest)
	}
	if err := client.FunctionFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	decides(first, http.StatusCreated)
	decides(last, http.StatusBadRequest)
	more(3)
	stop()
	u.kept()
	u.replace(first, other)
	u.replace(last, one) // and back
	decides(first, http.StatusBadRequest)
	decides(last, http.StatusCreated)
	u.kept()
}
