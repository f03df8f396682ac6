package redis

import (
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

const maxDatabase = 1<<31 - 1

// CheckURL says what is wrong with the URL of a Redis, without asking it and
// without quoting a password; nil if Open understands it.
func CheckURL(text string) error {
	_, err := parseURL(text)
	return err
}

// parseURL reads where Redis is:
//
//	redis://[[user]:password@]host[:port][/database]
//	rediss://…                      the same over TLS 1.2 or newer
//	unix://[[user]:password@]/path/to/socket[?db=database]
//
// Errors say what is wrong and never quote the part that may hold a password.
func parseURL(text string) (*goredis.Options, error) {
	u, err := url.Parse(text)
	if err != nil { // its text quotes the URL, and with it the password
		return nil, errors.New("the Redis URL can't be parsed; special characters in user and password must be percent-encoded")
	}
	o := &goredis.Options{}
	if u.User != nil {
		o.Username = u.User.Username()
		o.Password, _ = u.User.Password()
		if o.Password == "" {
			return nil, errors.New("the Redis URL has a user but no password; write user:password@, or :password@ for the default user")
		}
	}
	if u.Fragment != "" {
		return nil, errors.New("the Redis URL has a # part; percent-encode a # in a password as %23")
	}
	query := u.Query()
	database := ""
	switch u.Scheme {
	case "redis", "rediss":
		if u.Hostname() == "" {
			return nil, errors.New("the Redis URL names no host; write redis://host:6379")
		}
		o.Network, o.Addr = "tcp", net.JoinHostPort(u.Hostname(), portOr(u.Port(), "6379"))
		if n, err := strconv.Atoi(portOr(u.Port(), "6379")); err != nil || n < 1 || n > 65535 {
			return nil, errors.New("the Redis URL has a port that is not from 1 to 65535")
		}
		database = strings.TrimPrefix(u.Path, "/")
		if u.Scheme == "rediss" {
			o.TLSConfig = &tls.Config{ServerName: u.Hostname(), MinVersion: tls.VersionTLS12}
		}
	case "unix":
		if u.Host != "" || u.Path == "" || u.Path == "/" {
			return nil, errors.New("the Redis URL names no socket; write unix:///path/to/redis.sock, with three slashes")
		}
		o.Network, o.Addr = "unix", u.Path
		database = query.Get("db")
		query.Del("db")
	default:
		return nil, errors.New("the Redis URL must start with redis://, rediss:// or unix://")
	}
	if len(query) > 0 { // not quoted: it may be the end of a password with a question mark
		return nil, errors.New("the Redis URL has an unknown option after its question mark; only unix:// has one, db")
	}
	if database != "" {
		n, err := strconv.ParseUint(database, 10, 32)
		if err != nil || n > maxDatabase {
			return nil, errors.New("the Redis URL has a database that is not a number from 0")
		}
		o.DB = int(n)
	}
	return o, nil
}

func portOr(port, fallback string) string {
	if port == "" {
		return fallback
	}
	return port
}
