package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"fencepost/internal/quorum"
	"fencepost/internal/redis"
	"fencepost/internal/sql"
)

const (
	maxReplicaAcks = 100

	leastQuarantine, mostQuarantine = time.Second, 24 * time.Hour
)

// The kinds of stores, as storeKind returns them: embedded, raft, and those of redis.Kind and sql.Kind.
const (
	kindEmbedded = "embedded"
	kindRedis    = "redis"
	kindSentinel = "sentinel"
	kindCluster  = "cluster"
	kindQuorum   = "quorum"
	kindRaft     = "raft"
	kindPostgres = "postgres"
	kindMySQL    = "mysql"
)

// storeKind returns which kind of store is set, or nothing if that is unknown.
func (cfg *config) storeKind() string {
	if cfg.Store == kindEmbedded {
		return kindEmbedded
	}
	if strings.HasPrefix(cfg.Store, clusterScheme) {
		return kindRaft
	}
	if kind := sql.Kind(cfg.Store); kind != "" {
		return kind
	}
	return redis.Kind(cfg.Store)
}

// onDatabase reports whether the store is in PostgreSQL, MariaDB or MySQL.
func (cfg *config) onDatabase() bool { return sql.Kind(cfg.Store) != "" }

// onRedis reports whether the store is in one Redis, or several.
func (cfg *config) onRedis() bool {
	kind := cfg.storeKind()
	return kind != "" && kind != kindEmbedded && kind != kindRaft && !cfg.onDatabase()
}

// readFiles reads the settings that are kept in files. unread are the variables
// that they stand for and that could not be read.
func (cfg *config) readFiles() (unread []string, faults []error) {
	for _, s := range []struct {
		name, file string
		value      *string
	}{
		{"STORE", cfg.StoreFile, &cfg.Store},
		{"CLUSTER_SECRET", cfg.ClusterSecretFile, &cfg.ClusterSecret},
		{"REDIS_PASSWORD", cfg.RedisPasswordFile, &cfg.RedisPassword},
		{"SENTINEL_PASSWORD", cfg.SentinelPasswordFile, &cfg.SentinelPassword},
	} {
		if s.file == "" {
			continue
		}
		name := envPrefix + "_" + s.name
		if _, both := os.LookupEnv(name); both {
			faults = append(faults, fmt.Errorf("%s and %s_FILE are both set; which one is meant?", name, name))
		}
		content, err := os.ReadFile(s.file)
		*s.value = strings.TrimSpace(string(content))
		if err == nil && *s.value == "" {
			err = errors.New(s.file + " is empty")
		}
		if err != nil {
			unread, faults = append(unread, name), append(faults, fmt.Errorf("%s_FILE: %w", name, err))
		}
	}
	return unread, faults
}

// validateStore judges what is about the store. Nothing it says quotes a password.
func (cfg *config) validateStore(read func(names ...string) bool) (faults []error) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	kind := cfg.storeKind()
	switch {
	case !read("STORE"):
	case kind == "" && sql.Scheme(cfg.Store) != "":
		fault("FENCEPOST_STORE: has a scheme of another program: write %s", sql.Scheme(cfg.Store))
	case kind == "":
		fault("FENCEPOST_STORE: must be embedded, or begin with raft://, postgres://, mysql://, redis://, rediss://, unix://, redis+sentinel://, redis+cluster:// or redis+quorum://")
	case kind == kindEmbedded:
		if cfg.DataDir == "" {
			fault("FENCEPOST_DATA_DIR: is empty; the embedded store needs a directory")
		}
	case kind == kindRaft: // see validateCluster
	case cfg.onDatabase():
		if err := sql.CheckURL(cfg.Store); err != nil {
			fault("FENCEPOST_STORE: %w", err)
		}
	default:
		if err := redis.CheckURL(cfg.Store); err != nil {
			fault("FENCEPOST_STORE: %w", err)
		}
	}
	faults = append(append(faults, cfg.validateLogins(kind, read)...), cfg.validateCluster(read)...)

	switch acks := cfg.RedisReplicaAcks; {
	case !read("REDIS_REPLICA_ACKS"):
	case acks < 0 || acks > maxReplicaAcks:
		fault("FENCEPOST_REDIS_REPLICA_ACKS: %d is out of range; it must be from 0 to %d", acks, maxReplicaAcks)
	case acks > 0 && kind == kindEmbedded:
		fault("FENCEPOST_REDIS_REPLICA_ACKS: the embedded store has no replicas; its grants are on disk before they are answered")
	case acks > 0 && kind == kindRaft:
		fault("FENCEPOST_REDIS_REPLICA_ACKS: a cluster has no replicas; a majority of its nodes has a grant on disk before it is answered")
	case acks > 0 && cfg.onDatabase():
		fault("FENCEPOST_REDIS_REPLICA_ACKS: is for Redis; whether a commit waits for a standby is a setting of the database")
	case acks > 0 && kind == kindQuorum:
		fault("FENCEPOST_REDIS_REPLICA_ACKS: the nodes of a quorum have no replicas; a majority of them has a grant before it is answered")
	}
	if _, err := cfg.quarantine(); err != nil {
		fault("FENCEPOST_QUARANTINE: %w", err)
	}
	if least := quorum.ShortestTTL(cfg.MaxClockSkew); kind == kindQuorum && cfg.DefaultTTL < least && read("STORE", "DEFAULT_TTL", "MAX_CLOCK_SKEW") {
		fault("FENCEPOST_DEFAULT_TTL: %s is too short; with a quorum and FENCEPOST_MAX_CLOCK_SKEW %s it must be at least %s", cfg.DefaultTTL, cfg.MaxClockSkew, least)
	}
	return faults
}

// validateLogins judges users and passwords by who wants them.
func (cfg *config) validateLogins(kind string, read func(names ...string) bool) (faults []error) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	for _, login := range []struct {
		name, user, password string
		of                   string
		wanted               bool
	}{
		{"REDIS", cfg.RedisUsername, cfg.RedisPassword, "Redis", cfg.onRedis()},
		{"SENTINEL", cfg.SentinelUsername, cfg.SentinelPassword, "redis+sentinel://", kind == kindSentinel},
	} {
		set := login.user != "" || login.password != ""
		switch {
		case !set || kind == "":
		case !login.wanted:
			fault("FENCEPOST_%s_USERNAME, FENCEPOST_%s_PASSWORD: are for %s, and FENCEPOST_STORE is something else", login.name, login.name, login.of)
		case login.password == "" && read(login.name+"_PASSWORD"):
			fault("FENCEPOST_%s_USERNAME: is set, and FENCEPOST_%s_PASSWORD is not", login.name, login.name)
		case login.name == "REDIS" && hasLogin(cfg.Store):
			fault("FENCEPOST_REDIS_USERNAME, FENCEPOST_REDIS_PASSWORD: FENCEPOST_STORE has a user or a password too; which one is meant?")
		}
	}
	return faults
}

// hasLogin reports whether a URL has a user or a password.
func hasLogin(store string) bool {
	_, rest, _ := strings.Cut(store, "://")
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	return strings.Contains(rest[:end], "@")
}

// location returns where a store is, without user and password.
func location(store string) string {
	if sql.Kind(store) != "" {
		return sql.Location(store)
	}
	scheme, rest, ok := strings.Cut(store, "://")
	if !ok {
		return store
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	return scheme + "://" + rest[strings.LastIndex(rest[:end], "@")+1:]
}

// address returns the host and port of the URL of one Redis.
func address(url string) string {
	_, rest, _ := strings.Cut(location(url), "://")
	host, _, _ := strings.Cut(rest, "/")
	return host
}

// quarantine reads FENCEPOST_QUARANTINE.
func (cfg *config) quarantine() (redis.QuarantinePolicy, error) {
	policy := redis.QuarantinePolicy{Least: cfg.DefaultTTL}
	switch cfg.Quarantine {
	case "auto":
		return policy, nil
	case "off":
		policy.Off = true
		return policy, nil
	}
	d, err := time.ParseDuration(cfg.Quarantine)
	if err != nil {
		return policy, fmt.Errorf("%q must be auto, off or a time like 90s", cfg.Quarantine)
	}
	if d < leastQuarantine || d > mostQuarantine {
		return policy, errors.New(d.String() + " is out of range; it must be from 1s to 24h, or auto, or off")
	}
	policy.For = d
	return policy, nil
}
