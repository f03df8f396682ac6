package redis

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"strings"
	"syscall"

	"fencepost/internal/fencing"
)

// refusal is a way in which a server, or its port, refuses a gateway: what its errors
// have in common, and what to tell who operates it.
type refusal struct {
	is             func(err error, text string) bool
	unless         func(*location) bool // nil: never
	detail, remedy string               // %s is the setting with the password

	// early: only of one that has not been spoken with yet. Later the same is an outage.
	early bool
}

// refusals are tried in order. The texts that are looked for are Redis's own, in small
// letters; a script's errors quote them, and so does an error after retries.
var refusals = []refusal{
	{
		is: says("wrongpass "), detail: "it does not accept the password",
		remedy: "set %s (and the user) to what the server has",
	},
	{
		is: says("noauth "), detail: "it needs a password and was given none",
		remedy: "set %s",
	},
	{
		is: says("without any password configured"), detail: "it has no password but was given one",
		remedy: "leave out %s, or give the server one (requirepass)",
	},
	{
		is: says("noperm ", "user executing the script can't"), detail: "the user lacks rights that the gateway needs",
		remedy: "give the user the commands, keys and channels that docs/stores/redis.md lists, with ACL SETUSER",
	},
	{
		is: says("running in protected mode"), detail: "it is in protected mode and serves only its own machine",
		remedy: "give the server a password (requirepass), and set %s to it",
	},
	{
		is: says("max number of clients reached"), detail: "it has reached its limit of clients",
		remedy: "raise maxclients at the server, or find out with CLIENT LIST who they are",
	},
	{
		is: says(" moved ", "clusterdown "), unless: isCluster, detail: "it is a node of a Cluster",
		remedy: "this is a Cluster: use redis+cluster:// in FENCEPOST_STORE",
	},
	{
		is: says("cluster support disabled"), detail: "it is not a node of a Cluster",
		remedy: "this is not a Cluster: use redis:// for one Redis in FENCEPOST_STORE",
	},
	{
		is: says("unknown command 'sentinel'"), detail: "it is a Redis, not a Sentinel",
		remedy: "this is not a Sentinel: name the Sentinels in FENCEPOST_STORE, or use redis:// for one Redis",
	},
	{
		is: says("watches no master of that name"), detail: "the Sentinel does not know the master",
		remedy: "name the master behind the hosts in FENCEPOST_STORE as the Sentinels do; SENTINEL MASTERS lists them",
	},
	{
		is: isSentinel, detail: "it is a Sentinel, not a Redis",
		remedy: "this is a Sentinel: use redis+sentinel://host:port/master in FENCEPOST_STORE",
	},
	{
		is: isReplica, unless: failsOver, detail: "it is a replica: it grants nothing",
		remedy: otherMaster,
	},
	{
		is: isUntrusted, detail: "its certificate is signed by an authority that the gateway does not know",
		remedy: "set FENCEPOST_REDIS_TLS_CA_FILE to a readable file with the certificate of that authority",
	},
	{
		is: isMisnamed, detail: "its certificate is for another host",
		remedy: "the certificate needs, as a subjectAltName, the host in FENCEPOST_STORE, or the one by which Sentinel or the Cluster announces the node",
	},
	{
		is: isInvalid, detail: "its certificate has expired or is not a server certificate",
		remedy: "renew the certificate of the server, and check the clock of this machine",
	},
	{
		is: says("tls: certificate required"), detail: "it needs a client certificate and the gateway has none",
		remedy: "set FENCEPOST_REDIS_TLS_CERT_FILE to a certificate from an authority that the server trusts, or set tls-auth-clients no at the server",
	},
	{
		is: isPlain, unless: withoutTLS, early: true, detail: "it does not speak TLS",
		remedy: "the port may be one without TLS: use redis instead of rediss in FENCEPOST_STORE",
	},
	{
		is: isEncrypted, unless: withTLS, early: true, detail: "it closes connections before it sends anything",
		remedy: "the port may be one for TLS: use rediss instead of redis in FENCEPOST_STORE; otherwise the server has reached maxclients or is in protected mode",
	},
}

func says(signs ...string) func(error, string) bool {
	return func(_ error, text string) bool {
		for _, sign := range signs {
			if strings.Contains(text, sign) {
				return true
			}
		}
		return false
	}
}

func isCluster(l *location) bool  { return l.kind == kindCluster }
func withTLS(l *location) bool    { return l.tls }
func withoutTLS(l *location) bool { return !l.tls }

// failsOver reports whether the master is looked for when it has moved.
func failsOver(l *location) bool { return l.kind == kindSentinel || l.kind == kindCluster }

func isSentinel(err error, _ string) bool { return errors.Is(err, errSentinel) }

// otherMaster is what to change where a replica was named.
const otherMaster = "name the master in FENCEPOST_STORE, or let redis+sentinel:// or redis+cluster:// find it"

func isReplica(err error, text string) bool {
	return errors.Is(err, errReplica) || strings.Contains(text, "readonly ")
}

func isUntrusted(err error, _ string) bool {
	_, is := errors.AsType[x509.UnknownAuthorityError](err)
	return is
}

func isMisnamed(err error, _ string) bool {
	_, is := errors.AsType[x509.HostnameError](err)
	return is
}

func isInvalid(err error, _ string) bool {
	_, is := errors.AsType[x509.CertificateInvalidError](err)
	return is
}

// isPlain knows a port without TLS by what it says, or by its silence: a Redis waits
// for the end of the line.
func isPlain(err error, text string) bool {
	_, is := errors.AsType[tls.RecordHeaderError](err)
	return is || strings.Contains(text, "tls handshake: context deadline exceeded") || strings.Contains(text, "tls handshake: eof")
}

func isEncrypted(err error, _ string) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// diagnose returns an error as what it is, if that is a refusal or a known outage. Where no master is known
// it is why those say so who know the masters.
func (t *topology) diagnose(err error) error {
	if errors.Is(err, errNoMaster) {
		if lost := t.lastError.Load(); lost != nil {
			err = errors.Join(err, *lost)
		}
	}
	if err == nil || fencing.FaultOf(err) != nil {
		return err
	}
	text := " " + strings.ToLower(err.Error())
	for i := range refusals {
		r := &refusals[i]
		if !r.is(err, text) || r.early && t.answered.Load() || r.unless != nil && r.unless(t.location) {
			continue
		}
		setting := "FENCEPOST_REDIS_PASSWORD"
		switch {
		case strings.Contains(text, "the sentinel at "):
			setting = "FENCEPOST_SENTINEL_PASSWORD"
		case t.location.password != "":
			setting = "the password in FENCEPOST_STORE"
		}
		return &fencing.Fault{Detail: "the store refuses the gateway: " + r.detail, Remedy: strings.ReplaceAll(r.remedy, "%s", setting), Err: err}
	}
	return outage(err)
}

// unavailable is fencing.Unavailable of an error at a server.
func (s *Store) unavailable(err error) *fencing.Error {
	return fencing.Unavailable(s.topology.diagnose(err))
}
