package main

import (
	"slices"
	"strings"
	"testing"

	"fencepost/internal/redis/redistest"
)

// Doctor says what is wrong with FENCEPOST_STORE, not only that no master is known.
func TestDoctorTellsMistakesApart(t *testing.T) {
	t.Parallel()
	tellsMistakesApart(t, false)
}

// Of some mistakes it is sure only when nothing has answered for seconds.
func TestSystemDoctorTellsMistakesApart(t *testing.T) {
	t.Parallel()
	tellsMistakesApart(t, true)
}

// A doctor that may not see how Redis is set up does not say that all is well, but what can't be told, and what to change. None of
// these users may do less than a gateway needs.
func TestDoctorThatMayNotLook(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, append(redistest.GatewayArgs(), "--appendonly", "yes", "--appendfsync", "always")...)
	store := "FENCEPOST_STORE=redis://fencepost:correct@" + server.Addr()
	admin := server.Client()
	defer admin.Close()
	if out, status := examineUntil(t, []string{"ok       persistence"}, store); status != 0 {
		t.Errorf("with all rights the status is %d:\n%s", status, out)
	}
	for right, says := range map[string][]string{
		"config|get": {"DANGER   persistence", "can't be told", "change:    ACL SETUSER <user> +config|get"},
		"info":       {"DANGER   access", "could not be examined", "docs/stores/redis.md"},
		"time":       {"DANGER   access", "could not be examined", "docs/stores/redis.md"},
	} {
		must(t, admin.Do(t.Context(), "acl", "setuser", "fencepost", "-"+right).Err())
		if out, status := examineUntil(t, says, store); status != 1 || strings.Contains(out, "ok       persistence") {
			t.Errorf("without %s the status is %d:\n%s", right, status, out)
		}
		must(t, admin.Do(t.Context(), "acl", "setuser", "fencepost", "+"+right).Err())
	}
}

// slowMistakes are those of the second tier.
var slowMistakes = []string{"a Cluster for a Redis", "TLS for a port without", "nodes of a quorum"}

func tellsMistakesApart(t *testing.T, slow bool) {
	plain := redistest.Start(t, strictRedis...)
	closed := redistest.Start(t, append([]string{"--cluster-enabled", "yes", "--requirepass", "hunter2"}, strictRedis...)...)
	sentinels := redistest.StartSentinel(t, 0, 1, strictRedis...)
	sentinel := sentinels.Sentinels()[0].Addr()
	other := redistest.StartSentinel(t, 0, 1, strictRedis...).Sentinels()[0]
	guarded := other.Addr()
	client := other.Client()
	if err := client.Do(t.Context(), "acl", "setuser", "default", "resetpass", ">hunter2").Err(); err != nil {
		t.Fatal(err)
	}
	client.Close()
	replica := redistest.Start(t, "--replicaof", "127.0.0.1 1")
	away := redistest.Start(t)
	if err := away.Stop(); err != nil {
		t.Fatal(err)
	}
	cluster := redistest.StartCluster(t, 3, 0, strictRedis...)
	authority := redistest.NewAuthority(t, byAddress)
	encrypted := redistest.StartSentinel(t, 0, 1, authority.Args()...)
	trusted := append(passwordFiles(t, encrypted.URL()), trusting(authority))
	misnamed := redistest.NewAuthority(t, byName)
	misnamedRedis := redistest.Start(t, misnamed.Args()...)
	for _, mistake := range []struct {
		what, store string
		env         []string
		says        []string
	}{
		{"no Sentinel runs", "redis+sentinel://" + away.Addr() + "/main", nil, []string{"the Sentinel at " + away.Addr(), "refused"}},
		{"another name", "redis+sentinel://" + sentinel + "/other", nil, []string{"it watches no master of that name"}},
		{"a wrong password of a Sentinel", "redis+sentinel://" + guarded + "/locks", []string{"FENCEPOST_SENTINEL_PASSWORD=hunter3"}, []string{"the Sentinel at " + guarded, "WRONGPASS"}},
		{"no Redis", "redis://" + away.Addr(), nil, []string{"refused", "change: start Redis there"}},
		{"a wrong password", "redis://" + closed.Addr(), []string{"FENCEPOST_REDIS_PASSWORD=hunter3"}, []string{"WRONGPASS", "change: set FENCEPOST_REDIS_PASSWORD"}},
		{"a replica", "redis://" + replica.Addr(), nil, []string{"it is a replica", "change: name the master"}},
		{"a Sentinel for a Redis", "redis://" + sentinel, nil, []string{"it is a Sentinel", "change: this is a Sentinel: use redis+sentinel://"}},
		{"a Redis for a Sentinel", "redis+sentinel://" + plain.Addr() + "/main", nil, []string{"change: this is not a Sentinel"}},
		{"a Redis for a Cluster", "redis+cluster://" + plain.Addr(), nil, []string{"change: this is not a Cluster"}},
		{"a wrong password of a Cluster", "redis+cluster://" + closed.Addr(), []string{"FENCEPOST_REDIS_PASSWORD=hunter3"}, []string{"the Redis at " + closed.Addr(), "WRONGPASS"}},
		{"a Cluster for a Redis", cluster.Members()[0].URL(), nil, []string{"change: this is a Cluster: use redis+cluster://"}},
		{"an authority that is not trusted", encrypted.URL(), passwordFiles(t, encrypted.URL()), []string{"the Sentinel at ", "change: set FENCEPOST_REDIS_TLS_CA_FILE"}},
		{"a name that is not in the certificate", named(encrypted.URL()), trusted, []string{"change: the certificate needs, as a subjectAltName"}},
		{"an address that is not in the certificate", misnamedRedis.URL(), []string{trusting(misnamed)}, []string{"change: the certificate needs, as a subjectAltName"}},
		{"TLS for a port without", strings.Replace(plain.URL(), "redis:", "rediss:", 1), nil, []string{"change: the port may be one without TLS"}},
		{"no TLS for a port with", strings.Replace(misnamedRedis.URL(), "rediss:", "redis:", 1), nil, []string{"change: the port may be one for TLS"}},
		{"nodes of a quorum", "rediss+quorum://" + misnamedRedis.Addr() + "," + plain.Addr() + "," + away.Addr(), []string{trusting(misnamed)}, []string{"change:    the certificate needs, as a subjectAltName", "change:    the port may be one without TLS", "change:    bring it back"}},
		{"replicas that are not there", plain.URL(), []string{"FENCEPOST_REDIS_REPLICA_ACKS=1"}, []string{"FENCEPOST_REDIS_REPLICA_ACKS"}},
		{"too few replicas", sentinels.URL(), []string{"FENCEPOST_REDIS_REPLICA_ACKS=1"}, []string{"every acquire is answered 503", "1 finding is trouble"}},
	} {
		if slices.Contains(slowMistakes, mistake.what) != slow {
			continue
		}
		t.Run(mistake.what, func(t *testing.T) {
			out, status := examineUntil(t, mistake.says, append(mistake.env, "FENCEPOST_STORE="+mistake.store)...)
			if status == 0 {
				t.Error("the status is 0")
			}
			if strings.Contains(out, "hunter") || strings.Contains(out, redistest.Password) || strings.Count(out, "no master is known") > 1 {
				t.Error(out)
			}
		})
	}
}
