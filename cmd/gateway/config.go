package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kelseyhightower/envconfig"

	"fencepost/internal/fencing"
	lockhttp "fencepost/internal/http"
	"fencepost/internal/variables"
)

const envPrefix = variables.Prefix

// maxCap bounds the caps: more connections than that no process has.
const maxCap = 10_000_000

// config is all that the environment sets. The embedded structs group what
// belongs together; a field's variable is FENCEPOST_ and its name in words.
type config struct {
	Serving
	Storage
	Leases
	Waiting
	Requests
	Logging
}

// Serving says where and to whom the gateway answers.
type Serving struct {
	ListenAddr      string   `split_words:"true" default:"127.0.0.1:8080" desc:"host:port to listen on; port 0 picks a free port, which the log names"`
	AllowedHosts    []string `split_words:"true" desc:"Host headers to accept, separated by commas: host, host:port, or * for any. Empty: the loopback names, and the host of the listening address if it is an IP address"`
	KeysFile        string   `split_words:"true" desc:"file with the clients' keys; reread when it changes. gateway keygen makes a key. Empty: anybody may do anything, and only loopback is served"`
	TLSCertFile     string   `split_words:"true" desc:"PEM file with the server's TLS certificate, followed by its intermediates; reread when it changes. Empty: no TLS"`
	TLSKeyFile      string   `split_words:"true" desc:"PEM file with the private key of FENCEPOST_TLS_CERT_FILE; reread when it changes"`
	TLSClientCAFile string   `split_words:"true" desc:"PEM file with the authorities that sign client certificates; reread when it changes. FENCEPOST_KEYS_FILE needs a line for each certificate"`
	InsecureNoAuth  bool     `split_words:"true" default:"false" desc:"true: serve beyond loopback without keys. Anyone who can reach the address can then acquire and break locks"`
	AdminAddr       string   `split_words:"true" desc:"separate host:port for /metrics and /debug/pprof, with the same keys and Host headers. Empty: /metrics is served with the rest, /debug/pprof nowhere"`

	MaxConnections             int `split_words:"true" default:"0" desc:"largest number of open connections; 0: as many as the limit of open files allows"`
	MaxConnectionsPerClient    int `split_words:"true" default:"0" desc:"largest number of open connections from one address; 0: no limit"`
	MaxConnectionRatePerClient int `split_words:"true" default:"0" desc:"new connections per second from one address, also the largest burst; 0: no limit"`

	DrainTimeout time.Duration `split_words:"true" default:"10s" desc:"longest duration of a shutdown, including FENCEPOST_DRAIN_DELAY; 0s to 1h"`
	DrainDelay   time.Duration `split_words:"true" default:"0s" desc:"how long a shutdown still serves while /readyz already fails, so that load balancers notice; 0s to FENCEPOST_DRAIN_TIMEOUT"`
}

// Storage says what remembers locks.
type Storage struct {
	Store        string        `split_words:"true" default:"embedded" desc:"embedded; or the nodes of a cluster of gateways, raft://host:port,host:port,host:port (port 7000 by default); or a database, postgres://user:password@host[:5432]/database, mysql://user:password@host[:3306]/database (also MariaDB); or Redis, redis://[user:password@]host:port[/db], unix://[user:password@]/path[?db=n], redis+sentinel://host,host,host/master[/db], redis+cluster://host,host,..., redis+quorum://host,host,host; to use TLS, write rediss for redis"`
	StoreFile    string        `split_words:"true" desc:"file with the value of FENCEPOST_STORE, for a URL with a password; read only at start"`
	DataDir      string        `split_words:"true" default:"fencepost-data" desc:"directory of the embedded store, or of this node of a cluster"`
	ExpectStore  bool          `split_words:"true" default:"false" desc:"true: refuse to start where FENCEPOST_DATA_DIR has no store, or to form a new cluster, as when its volume is not mounted"`
	MaxClockSkew time.Duration `split_words:"true" default:"1s" desc:"largest allowed difference between the clocks of the gateway and the store; 10ms to 1m"`
	Strict       bool          `split_words:"true" default:"false" desc:"true: refuse to start and to grant while the setup of the store endangers a promise"`
	Cluster
	Redis
}

// Redis says how to come in there, and what to do about what it may forget.
type Redis struct {
	RedisUsername        string `split_words:"true" desc:"user at Redis, if the URL has none"`
	RedisPassword        string `split_words:"true" desc:"password at Redis, if the URL has none"`
	RedisPasswordFile    string `split_words:"true" desc:"file with the value of FENCEPOST_REDIS_PASSWORD; read only at start"`
	SentinelUsername     string `split_words:"true" desc:"user at the Sentinels"`
	SentinelPassword     string `split_words:"true" desc:"password at the Sentinels"`
	SentinelPasswordFile string `split_words:"true" desc:"file with the value of FENCEPOST_SENTINEL_PASSWORD; read only at start"`

	RedisTLSCertFile string `split_words:"true" desc:"PEM file with the gateway's certificate as a client of Redis and the Sentinels; reread when it changes. Only with rediss"`
	RedisTLSKeyFile  string `split_words:"true" desc:"PEM file with the private key of FENCEPOST_REDIS_TLS_CERT_FILE; reread when it changes"`
	RedisTLSCaFile   string `split_words:"true" desc:"PEM file with the authorities that sign the certificates of Redis and the Sentinels; reread when it changes. Empty: those of the system"`

	RedisReplicaAcks int    `split_words:"true" default:"0" desc:"replicas of Redis that must acknowledge a grant before the gateway answers; 0 to 100, on a quorum only 0"`
	Quarantine       string `split_words:"true" default:"auto" desc:"how long no new leases are granted after Redis or a database may have lost some: auto (the longest TTL in use, at most 5m), 1s to 24h, or off"`
}

// Leases bounds what clients may ask for.
type Leases struct {
	DefaultTTL time.Duration `split_words:"true" default:"30s" desc:"TTL of a lease whose request names none; FENCEPOST_MIN_TTL to FENCEPOST_MAX_TTL, in whole milliseconds"`
	MinTTL     time.Duration `split_words:"true" default:"100ms" desc:"shortest TTL that a request may name; at least 100ms, in whole milliseconds"`
	MaxTTL     time.Duration `split_words:"true" default:"24h" desc:"longest TTL that a request may name; at most 24h, in whole milliseconds"`

	MaxHoldersPerName int `split_words:"true" default:"10000" desc:"largest number of shared leases of one name; 1 to 100000, the same at all gateways"`
}

// Waiting bounds who waits, and how long: a request that waits costs memory and a
// connection. 0 is no bound.
type Waiting struct {
	MaxWait             time.Duration `split_words:"true" default:"60s" desc:"largest wait_ms of a request without a stream; 0s to 24h, in whole milliseconds"`
	MaxWaiters          int           `split_words:"true" default:"50000" desc:"largest number of waiting requests at this gateway; 0: no limit"`
	MaxWaitersPerName   int           `split_words:"true" default:"20000" desc:"largest number of waiting requests for one name at all gateways, including places kept after a disconnect; 0: no limit"`
	MaxWaitersPerClient int           `split_words:"true" default:"20000" desc:"largest number of waiting requests from one address at this gateway; 0: no limit"`
	MaxStreams          int           `split_words:"true" default:"1000" desc:"largest number of event streams at this gateway; 0: no limit"`
	MaxStreamsPerClient int           `split_words:"true" default:"1000" desc:"largest number of streams to one address at this gateway, of events and attached leases together; 0: no limit"`
}

// Requests bounds what one principal may ask for: a name of the keys file or, without
// keys, an address. 0 is no bound.
type Requests struct {
	MaxRequestRatePerPrincipal int `split_words:"true" default:"0" desc:"requests per second of one principal (a name in FENCEPOST_KEYS_FILE; without keys, an address), also the largest burst; 0: no limit. Renewals and releases may reach four times the limit"`
	MaxRequestsPerPrincipal    int `split_words:"true" default:"10000" desc:"largest number of requests of one principal in progress, not counting waiting requests and streams; 0: no limit. Renewals and releases may reach four times the limit"`
}

// Logging says what is logged, to standard error.
type Logging struct {
	LogLevel      slog.Level `split_words:"true" default:"info" desc:"least level that is logged: debug, info, warn or error; the audit is logged at every level"`
	AuditRequired bool       `split_words:"true" default:"false" desc:"true: refuse breaks and evictions (503 unavailable) while their line of the audit could not be written"`
	LogFormat     string     `split_words:"true" default:"json" desc:"json; or text, for people"`
}

// usageError is the fault of whoever started the gateway: exit status 2.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// loadConfig reads the environment and reports every fault in it at once.
func loadConfig() (config, error) {
	var cfg config
	unread, faults := process(&cfg)
	faults = append(append(faults, unknownVariables()...), traceFaults()...)
	missing, unreadable := cfg.readFiles()
	unread, faults = append(unread, missing...), append(faults, unreadable...)
	if faults = append(faults, cfg.validate(unread)...); len(faults) > 0 {
		return cfg, usageError{fmt.Errorf("these settings are wrong:\n%w", errors.Join(faults...))}
	}
	return cfg, nil
}

// process fills cfg. envconfig stops at the first value it can't read, so such a
// value is set aside and the rest is read; the field has its default then, and
// unread the variable.
func process(cfg *config) (unread []string, faults []error) {
	for {
		err := envconfig.Process(envPrefix, cfg)
		var parse *envconfig.ParseError
		if !errors.As(err, &parse) {
			if err != nil {
				faults = append(faults, err)
			}
			return unread, faults
		}
		unread = append(unread, parse.KeyName)
		faults = append(faults, fmt.Errorf("%s: %q is not %s", parse.KeyName, parse.Value, wantedForm(parse.TypeName)))
		value, set := os.LookupEnv(parse.KeyName)
		if !set { // a default that can't be read is a bug here, not the operator's
			return unread, faults
		}
		os.Unsetenv(parse.KeyName)
		defer os.Setenv(parse.KeyName, value)
	}
}

// wantedForm says how a value of a Go type is written.
func wantedForm(goType string) string {
	switch goType {
	case "time.Duration":
		return "a time like 500ms, 30s, 5m or 24h"
	case "bool":
		return "true or false"
	case "int":
		return "a whole number"
	default: // slog.Level
		return "debug, info, warn or error"
	}
}

// lockctlVariables are the settings of lockctl that the gateway has not, and which of its own are meant where they are taken for
// them. They are refused like all that are not known: whoever writes FENCEPOST_KEY_FILE may believe that requests need a key now.
var lockctlVariables = map[string]string{
	envPrefix + "_KEY": envPrefix + "_KEYS_FILE", envPrefix + "_KEY_FILE": envPrefix + "_KEYS_FILE",
	envPrefix + "_CA_FILE":   envPrefix + "_TLS_CLIENT_CA_FILE",
	envPrefix + "_CERT_FILE": envPrefix + "_TLS_CERT_FILE", envPrefix + "_CERT_KEY_FILE": envPrefix + "_TLS_KEY_FILE",
}

// unknownVariables finds misspelt settings, and those of lockctl.
func unknownVariables() (faults []error) {
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if meant := lockctlVariables[name]; meant != "" {
			faults = append(faults, fmt.Errorf("%s is a setting of lockctl: unset it for the gateway, or set %s if you meant that", name, meant))
		} else if strings.HasPrefix(name, envPrefix+"_") && !slices.Contains(variables.Gateway, name) && !variables.Service.MatchString(name) {
			meant := variables.Nearest(name, variables.Gateway)
			if meant != "" {
				meant = " (is " + meant + " meant?)"
			}
			faults = append(faults, fmt.Errorf("%s is not a setting%s; gateway -help lists them", name, meant))
		}
	}
	return faults
}

// validate judges what was read. A value is not held against one that is unread.
func (cfg *config) validate(unread []string) (faults []error) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	read := func(names ...string) bool {
		return !slices.ContainsFunc(names, func(name string) bool { return slices.Contains(unread, envPrefix+"_"+name) })
	}
	exposed := !cfg.InsecureNoAuth && cfg.KeysFile == "" && read("INSECURE_NO_AUTH")
	if cfg.InsecureNoAuth && cfg.KeysFile != "" {
		fault("FENCEPOST_INSECURE_NO_AUTH and FENCEPOST_KEYS_FILE are both set; which one is meant?")
	}

	switch loopback, err := isLoopback(cfg.ListenAddr); {
	case err != nil:
		fault("FENCEPOST_LISTEN_ADDR: %w", err)
	case !loopback && exposed:
		fault("FENCEPOST_LISTEN_ADDR: %s is not a loopback address, and there are no keys: anyone who can reach it could acquire and break every lock. "+
			"Set FENCEPOST_KEYS_FILE (gateway keygen makes a key), or FENCEPOST_INSECURE_NO_AUTH=true to accept this", cfg.ListenAddr)
	}
	if cfg.AdminAddr != "" {
		if loopback, err := isLoopback(cfg.AdminAddr); err != nil {
			fault("FENCEPOST_ADMIN_ADDR: %w", err)
		} else if !loopback && exposed {
			fault("FENCEPOST_ADMIN_ADDR: %s is not a loopback address; set FENCEPOST_KEYS_FILE, or FENCEPOST_INSECURE_NO_AUTH=true to accept this", cfg.AdminAddr)
		}
	}
	for _, host := range cfg.AllowedHosts {
		if err := lockhttp.CheckHost(host); err != nil {
			fault("FENCEPOST_ALLOWED_HOSTS: %w", err)
		}
	}
	if err := cfg.bounds().Validate(); err != nil && read("DEFAULT_TTL", "MIN_TTL", "MAX_TTL") {
		fault("FENCEPOST_DEFAULT_TTL, FENCEPOST_MIN_TTL, FENCEPOST_MAX_TTL: %w", err)
	}
	if cfg.MaxWait < 0 || cfg.MaxWait > fencing.LongestAttachedWait || cfg.MaxWait%time.Millisecond != 0 {
		fault("FENCEPOST_MAX_WAIT: %s is out of range; it must be from 0s to 24h, in whole milliseconds", cfg.MaxWait)
	}
	for _, cap := range []struct {
		name  string
		value int
	}{
		{"MAX_WAITERS", cfg.MaxWaiters}, {"MAX_WAITERS_PER_NAME", cfg.MaxWaitersPerName}, {"MAX_WAITERS_PER_CLIENT", cfg.MaxWaitersPerClient},
		{"MAX_STREAMS", cfg.MaxStreams}, {"MAX_STREAMS_PER_CLIENT", cfg.MaxStreamsPerClient}, {"MAX_CONNECTIONS_PER_CLIENT", cfg.MaxConnectionsPerClient},
		{"MAX_CONNECTION_RATE_PER_CLIENT", cfg.MaxConnectionRatePerClient},
		{"MAX_REQUEST_RATE_PER_PRINCIPAL", cfg.MaxRequestRatePerPrincipal}, {"MAX_REQUESTS_PER_PRINCIPAL", cfg.MaxRequestsPerPrincipal},
	} {
		if cap.value < 0 || cap.value > maxCap {
			fault("FENCEPOST_%s: %d is out of range; it must be from 0 (no limit) to %d", cap.name, cap.value, maxCap)
		}
	}
	if (cfg.MaxHoldersPerName < 1 || cfg.MaxHoldersPerName > 100_000) && read("MAX_HOLDERS_PER_NAME") {
		fault("FENCEPOST_MAX_HOLDERS_PER_NAME: %d is out of range; it must be from 1 to 100000", cfg.MaxHoldersPerName)
	}
	if _, err := cfg.maxConnections(openFiles()); err != nil && read("MAX_CONNECTIONS", "STORE") {
		fault("FENCEPOST_MAX_CONNECTIONS: %w", err)
	}
	if cfg.MaxClockSkew < 10*time.Millisecond || cfg.MaxClockSkew > time.Minute {
		fault("FENCEPOST_MAX_CLOCK_SKEW: %s is out of range; it must be from 10ms to 1m", cfg.MaxClockSkew)
	}
	if cfg.DrainTimeout < 0 || cfg.DrainTimeout > time.Hour {
		fault("FENCEPOST_DRAIN_TIMEOUT: %s is out of range; it must be from 0s to 1h", cfg.DrainTimeout)
	}
	if cfg.DrainDelay < 0 || cfg.DrainDelay > cfg.DrainTimeout && read("DRAIN_TIMEOUT") {
		fault("FENCEPOST_DRAIN_DELAY: %s is out of range; it must be from 0s to FENCEPOST_DRAIN_TIMEOUT (%s)", cfg.DrainDelay, cfg.DrainTimeout)
	}
	if cfg.LogFormat != "json" && cfg.LogFormat != "text" {
		fault("FENCEPOST_LOG_FORMAT: %q must be json or text", cfg.LogFormat)
	}
	faults = append(faults, cfg.validateTLS()...)
	return append(faults, cfg.validateStore(read)...)
}

func (cfg *config) bounds() fencing.Bounds {
	b := fencing.DefaultBounds()
	b.DefaultTTL, b.MinTTL, b.MaxTTL = cfg.DefaultTTL, cfg.MinTTL, cfg.MaxTTL
	b.MaxWait, b.MaxWaiters = cfg.MaxWait, cfg.MaxWaitersPerName
	return b
}

// hosts are those that the gateway answers to at an address.
func (cfg *config) hosts(addr string) []string {
	if len(cfg.AllowedHosts) > 0 {
		return cfg.AllowedHosts
	}
	return lockhttp.DefaultHosts(addr)
}

// isLoopback reports whether only this machine reaches addr.
func isLoopback(addr string) (bool, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return false, fmt.Errorf("%q is not host:port, like 127.0.0.1:8080", addr)
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return false, fmt.Errorf("%q has no valid port", addr)
	}
	if host == "localhost" {
		return true, nil
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback(), nil
}

// printHelp lists command line and settings.
func printHelp(w io.Writer) error {
	fmt.Fprint(w, `Fencepost hands out locks with fencing tokens over HTTP.

Usage:
  gateway              serve until SIGINT or SIGTERM
  gateway healthcheck  exit with 0 if the gateway with these settings is ready, otherwise 1
  gateway doctor       examine the store of these settings; see -help
  gateway cluster      show or change the cluster of these settings: status, add, remove,
                       transfer; see -help
  gateway store        make the tables in the database of these settings, give users their
                       rights, or run a restore while gateways keep off; see -help
  gateway restored     mark the data directory as a restored copy; see -help
  gateway keygen       make a key for FENCEPOST_KEYS_FILE; see -help
  gateway -help        this text
  gateway -version     print the version

Settings come from the environment. Times are written like 500ms, 30s, 5m or 24h:

`)
	tabs := tabwriter.NewWriter(w, 1, 0, 2, ' ', 0)
	err := envconfig.Usagef(envPrefix, &config{}, tabs,
		"{{range .}}  {{usage_key .}}\t{{with usage_default .}}{{.}}{{else}}-{{end}}\t{{usage_description .}}\n{{end}}")
	fmt.Fprint(tabs, "\nTraces are sent to OTEL_EXPORTER_OTLP_ENDPOINT, like http://collector:4318, as OpenTelemetry's\n"+
		"variables say (OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER, ...); without it no traces are sent.\n")
	return errors.Join(err, tabs.Flush())
}
