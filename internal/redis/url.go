package redis

import (
	"errors"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"fencepost/internal/fencing"
)

const (
	maxDatabase  = 1<<31 - 1
	redisPort    = "6379"
	sentinelPort = "26379"
)

// The kinds of stores that a URL can stand for, as Kind returns them.
const (
	kindRedis    = "redis"    // one Redis
	kindSentinel = "sentinel" // a master and its replicas, which Sentinels watch
	kindCluster  = "cluster"  // a Redis Cluster
	kindQuorum   = "quorum"   // several masters that know nothing of each other
)

// schemes are the beginnings of URLs, and what they stand for.
var schemes = map[string]struct {
	kind string
	tls  bool
}{
	"redis":           {kind: kindRedis},
	"rediss":          {kind: kindRedis, tls: true},
	"unix":            {kind: kindRedis},
	"redis+sentinel":  {kind: kindSentinel},
	"rediss+sentinel": {kind: kindSentinel, tls: true},
	"redis+cluster":   {kind: kindCluster},
	"rediss+cluster":  {kind: kindCluster, tls: true},
	"redis+quorum":    {kind: kindQuorum},
	"rediss+quorum":   {kind: kindQuorum, tls: true},
}

// Kind returns what the URL of a store stands for, by its scheme alone:
// "redis", "sentinel", "cluster", "quorum", or "" if it is none of these.
func Kind(text string) string {
	scheme, _, _ := strings.Cut(text, "://")
	return schemes[strings.ToLower(scheme)].kind
}

// Encrypted reports whether the URL of a store asks for TLS, by its scheme alone.
func Encrypted(text string) bool {
	scheme, _, _ := strings.Cut(text, "://")
	return schemes[strings.ToLower(scheme)].tls
}

// CheckURL says what is wrong with the URL of a store, without asking anything
// there and without quoting a password; nil if Open, or of a quorum SplitQuorum,
// understands it.
func CheckURL(text string) error {
	if Kind(text) == kindQuorum {
		_, err := SplitQuorum(text)
		return err
	}
	_, err := parseURL(text)
	return err
}

// location is what a URL says of where Redis is.
type location struct {
	kind               string
	tls                bool
	network            string   // tcp or unix
	addrs              []string // host:port of Redis, of the Sentinels, or of nodes of the Cluster; the path of a socket
	username, password string   // of Redis, never of the Sentinels
	master             string   // the name by which Sentinels know it
	db                 int
}

// partitions returns over how many partitions the names are spread there.
func (l *location) partitions() int {
	if l.kind == kindCluster {
		return clusterPartitions
	}
	return alonePartitions
}

// parseURL reads where Redis is:
//
//	redis://[[user]:password@]host[:6379][/database]
//	unix://[[user]:password@]/path/to/socket[?db=database]
//	redis+sentinel://[[user]:password@]host[:26379],…/master[/database]
//	redis+cluster://[[user]:password@]host[:6379],…
//
// and rediss for redis, the same over TLS 1.2 or newer. The hosts of a Sentinel
// URL are the Sentinels, user and password those of Redis. Errors say what is
// wrong and never quote a part that may hold a password.
func parseURL(text string) (*location, error) {
	l, u, hosts, err := dissect(text)
	if err != nil {
		return nil, err
	}
	query := u.Query()
	path := strings.TrimPrefix(u.Path, "/")
	database := ""
	switch {
	case l.network == "unix":
		if hosts != "" || path == "" {
			return nil, errors.New("the Redis URL names no socket; write unix:///path/to/redis.sock, with three slashes")
		}
		l.addrs = []string{u.Path}
		database = query.Get("db")
		query.Del("db")
	case l.kind == kindRedis:
		if strings.Contains(hosts, ",") {
			return nil, errors.New("the Redis URL names several hosts; that needs redis+sentinel://, redis+cluster:// or redis+quorum://")
		}
		l.addrs, err = parseHosts(hosts, redisPort)
		database = path
	case l.kind == kindSentinel:
		if l.addrs, err = parseHosts(hosts, sentinelPort); err != nil {
			return nil, err
		}
		if l.master, database, _ = strings.Cut(path, "/"); l.master == "" {
			return nil, errors.New("the Redis URL does not name the master that the Sentinels watch; write redis+sentinel://host1,host2,host3/mymaster")
		}
	case l.kind == kindCluster:
		if path != "" {
			return nil, errors.New("the Redis URL has a database, and a Cluster has only one; leave out what is behind the hosts")
		}
		l.addrs, err = parseHosts(hosts, redisPort)
	case l.kind == kindQuorum:
		return nil, errors.New("the Redis URL is that of a quorum, not of one Redis")
	}
	if err != nil {
		return nil, err
	}
	if len(query) > 0 { // not quoted: it may be the end of a password with a question mark
		return nil, errors.New("the Redis URL has an unknown option after its question mark; only unix:// has one, db")
	}
	if database != "" {
		n, err := strconv.ParseUint(database, 10, 32)
		if err != nil || n > maxDatabase {
			return nil, errors.New("the Redis URL has a database that is not a number from 0")
		}
		l.db = int(n)
	}
	return l, nil
}

// dissect tells the parts of a URL apart: its hosts, of which there may be
// several, and all else. What the scheme and the user say is in the location.
func dissect(text string) (*location, *url.URL, string, error) {
	name, rest, _ := strings.Cut(text, "://")
	scheme, ok := schemes[strings.ToLower(name)]
	if !ok {
		return nil, nil, "", errors.New("the Redis URL must start with redis://, rediss:// or unix://, or with redis+sentinel://, redis+cluster:// or redis+quorum://")
	}
	l := &location{kind: scheme.kind, tls: scheme.tls, network: "tcp"}
	if strings.EqualFold(name, "unix") {
		l.network = "unix"
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	at := strings.LastIndex(rest[:end], "@") + 1
	u, err := url.Parse("redis://" + rest[:at] + "host" + rest[end:])
	if err != nil { // its text quotes the URL, and with it the password
		return nil, nil, "", errors.New("the Redis URL can't be parsed; special characters in user and password must be percent-encoded")
	}
	if u.User != nil {
		l.username = u.User.Username()
		if l.password, _ = u.User.Password(); l.password == "" {
			return nil, nil, "", errors.New("the Redis URL has a user but no password; write user:password@, or :password@ for the default user")
		}
	}
	if u.Fragment != "" || strings.HasSuffix(text, "#") {
		return nil, nil, "", errors.New("the Redis URL has a # part; percent-encode a # in a password as %23")
	}
	return l, u, rest[at:end], nil
}

// parseHosts reads hosts that are separated by commas, each with its port if
// that is another. None may be named twice.
func parseHosts(text, port string) ([]string, error) {
	if text == "" {
		return nil, errors.New("the Redis URL names no host; write redis://host:6379")
	}
	var addrs []string
	for host := range strings.SplitSeq(text, ",") {
		addr, err := parseHost(host, port)
		if err != nil {
			return nil, err
		}
		if slices.Contains(addrs, addr) {
			return nil, errors.New("the Redis URL names a host twice")
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

// parseHost returns host:port.
func parseHost(text, port string) (string, error) {
	host, v6 := text, false
	if inner, ok := strings.CutPrefix(text, "["); ok {
		name, rest, closed := strings.Cut(inner, "]")
		host = strings.Replace(name, "%25", "%", 1) // of a zone
		if ip, err := netip.ParseAddr(host); err != nil || !closed || !ip.Is6() || rest != "" && rest[0] != ':' {
			return "", errors.New("the Redis URL has brackets around something that is not an IPv6 address")
		}
		if v6 = true; rest != "" {
			port = rest[1:]
		}
	} else if name, given, ok := strings.Cut(text, ":"); ok {
		if strings.Contains(given, ":") {
			return "", errors.New("the Redis URL has a host with several colons; an IPv6 address needs brackets")
		}
		host, port = name, given
	}
	if host == "" {
		return "", errors.New("the Redis URL has no host before a colon or a comma")
	}
	if !v6 && strings.Trim(host, hostBytes) != "" {
		return "", errors.New("the Redis URL has a host with a character that no host has; special characters in user and password must be percent-encoded")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 || strconv.Itoa(n) != port {
		return "", errors.New("the Redis URL has a port that is not from 1 to 65535")
	}
	return net.JoinHostPort(strings.ToLower(host), port), nil
}

// hostBytes are those of a host name and of an IPv4 address.
const hostBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_"

// SplitQuorum returns the URLs of the nodes of a quorum, each that of one Redis:
//
//	redis+quorum://[[user]:password@]host[:6379],…[/database]
//
// Three, five or seven hosts make a quorum. User, password and database are
// those of every node. Errors are as those of CheckURL.
func SplitQuorum(text string) ([]string, error) {
	l, u, hosts, err := dissect(text)
	if err != nil {
		return nil, err
	}
	if l.kind != kindQuorum {
		return nil, errors.New("the Redis URL is not that of a quorum; write redis+quorum://host1,host2,host3")
	}
	addrs, err := parseHosts(hosts, redisPort)
	if err != nil {
		return nil, err
	}
	switch {
	case len(addrs) < fencing.MinNodes || len(addrs) > fencing.MaxNodes:
		return nil, errors.New("the Redis URL names too few or too many hosts: a quorum has 3, 5 or 7")
	case len(addrs)%2 == 0:
		return nil, errors.New("the Redis URL names an even number of hosts: one less survives as many failures, so a quorum has 3, 5 or 7")
	}
	node := *u
	node.Scheme = "redis"
	if l.tls {
		node.Scheme = "rediss"
	}
	urls := make([]string, len(addrs))
	for i, addr := range addrs {
		node.Host = addr
		urls[i] = node.String()
		if _, err := parseURL(urls[i]); err != nil {
			return nil, err
		}
	}
	return urls, nil
}
