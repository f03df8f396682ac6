package redis

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

func code(err error) fencing.Code {
	var e *fencing.Error
	switch {
	case err == nil:
		return fencing.CodeOK
	case errors.As(err, &e):
		return e.Code
	}
	return "not a fencing.Error"
}

func wantCode(t *testing.T, what string, err error, want fencing.Code) {
	t.Helper()
	if code(err) != want {
		t.Errorf("%s: got %v, want code %s", what, err, want)
	}
}

// A broken token is remembered until the record is forgotten, to the microsecond.
func TestForgetting(t *testing.T) {
	b := openBackend(t, redistest.Start(t))
	s := b.stores[0]
	got, err := s.Acquire(t.Context(), acquireRequest("a"))
	wantCode(t, "acquire", err, fencing.CodeOK)
	breaking := fencing.BreakRequest{Name: "a", Token: got.Holder.Token}
	_, err = s.Break(t.Context(), breaking)
	wantCode(t, "break", err, fencing.CodeOK)
	b.SetTime(epoch.Add(fencing.ForgetAfter) - 1)
	_, err = s.Break(t.Context(), breaking)
	wantCode(t, "break again in time", err, fencing.CodeOK)
	b.SetTime(epoch.Add(fencing.ForgetAfter))
	_, err = s.Break(t.Context(), breaking)
	wantCode(t, "break again too late", err, fencing.CodeStaleToken)
	if n := s.client.Exists(t.Context(), s.keys[partitionOf("a")].lock("a")).Val(); n != 0 {
		t.Error("the forgotten record is still there")
	}
}

// Keys that nobody holds go by themselves, and those that matter don't.
func TestKeysEnd(t *testing.T) {
	b := openBackend(t, redistest.Start(t))
	s, ctx := b.stores[0], t.Context()
	r := acquireRequest("a")
	_, err := s.Acquire(ctx, r)
	wantCode(t, "acquire", err, fencing.CodeOK)
	k := &s.keys[partitionOf("a")]
	if ttl := s.client.TTL(ctx, k.lock("a")).Val(); ttl != -1 {
		t.Errorf("a held record has the TTL %s: it would vanish with the lease", ttl)
	}
	_, err = s.Release(ctx, fencing.ReleaseRequest{Name: "a", Lease: r.Lease})
	wantCode(t, "release", err, fencing.CodeOK)
	if ttl := s.client.PTTL(ctx, k.lock("a")).Val(); ttl < fencing.ForgetAfter-time.Minute || ttl > fencing.ForgetAfter {
		t.Errorf("a free record has the TTL %s, want about %s", ttl, fencing.ForgetAfter)
	}
	if ttl := s.client.PTTL(ctx, k.ended("a", r.Lease.Public())).Val(); ttl < fencing.TombstoneTTL-time.Minute || ttl > fencing.TombstoneTTL {
		t.Errorf("a tombstone has the TTL %s, want about %s", ttl, fencing.TombstoneTTL)
	}
	keys := s.client.Keys(ctx, "*").Val()
	if len(keys) != 4 { // record, tombstone, counter, meta; no index entry
		t.Errorf("left behind: %q", keys)
	}
}

// Lua and Go agree on the constants and speak one vocabulary.
func TestScriptWords(t *testing.T) {
	constants := readSource("record") + readSource("acquire")
	for name, want := range map[string]int64{
		"TOMBSTONE_TTL":  fencing.TombstoneTTL.Microseconds(),
		"FORGET_AFTER":   fencing.ForgetAfter.Microseconds(),
		"MAX_FLOOR_LEAD": fencing.MaxFloorLead.Microseconds(),
		"MAX_TOKEN":      int64(fencing.MaxToken),
	} {
		if !strings.Contains(constants, "local "+name+" = "+fencing.Token(want).String()+" ") {
			t.Errorf("the scripts: %s is not %d", name, want)
		}
	}

	finish := regexp.MustCompile(`(?:finish\(|reply\(|return |skewed and |or )'([a-z_]+)'[ ,)\n]`)
	because := regexp.MustCompile(`(?:detail =|detail ==|reason ==|end_lease\() ?'([a-z_]+)(?:\\n)?'`)
	files, err := os.ReadDir("scripts")
	if err != nil {
		t.Fatal(err)
	}
	codes, reasons := map[fencing.Code]bool{}, map[fencing.Reason]bool{}
	for _, file := range files {
		source := readSource(strings.TrimSuffix(file.Name(), ".lua"))
		source = regexp.MustCompile(`(?m)^local .*flags, ended, detail = .*$`).ReplaceAllString(source, "") // flags are no codes
		for _, m := range finish.FindAllStringSubmatch(source, -1) {
			codes[fencing.Code(m[1])] = true
		}
		for _, m := range because.FindAllStringSubmatch(source, -1) {
			reasons[fencing.Reason(m[1])] = true
		}
		if verb := file.Name(); !slices.Contains([]string{"prelude.lua", "record.lua", "lost.lua", "own.lua"}, verb) && !strings.HasPrefix(source, "#!lua") {
			t.Errorf("%s does not start with #!lua: Redis would run it on a replica", verb)
		}
	}
	for code := range codes {
		if code != fencing.CodeOK && !slices.Contains(fencing.Codes(), code) {
			t.Errorf("the scripts use the code %q, which is none", code)
		}
	}
	for reason := range reasons {
		if !slices.Contains(fencing.Reasons(), reason) && reason != reasonFloor && reason != reasonExhausted {
			t.Errorf("the scripts use the reason %q, which is none", reason)
		}
	}
	if len(codes) != 5 || len(reasons) != 7 {
		t.Errorf("found the codes %v and the reasons %v: the search is blind", codes, reasons)
	}
}

func TestPartitionOf(t *testing.T) {
	// FNV-1a as published: these must never change, or data is not found again.
	for name, want := range map[fencing.Name]int{"": 2166136261 % 256, "a": 0xe40c292c % 256, "foobar": 0xbf9cf968 % 256} {
		if got := partitionOf(name); got != want {
			t.Errorf("partitionOf(%q) = %d, want %d", name, got, want)
		}
	}
}
