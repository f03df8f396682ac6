package sql

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"

	"fencepost/internal/fencing"
)

// mysqlSettings are the variables that an examination looks at. A server leaves out those that it does not have.
const mysqlSettings = `show global variables where variable_name in ('innodb_flush_log_at_trx_commit', 'innodb_doublewrite', 'innodb_flush_method',
'log_bin', 'sync_binlog', 'binlog_format', 'read_only', 'innodb_read_only');
show global status where variable_name in ('Slave_running', 'Slaves_connected')`

// mysqlFacts are what a server says of itself, by names in small letters.
type mysqlFacts map[string]string

func (c *mysqlConn) examine(ctx context.Context) ([]fencing.Finding, error) {
	f := mysqlFacts{}
	read := func(row []driver.Value) error {
		f[strings.ToLower(text(row[0]))] = text(row[1])
		return nil
	}
	if err := c.ask(ctx, mysqlSettings, nil, read, read); err != nil {
		return nil, err
	}
	return []fencing.Finding{c.kind.finding(), f.persistence(), f.pages(), f.binlog(), f.role(), f.replicas()}, nil
}

// finding is about the version. Older ones than a turn can do with are refused before.
func (k *mysqlKind) finding() fencing.Finding {
	const check = "version"
	if k.maria {
		return fine(check, "this is "+k.String())
	}
	return fine(check, "this is "+k.String()+"; the promises are tested with MariaDB, and this version treats it like one")
}

const onlyQuarantine = "; only a quarantine keeps them from being granted again meanwhile"

// persistence judges what a power loss forgets.
func (f mysqlFacts) persistence() fencing.Finding {
	const check = "persistence"
	switch flush := f["innodb_flush_log_at_trx_commit"]; flush {
	case "1", "3":
	default:
		return finding(check, "P1", fmt.Sprintf("a crash forgets about the last second of grants: innodb_flush_log_at_trx_commit is %s%s", flush, onlyQuarantine),
			"innodb_flush_log_at_trx_commit = 1")
	}
	if method := f["innodb_flush_method"]; strings.EqualFold(method, "nosync") || strings.EqualFold(method, "littlesync") {
		return finding(check, "P1", fmt.Sprintf("a power loss forgets grants: innodb_flush_method is %s%s", method, onlyQuarantine), "innodb_flush_method = O_DIRECT")
	}
	return fine(check, "grants are on disk before they are answered")
}

// pages judges what a power loss leaves of the files.
func (f mysqlFacts) pages() fencing.Finding {
	const check = "pages"
	if on := f["innodb_doublewrite"]; on != "" && !isOn(on) {
		return finding(check, "P1", "a power loss while a page is written may leave half of it, and the database can't be started again: innodb_doublewrite is "+on,
			"innodb_doublewrite = ON, unless the file system writes pages whole")
	}
	return fine(check, "pages that a power loss tears are mended")
}

// binlog judges the binary log, by which a server decides after a crash what it had committed.
func (f mysqlFacts) binlog() fencing.Finding {
	const check = "binlog"
	switch {
	case !isOn(f["log_bin"]):
		return fine(check, "there is no binary log")
	case strings.EqualFold(f["binlog_format"], "STATEMENT"):
		return finding(check, "", "nothing can be written: binlog_format is STATEMENT, which does not work with transactions at READ COMMITTED", "binlog_format = ROW")
	case f["sync_binlog"] != "1":
		return finding(check, "P1", fmt.Sprintf("a power loss forgets the last grants, as after it only what is in the binary log counts: sync_binlog is %s%s", f["sync_binlog"], onlyQuarantine),
			"sync_binlog = 1")
	}
	return fine(check, "the binary log is on disk before grants are answered")
}

// role judges whether the server is the one to write to.
func (f mysqlFacts) role() fencing.Finding {
	const check = "role"
	switch {
	case isOn(f["read_only"]) || isOn(f["innodb_read_only"]):
		return finding(check, "", "this server is read-only: every request is answered 503", "use the URL of the server that accepts writes")
	case isOn(f["slave_running"]):
		return finding(check, "P1, P2", "this server replicates from another one, and can be written to: gateways that write to both of them grant one lock twice",
			"have all gateways use one server, and read_only = ON on its replicas")
	}
	return fine(check, "this server accepts writes")
}

// replicas are none of the promises' while a fail-over is noticed. Semi-synchronous ones are no better: after a timeout they are not waited for.
func (f mysqlFacts) replicas() fencing.Finding {
	const check = "replicas"
	if n := f["slaves_connected"]; n != "" && n != "0" {
		return fine(check, fmt.Sprintf("replicas that follow: %s. A fail-over to one may lose the last grants; then there is a quarantine", n))
	}
	return fine(check, "no replica is known to follow")
}
