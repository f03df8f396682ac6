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
		"options", "passfile", "port", "prepared", "require_auth", "sslcert", "sslcertmode", "sslkey", "sslmode", "sslnegotiation", "sslpassword",
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

// others are schemes by which other programs know databases, without jdbc: before and a driver after them.
var others = map[string]string{"mariadb": "mysql", "mysql": "mysql", "mysql2": "mysql", "postgres": "postgres", "postgresql": "postgres", "pgsql": "postgres"}

// Scheme returns what a URL is to begin with that is one of another program's, such as mariadb:// or jdbc:postgresql://. It returns "" if
// nothing is known of the scheme, or Kind knows it.
func Scheme(text string) string {
	scheme, _, found := strings.Cut(text, "://")
	if !found || Kind(text) != "" {
		return ""
	}
	scheme, _, _ = strings.Cut(strings.TrimPrefix(strings.ToLower(scheme), "jdbc:"), "+")
	if meant := others[scheme]; meant != "" {
		return meant + "://"
	}
	return ""
}

// schemeError is about a URL that Kind does not know.
func schemeError(text string) error {
	if meant := Scheme(text); meant != "" {
		return fmt.Errorf("the URL of the database has a scheme of another program: write %s", meant)
	}
	return errors.New("the URL of a database begins with postgres:// or mysql://")
}

// CheckURL says what is wrong with the URL of a database, without asking anything there and without quoting a password; nil if Open
// understands it:
//
//	postgres://user[:password]@host[:5432][,host…]/database[?option=value&…]
//	mysql://user[:password]@host[:3306]/database[?option=value&…]
//
// Of several hosts one is used that can be written to. An IPv6 address stands in brackets. For a Unix socket the host is left out:
// for PostgreSQL the option host is its directory and port its number, if that is not 5432; for MySQL the option socket is its path.
//
// The options of PostgreSQL are those of libpq that the driver understands, and prepared=true, which has statements be prepared also
// behind a pooler. Those of MySQL are tls (true, false, skip-verify or preferred; without it false) and, with tls=true, tls-ca: a file with the
// authorities that may have signed the certificate of the server.
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
		hosts = p.options.Get(sockets[p.kind]) + ":" + p.options.Get("port")
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
		return nil, schemeError(text)
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
	for _, check := range []func() error{p.checkHosts, p.checkDatabase, p.checkOptions, p.checkMySQL} {
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
	case socket && strings.HasPrefix(p.hosts, ":") && p.kind == kindPostgres:
		return errors.New("the URL of the database names the port of a socket before its path; write ?host=/directory&port=5432")
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
	if strings.Contains(strings.ToUpper(host), "%2F") {
		return errors.New("the URL of the database has a path in the place of a host; for a socket write postgres://user@/database?host=/directory&port=5432, or mysql://user@/database?socket=/path")
	}
	if strings.Trim(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") != "" {
		return errors.New("the URL of the database has a host with a character that no host has; special characters in user and password must be percent-encoded")
	}
	if ported && !isPort(port) {
		return errors.New("the URL of the database has a port that is not from 1 to 65535")
	}
	return nil
}

func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
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

// checkMySQL says what is wrong with a URL of MariaDB or MySQL besides.
func (p *parts) checkMySQL() error {
	switch {
	case p.kind != kindMySQL:
		return nil
	case p.user == "":
		return errors.New("the URL of the database names no user; write mysql://user:password@host/database")
	case p.options.Has("tls-ca") && p.options.Get("tls") != "true":
		return errors.New("the option tls-ca of the URL of the database needs tls=true")
	}
	return nil
}

func (p *parts) checkOptions() error {
	socket := p.kind == kindPostgres && p.hosts == "" // checkHosts wants one then
	for name, given := range p.options {
		shown := strconv.Quote(name) + " "
		if strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-") != "" {
			shown = "" // it may be the end of a password with a question mark
		}
		switch known := values[name]; {
		case slices.Contains([]string{"user", "password", "dbname", "port"}, name) && !(name == "port" && socket):
			return fmt.Errorf("the URL of the database has the option %q; write %s://user:password@host:port/database", name, p.scheme)
		case !slices.Contains(options[p.kind], name):
			return fmt.Errorf("the URL of the database has an unknown option %safter its question mark; there are %s", shown, strings.Join(options[p.kind], ", "))
		case name == "port" && !isPort(given[0]):
			return errors.New("the URL of the database has a port that is not from 1 to 65535")
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
