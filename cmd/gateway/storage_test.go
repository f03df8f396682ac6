package main

import (
	"slices"
	"testing"
	"time"

	"fencepost/internal/quorum"
)

// What is shown of a store has no user and no password.
func TestLocation(t *testing.T) {
	t.Parallel()
	for store, want := range map[string]string{
		"redis://user:hunter2@redis.internal:6379/3":     "redis://redis.internal:6379/3",
		"rediss://:a@b@redis.internal":                   "rediss://redis.internal",
		"unix://user:hunter2@/run/redis.sock?db=1":       "unix:///run/redis.sock?db=1",
		"redis+sentinel://u:hunter2@a,b:1,c/main/2":      "redis+sentinel://a,b:1,c/main/2",
		"redis+quorum://a,b,c":                           "redis+quorum://a,b,c",
		"redis+cluster://u:hunter2@[fd00::1]:7000,b:700": "redis+cluster://[fd00::1]:7000,b:700",
	} {
		if got := location(store); got != want {
			t.Errorf("%q is shown as %q, want %q", store, got, want)
		}
		if got := hasLogin(store); got != (len(store) != len(want)) {
			t.Errorf("%q has a login: %v", store, got)
		}
	}
	if got := address("rediss://u:p@[fd00::1]:7000/4"); got != "[fd00::1]:7000" {
		t.Errorf("%q", got)
	}
}

// A default TTL that a quorum can't grant would have everybody refused who names none.
func TestQuorumDefaultTTL(t *testing.T) {
	t.Parallel()
	all := func(...string) bool { return true }
	least := quorum.ShortestTTL(time.Second)
	for store, want := range map[string]map[time.Duration]int{
		"redis+quorum://a,b,c": {least: 0, least - time.Millisecond: 1, 30 * time.Second: 0},
		"redis://a":            {least: 0, least - time.Millisecond: 0},
	} {
		for ttl, faults := range want {
			cfg := config{Storage: Storage{Store: store, MaxClockSkew: time.Second, Redis: Redis{Quarantine: "auto"}}, Leases: Leases{DefaultTTL: ttl}}
			if got := cfg.validateStore(all); len(got) != faults {
				t.Errorf("%s, %s: %v", store, ttl, got)
			}
		}
	}
	unread := func(names ...string) bool { return !slices.Contains(names, "DEFAULT_TTL") }
	cfg := config{Storage: Storage{Store: "redis+quorum://a,b,c", MaxClockSkew: time.Second, Redis: Redis{Quarantine: "auto"}}}
	if got := cfg.validateStore(unread); len(got) != 0 {
		t.Errorf("a TTL that could not be read: %v", got)
	}
}

func TestQuarantineSetting(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		off   bool
		lasts time.Duration
		ok    bool
	}{
		"auto": {ok: true}, "off": {off: true, ok: true}, "1s": {lasts: time.Second, ok: true}, "24h": {lasts: 24 * time.Hour, ok: true},
		"999ms": {}, "24h1s": {}, "-5s": {}, "0": {}, "": {}, "Auto": {}, "90": {},
	} {
		cfg := config{Storage: Storage{Redis: Redis{Quarantine: text}}, Leases: Leases{DefaultTTL: 40 * time.Second}}
		got, err := cfg.quarantine()
		if (err == nil) != want.ok {
			t.Errorf("%q: %v", text, err)
		} else if err == nil && (got.Off != want.off || got.For != want.lasts || got.Least != 40*time.Second) {
			t.Errorf("%q: %+v", text, got)
		}
	}
}
