package main

import (
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

const (
	byAddress = "127.0.0.1"
	byName    = "localhost"
)

// trusting are the settings of a gateway that trusts an authority.
func trusting(authority *redistest.Authority) string { return "SSL_CERT_FILE=" + authority.File() }

// passwordFiles are the settings of a gateway that comes as the user with the fewest rights, and
// has the passwords from files, that of the Sentinels if the store has any.
func passwordFiles(t *testing.T, store string) (env []string) {
	t.Helper()
	env = append(env, "FENCEPOST_REDIS_USERNAME="+redistest.GatewayUser)
	passwords := map[string]string{"REDIS": redistest.Password}
	if strings.Contains(store, "sentinel") {
		passwords["SENTINEL"] = redistest.SentinelPassword
	}
	dir := t.TempDir()
	for name, password := range passwords {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		env = append(env, "FENCEPOST_"+name+"_PASSWORD_FILE="+path)
	}
	return env
}

// named makes a URL name its hosts, in place of their addresses.
func named(url string) string { return strings.ReplaceAll(url, byAddress, byName) }

// Servers that listen with TLS only, also to each other, with an authority of one's
// own and with passwords. The certificate is valid for nothing but the host by which
// the gateway reaches a server, in the URL or as announced.
func TestRedisTLS(t *testing.T) {
	t.Parallel()
	onRedisWithTLS(t, "redis", "quorum")
}

func TestSystemRedisTLS(t *testing.T) {
	t.Parallel()
	onRedisWithTLS(t, "cluster")
}

func onRedisWithTLS(t *testing.T, kinds ...string) {
	for _, topology := range []struct {
		kind, host string
		start      func(t *testing.T, args []string) string // returns the URL
	}{
		{"redis", byName, func(t *testing.T, args []string) string { return named(redistest.Start(t, args...).URL()) }},
		{"cluster", byName, func(t *testing.T, args []string) string {
			args = append(args, "--cluster-announce-hostname", byName, "--cluster-preferred-endpoint-type", "hostname")
			return named(redistest.StartCluster(t, 3, 0, args...).URL())
		}},
		{"quorum", byAddress, func(t *testing.T, args []string) string {
			return redistest.QuorumURL(redistest.StartQuorum(t, 3, args...))
		}},
	} {
		if !slices.Contains(kinds, topology.kind) {
			continue
		}
		t.Run(topology.kind, func(t *testing.T) {
			t.Parallel()
			authority := redistest.NewAuthority(t, topology.host)
			rights := redistest.GatewayArgs()
			if topology.kind == "cluster" {
				rights = redistest.GatewayArgs(redistest.ClusterRights...)
			}
			store := topology.start(t, append(authority.Args(), rights...))
			env := append(passwordFiles(t, store), trusting(authority))
			url := "http://" + startOn(t, store, env...).addr
			eventually(t, http.MethodPost, url+"/locks/first", http.StatusCreated)
			useStore(t, store, env...)
			url = distrust(t, store, topology.host)
			status, body, err := request(http.MethodPost, url+"/locks/a", "", nil)
			if err != nil || status != http.StatusServiceUnavailable {
				t.Errorf("with an unknown authority: %d %s, %v; want 503", status, body, err)
			}
		})
	}
}

// With Sentinels, which have TLS and a password of their own, the next master is
// found and trusted as the first one was.
func TestSystemSentinelTLS(t *testing.T) {
	t.Parallel()
	authority := redistest.NewAuthority(t, byAddress)
	sentinel := redistest.StartSentinel(t, 1, 3, append(authority.Args(), redistest.GatewayArgs()...)...)
	store := sentinel.URL()
	env := append(passwordFiles(t, store), trusting(authority))
	url := "http://" + startOn(t, store, append(env, "FENCEPOST_QUARANTINE=1s")...).addr
	eventually(t, http.MethodPost, url+"/locks/first", http.StatusCreated)
	own := map[string]string{"Lease-Id": fencing.NewLeaseID(time.Now()).Reveal()}
	expect := func(method string, want int) {
		t.Helper()
		status, body, err := request(method, url+"/locks/kept", "", own)
		if err != nil || status != want {
			t.Fatalf("%s: %d %s, %v; want %d", method, status, body, err, want)
		}
	}
	expect(http.MethodPost, http.StatusCreated)
	expect(http.MethodPut, http.StatusOK)

	replicated(t, sentinel.Master(), 1)
	sentinel.NextMaster(sentinel.KillMaster())
	eventually(t, http.MethodPost, url+"/locks/second", http.StatusCreated)
	expect(http.MethodPut, http.StatusOK)
	expect(http.MethodDelete, http.StatusNoContent)
	useStore(t, store, env...)
	distrust(t, store, byAddress)
}

// distrust starts a gateway that trusts another authority than that of the store,
// and returns its URL. It serves, and says in its log why it can grant nothing.
func distrust(t *testing.T, store, host string) (url string) {
	t.Helper()
	stranger := redistest.NewAuthority(t, host)
	g := start(t, append(passwordFiles(t, store), trusting(stranger), "FENCEPOST_STORE="+store)...)
	why := x509.UnknownAuthorityError{}.Error()
	for deadline := time.Now().Add(patience); !strings.Contains(g.warnings(), why); <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the log does not say %q:\n%s", why, g.warnings())
		}
	}
	return "http://" + g.addr
}
