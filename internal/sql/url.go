package sql

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// The kinds of databases that a URL can stand for, as Kind returns them.
const (
	kindPostgres = "postgres"
	kindMySQL    = "mysql" // MariaDB too
)

var schemes = map[string]string{"postgres": kindPostgres, "postgresql": kindPostgres, "mysql": kindMySQL}

// options are those that a URL may have. What else PostgreSQL's driver is given it sends to the server as a setting, so that a misspelt
// one would be found out by nobody here.
var options = map[string][]string{
	kindPostgres: {
		"application_name", "channel_binding", "client_encoding", "connect_timeout", "host", "max_protocol_version", "min_protocol_version",
		"options", "passfile", "prepared", "require_auth", "sslcert", "sslcertmode", "sslkey", "sslmode", "sslnegotiation", "sslpassword",
		"sslrootcert", "sslsni", "target_session_attrs",
	},
	kindMySQL: {"socket", "tls", "tls-ca"},
}

// sockets is the option that names a Unix socket.
var sockets = map[string]string{kindPostgres: "host", kindMySQL: "socket"}

// values are those that an option may have.
var values = map[string][]string{
	"prepared":             {"true", "false"},
	"sslmode":              {"disable", "allow", "prefer", "require", "verify-ca", "verify-full"},
	"target_session_attrs": {"any", "read-write", "primary"},
	"tls":                  {"true", "false", "skip-verify", "preferred"},
}

// Kind returns what the URL of a store stands for, by its scheme alone: "postgres", "mysql", or "" if it is neither.
func Kind(text string) string {
	scheme, _, found := strings.Cut(text, "://")
	if !found {
		return ""
	}
	return schemes[strings.ToLower(scheme)]
}

// CheckURL says what is wrong with the URL of a database, without asking anything there and without quoting a password; nil if Open
// understands it:
//
//	postgres://user[:password]@host[:5432][,host…]/database[?option=value&…]
//	mysql://user[:password]@host[:3306]/database[?option=value&…]
//
// Of several hosts the first is used that can be written to. An IPv6 address stands in brackets. For a Unix socket the host is left
// out, and the option host is its directory (PostgreSQL), or socket its path (MySQL). The options of PostgreSQL are those of libpq that the driver understands, and
// prepared=true, which has statements be prepared; those of MySQL are tls (true, skip-verify, preferred) and tls-ca, a file of
// authorities.
func CheckURL(text string) error {
	_, err := dissect(text)
	return err
}

// Location returns where a database is, without user, password and options.
func Location(text string) string {
	p, err := dissect(text)
	if err != nil {
		scheme, _, _ := strings.Cut(text, "://")
		return scheme + "://"
	}
	hosts := p.hosts
	if hosts == "" {
		hosts = p.options.Get(sockets[p.kind]) + ":"
	}
	return p.scheme + "://" + hosts + "/" + p.database
}

// parts are those of a URL.
type parts struct {
	scheme, kind   string
	user, password string
	hosts          string
	database       string
	options        url.Values
}

// dissect tells the parts of a URL apart. Its errors quote no part that may hold a password.
func dissect(text string) (*parts, error) {
	scheme, rest, _ := strings.Cut(text, "://")
	p := &parts{scheme: strings.ToLower(scheme), kind: Kind(text)}
	if p.kind == "" {
		return nil, errors.New("the URL of a database begins with postgres:// or mysql://")
	}
	if strings.Contains(rest, "#") {
		return nil, errors.New("the URL of the database has a # part; percent-encode a # in a password as %23")
	}
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	at := strings.LastIndex(rest[:end], "@") + 1
	u, err := url.Parse("database://" + rest[:at] + "host" + rest[end:])
	if err == nil {
		p.options, err = url.ParseQuery(u.RawQuery)
	}
	if err != nil { // its text quotes the URL
		return nil, errors.New("the URL of the database can't be parsed; special characters in user and password must be percent-encoded")
	}
	if u.User != nil {
		p.user = u.User.Username()
		p.password, _ = u.User.Password()
	}
	p.hosts, p.database = rest[at:end], strings.TrimPrefix(u.Path, "/")
	for _, check := range []func() error{p.checkHosts, p.checkDatabase, p.checkOptions} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *parts) checkHosts() error {
	option := sockets[p.kind]
	switch socket := p.options.Has(option); {
	case p.hosts == "" && socket:
		if path := p.options.Get(option); !strings.HasPrefix(path, "/") {
			return fmt.Errorf("the option %s in the URL of the database is not the path of a socket, which begins with a slash", option)
		}
		return nil
	case socket:
		return fmt.Errorf("the URL of the database names a host, and has the option %s as well; leave one of them out", option)
	case p.hosts == "":
		return fmt.Errorf("the URL of the database names no host; write %s://user:password@host/database", p.scheme)
	case p.kind == kindMySQL && strings.Contains(p.hosts, ","):
		return errors.New("the URL of the database names several hosts; mysql:// takes one")
	}
	for host := range strings.SplitSeq(p.hosts, ",") {
		if err := checkHost(host); err != nil {
			return err
		}
	}
	return nil
}

// checkHost says what is wrong with a host, which may have a port.
func checkHost(text string) error {
	host, port, ported := strings.Cut(text, ":")
	if inner, ok := strings.CutPrefix(text, "["); ok {
		name, rest, closed := strings.Cut(inner, "]")
		ip, err := netip.ParseAddr(strings.Replace(name, "%25", "%", 1)) // of a zone
		if err != nil || !closed || !ip.Is6() || rest != "" && rest[0] != ':' {
			return errors.New("the URL of the database has brackets around something that is not an IPv6 address")
		}
		host, port, ported = "", strings.TrimPrefix(rest, ":"), rest != ""
	} else if host == "" {
		return errors.New("the URL of the database has no host before a colon or a comma")
	}
	if strings.Trim(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") != "" {
		return errors.New("the URL of the database has a host with a character that no host has; special characters in user and password must be percent-encoded")
	}
	if n, err := strconv.Atoi(port); ported && (err != nil || n < 1 || n > 65535) {
		return errors.New("the URL of the database has a port that is not from 1 to 65535")
	}
	return nil
}

func (p *parts) checkDatabase() error {
	switch {
	case p.database == "":
		return fmt.Errorf("the URL of the database does not say which one; write %s://user:password@host/database", p.scheme)
	case strings.Contains(p.database, "/"):
		return errors.New("the URL of the database has a slash in the name of the database")
	}
	return nil
}

func (p *parts) checkOptions() error {
	for name, given := range p.options {
		shown := strconv.Quote(name) + " "
		if strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-") != "" {
			shown = "" // it may be the end of a password with a question mark
		}
		switch known := values[name]; {
		case slices.Contains([]string{"user", "password", "dbname", "port"}, name):
			return fmt.Errorf("the URL of the database has the option %q; write %s://user:password@host:port/database", name, p.scheme)
		case !slices.Contains(options[p.kind], name):
			return fmt.Errorf("the URL of the database has an unknown option %safter its question mark; there are %s", shown, strings.Join(options[p.kind], ", "))
		case len(given) != 1 || known != nil && !slices.Contains(known, given[0]):
			wanted := "one value"
			if known != nil {
				wanted = "one of " + strings.Join(known, ", ")
			}
			return fmt.Errorf("the option %s of the URL of the database takes %s", name, wanted)
		}
	}
	return nil
}
