package sql

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"syscall"

	"fencepost/internal/fencing"
)

// cause is why a database serves no gateway, in words for who operates it.
type cause struct{ detail, remedy string }

// fault returns an error as what it is.
func (c cause) fault(err error) error {
	return &fencing.Fault{Detail: c.detail, Remedy: c.remedy, Err: err}
}

var (
	noSchema = cause{"the database has no tables of fencepost", "run gateway store init, or name in FENCEPOST_STORE the database that has them; " +
		"if they were removed, restore a backup"}
	partial  = cause{"the database lacks a part of the tables of fencepost", "if a restore was broken off, repeat it, or restore a backup"}
	password = cause{"the database refuses the user or the password", "set both in FENCEPOST_STORE to what the server has"}
	foreign  = cause{"the database takes no connections from this machine as this user", "let them in at the server: in pg_hba.conf on PostgreSQL, by the host of the user on MariaDB and MySQL"}
	nowhere  = cause{"the database server has no database of that name", "name in FENCEPOST_STORE the database that has the tables"}
	noRights = cause{"the user lacks rights that the gateway needs", "give them to the user by gateway store init -role"}
	readOnly = cause{"the database does not accept writes", "name in FENCEPOST_STORE the server that does (of a PostgreSQL all, separated by commas), or end read-only mode there"}
	full     = cause{"the database has no room: its disk, or its quota, is full", "make room there; the gateway goes on by itself then"}
	crowded  = cause{"the database has no room for another connection", "raise max_connections or the user's limit there, or end connections of others"}
	packets  = cause{"a message is larger than the database takes", "raise max_allowed_packet at the server"}
	binlog   = cause{"the database writes a binary log by statements, in which the store can't write", "set binlog_format to ROW or MIXED at the server"}
	needsTLS = cause{"the database refuses connections without TLS", "add tls=true to the URL in FENCEPOST_STORE"}
	locked   = cause{"another session keeps the store locked in the database", "end it there, unless it ends by itself: gateway doctor names it on PostgreSQL, and elsewhere SHOW FULL PROCESSLIST shows it"}
	untrusty = cause{"the certificate of the database is not one that the gateway trusts", "name the authority in the URL of FENCEPOST_STORE, by sslrootcert= or tls-ca=, and the host as the certificate has it"}
	pooled   = cause{"prepared statements do not work here: a pooler in transaction mode gives each transaction another connection", "leave prepared=true out of the URL in FENCEPOST_STORE"}
)

// outages are the ways in which a database that refuses nobody is away. They are tried in order.
var outages = []struct {
	is     func(error) bool
	detail string
}{
	{isErr(syscall.ECONNREFUSED), "nothing accepts connections at its address (connection refused): it is not running, or FENCEPOST_STORE names another host or port"},
	{isUnresolved, "its host name is not known (DNS)"},
	{isErr(syscall.ENOENT), "its socket does not exist: it is not running, or FENCEPOST_STORE names another path"},
	{isErr(syscall.EACCES, syscall.EPERM), "the operating system does not let the gateway connect to it"},
	{isErr(syscall.EHOSTUNREACH, syscall.ENETUNREACH), "there is no route to its host"},
	{isTimeout, "it does not answer in time: it may be stopped, overloaded or cut off"},
	{isErr(io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE), closes},
}

// closes is the outage of a server that is not there any more, and neither of one that refuses.
const closes = "it closes the connections: see its log"

// starting is the outage of a server that does not serve yet, or any more.
const starting = "it is starting, stopping or recovering from a crash: see its log"

// ended is the outage of a session that was ended: the server says the same of both.
const ended = "an administrator has ended its session, or it is stopping: see its log"

func isErr(targets ...error) func(error) bool {
	return func(err error) bool {
		for _, target := range targets {
			if errors.Is(err, target) {
				return true
			}
		}
		return false
	}
}

func isUnresolved(err error) bool {
	_, is := errors.AsType[*net.DNSError](err)
	return is
}

func isTimeout(err error) bool {
	timeout, is := errors.AsType[net.Error](err)
	return is && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded)
}

// isUntrusted reports whether a certificate was refused.
func isUntrusted(err error) bool {
	_, is := errors.AsType[*tls.CertificateVerificationError](err)
	_, authority := errors.AsType[x509.UnknownAuthorityError](err)
	_, host := errors.AsType[x509.HostnameError](err)
	return is || authority || host
}

// away returns an error of a connection as the outage that it is of, if that is known.
func away(err error) error {
	if isUntrusted(err) {
		return untrusty.fault(err)
	}
	for _, o := range outages {
		if o.is(err) {
			return &fencing.Outage{Detail: o.detail, Err: err}
		}
	}
	return err
}

// told returns what a person is told of an error: two that are told alike are one for the log.
func told(err error) string {
	if f := fencing.FaultOf(err); f != nil {
		return f.Detail
	}
	if o := fencing.OutageOf(err); o != nil {
		return o.Detail
	}
	return err.Error()
}
