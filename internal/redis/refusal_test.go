package redis

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// What a real Redis refuses is told as what it is, with what to set, and clients hear
// neither of it nor of a network that is to blame.
func TestFaults(t *testing.T) {
	plain, locked := redistest.Start(t), redistest.Start(t, "--requirepass", "hunter2")
	client := plain.Client()
	for user, rules := range map[string][]any{
		"commands": {"~*", "&*", "+@all", "-fcall", "-evalsha", "-eval"},
		"keys":     {"~other:*", "&*", "+@all"},
		"channels": {"~*", "resetchannels", "+@all"},
	} {
		if err := client.Do(t.Context(), append([]any{"ACL", "SETUSER", user, "on", ">x"}, rules...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	client.Close()
	replica := redistest.Start(t, "--replicaof", "127.0.0.1 1")
	alone := redistest.Start(t, "--cluster-enabled", "yes")
	full := redistest.Start(t)
	client = full.Client()
	if err := client.ConfigSet(t.Context(), "maxclients", "1").Err(); err != nil { // it is the one
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	sentinels := redistest.StartSentinel(t, 0, 1)
	secure := redistest.Start(t, redistest.NewAuthority(t, "127.0.0.1").Args()...)
	as := func(user string) string { return strings.Replace(plain.URL(), "://", "://"+user+":x@", 1) }
	for _, tt := range []struct{ what, url, password, remedy string }{
		{"a wrong password", locked.URL(), "hunter3", "FENCEPOST_REDIS_PASSWORD"},
		{"no password", locked.URL(), "", "FENCEPOST_REDIS_PASSWORD"},
		{"a wrong password in the URL", strings.Replace(locked.URL(), "://", "://:x@", 1), "", "the password in FENCEPOST_STORE"},
		{"a user that does not exist", as("nobody"), "", "(and the user)"},
		{"a command", as("commands"), "", "ACL SETUSER"},
		{"a key", as("keys"), "", "ACL SETUSER"},
		{"a replica", replica.URL(), "", "name the master"},
		{"a node of a Cluster", alone.URL(), "", "redis+cluster://"},
		{"no Cluster", strings.Replace(plain.URL(), "redis://", "redis+cluster://", 1), "", "use redis://"},
		{"too many clients", full.URL(), "", "maxclients"},
		{"a Sentinel", "redis://" + sentinels.Sentinels()[0].Addr(), "", "redis+sentinel://"},
		{"no Sentinel", "redis+sentinel://" + plain.Addr() + "/main", "", "this is not a Sentinel"},
		{"another name", "redis+sentinel://" + sentinels.Sentinels()[0].Addr() + "/other", "", "SENTINEL MASTERS"},
		{"an authority that is not known", secure.URL(), "", "FENCEPOST_REDIS_TLS_CA_FILE"},
		{"TLS for a port without", strings.Replace(plain.URL(), "redis:", "rediss:", 1), "", "redis instead of rediss"},
		{"no TLS for a port with", strings.Replace(secure.URL(), "rediss:", "redis:", 1), "", "rediss instead of redis"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			s, err := Open(t.Context(), Options{URL: strings.TrimSuffix(tt.url, "/0"), Password: tt.password, Logger: quiet})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			err = s.Check(t.Context())
			f := fencing.FaultOf(err)
			if f == nil || !strings.Contains(f.Remedy, tt.remedy) || strings.Contains(f.Error(), "hunter") {
				t.Fatalf("%v", err)
			}
			if e, ok := errors.AsType[*fencing.Error](err); !ok || e.Code != fencing.CodeUnavailable ||
				strings.Contains(e.Detail, "reached") || strings.Contains(e.Detail, f.Detail) {
				t.Errorf("clients are told %v", err)
			}
		})
	}
}

// A user who may not hear messages can do all else: the examination tells it.
func TestNoChannels(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	defer client.Close()
	if err := client.Do(t.Context(), "ACL", "SETUSER", "deaf", "on", ">x", "~*", "resetchannels", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	s := open(t, Options{URL: strings.Replace(server.URL(), "://", "://deaf:x@", 1)})
	defer s.Watch(silence{})()
	for deadline := time.Now().Add(10 * time.Second); ; {
		findings, err := s.Examine(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(findings, func(f fencing.Finding) bool {
			return f.Check == checkAccess && !f.OK && strings.Contains(f.Remedy, "channels")
		}) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", findings)
		}
	}
}

// Redis is in protected mode only for who is not on its machine, where no test is.
func TestProtectedMode(t *testing.T) {
	said := errors.New("DENIED Redis is running in protected mode because protected mode is enabled and no password is set for the default user.")
	for _, kind := range []string{kindRedis, kindSentinel, kindCluster} {
		top := &topology{location: &location{kind: kind}}
		if f := fencing.FaultOf(top.diagnose(said)); f == nil || !strings.Contains(f.Remedy, "requirepass") {
			t.Errorf("%s: %+v", kind, f)
		}
	}
}

type silence struct{}

func (silence) Event(fencing.Event) {}
func (silence) Gap()                {}
