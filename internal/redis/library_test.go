package redis

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"

	goredis "github.com/redis/go-redis/v9"
)

// A server that is told the rules anew, or forgets them, runs them; libraries of other
// versions that nobody has used for long are deleted, and no others.
func TestLibraries(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	defer client.Close()
	libraries := func() (names []string) {
		all, err := client.FunctionList(t.Context(), goredis.FunctionListQuery{}).Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range all {
			names = append(names, l.Name)
		}
		slices.Sort(names)
		return names
	}
	for i, name := range []string{"fencepost_new", "fencepost_old", "others"} {
		source := fmt.Sprintf("#!lua name=%s\nredis.register_function('f%d', function() return 1 end)", name, i)
		if err := client.FunctionLoad(t.Context(), source).Err(); err != nil {
			t.Fatal(err)
		}
	}
	clock := &movedClock{}
	s := open(t, Options{URL: server.URL(), MaxSkew: 30 * 24 * time.Hour, Clock: clock.time})
	mustAcquire(t, s, acquireRequest("a"))
	want := []string{rules().name, "fencepost_new", "fencepost_old", "others"}
	slices.Sort(want)
	until(t, func() bool { return client.HExists(t.Context(), s.keys[0].libraries, "fencepost_old").Val() })
	if got := libraries(); !slices.Equal(got, want) {
		t.Errorf("libraries %q, want %q", got, want)
	}
	clock.move(libraryTTL - time.Minute)
	now := clock.time().UnixMilli()
	client.HSet(t.Context(), s.keys[0].libraries, "fencepost_new", now)
	clock.move(2 * time.Hour)
	want = slices.DeleteFunc(want, func(name string) bool { return name == "fencepost_old" })
	until(t, func() bool { return slices.Equal(libraries(), want) })

	if err := client.FunctionFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	out, err := s.Do(t.Context(), fencing.InspectRequest{Name: "a"})
	if err != nil || !slices.Equal(libraries(), []string{rules().name}) {
		t.Errorf("%+v, %v: %q", out, err, libraries())
	}
}

// Where memory is full the library can't be loaded, and what frees memory is run
// nevertheless; a call that also grants is divided.
func TestFullMemory(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	defer client.Close()
	s := open(t, Options{URL: server.URL()})
	held := acquireRequest("a")
	mustAcquire(t, s, held)
	client.FunctionFlush(t.Context())
	client.ConfigSet(t.Context(), "maxmemory", "1")
	next := acquireRequest("b")
	grant := s.newAcquireCommand(&next)
	free := s.newCommand(operation{verb: releaseVerb, name: "a", lease: held.Lease.Public(), secret: held.Lease.Hash()}, nil)
	s.sender.send(s.topology.nodes()[0], []*command{grant, free})
	if r, err := s.result(free); err != nil || r.code != fencing.CodeOK || len(r.ended) != 1 {
		t.Errorf("a release: %+v, %v", r, err)
	}
	if _, err := s.result(grant); !goredis.HasErrorPrefix(err, "OOM") {
		t.Errorf("a grant: %v", err)
	}
}

// A name in capitals that stands for nothing is found when the program starts.
func TestFill(t *testing.T) {
	got := fill("h[HEADER_SENT] -- NOTHING\n'NOTHING' .. redis.REPL_NONE", constants())
	if want := "h[1] -- NOTHING\n'NOTHING' .. redis.REPL_NONE"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	defer func() {
		if recover() == nil {
			t.Error("a constant that there is not is filled in")
		}
	}()
	fill("h[NOTHING]", constants())
}

// A server that has no Functions for the user is asked for them again, for that may
// change.
func TestFunctionsAllowedLater(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	defer client.Close()
	clock := &movedClock{}
	s := open(t, Options{URL: server.URL(), MaxSkew: 24 * time.Hour, Clock: clock.time})
	runs := func(command string) bool {
		client.ConfigResetStat(t.Context())
		_, err := s.Do(t.Context(), fencing.InspectRequest{Name: "a"})
		wantCode(t, "inspect", err, fencing.CodeOK)
		return strings.Contains(client.Info(t.Context(), "commandstats").Val(), "cmdstat_"+command+":")
	}
	acl := func(rule string) {
		if err := client.Do(t.Context(), "acl", "setuser", "default", rule).Err(); err != nil {
			t.Fatal(err)
		}
	}
	acl("-fcall")
	if !runs("evalsha") || runs("fcall") {
		t.Error("no script is run for a user without Functions")
	}
	acl("+fcall")
	clock.move(scriptsFor)
	if !runs("fcall") || runs("evalsha") {
		t.Error("a script is run where there are Functions again")
	}
}

// What can't be written is not sent as something else.
func TestTextWithZeroByte(t *testing.T) {
	s := open(t, Options{URL: redistest.Start(t).URL()})
	mustAcquire(t, s, acquireRequest("a"))
	if out, err := s.Do(t.Context(), fencing.InspectRequest{Name: "a\x00b"}); err == nil {
		t.Errorf("another name was looked at: %+v", out.Lock)
	}
}

// Whatever Redis is told has a name of its own, the flags of the functions included.
func TestLibraryNameCoversAll(t *testing.T) {
	sum := sha1.Sum([]byte(strings.ReplaceAll(rules().source, rules().name, "")))
	if want := "fencepost_" + hex.EncodeToString(sum[:6]); rules().name != want {
		t.Errorf("the library is %s, want %s", rules().name, want)
	}
}
