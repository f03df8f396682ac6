package sql

import (
	"context"
	"database/sql/driver"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"fencepost/internal/machine"
)

//go:embed schema/mysql_rights.sql
var mysqlRights string

// script implements database.
func (m *mysqlServer) script(rights Rights) []string {
	all := append(statements(mysqlTables), statements(mysqlLeases)...)
	all = append(all, fmt.Sprintf("insert into store values (1, %d, %d) on duplicate key update version = greatest(version, %[1]d), format = greatest(format, %[2]d)",
		schemaVersion, machine.Format))
	return append(all, grants(mysqlRights, rights, mysqlUser)...)
}

// mysqlUser returns a user, NAME or NAME@HOST, as statements have it.
func mysqlUser(name string) string {
	quote := func(text string) string { return "'" + strings.NewReplacer(`\`, `\\`, "'", "''").Replace(text) + "'" }
	if at := strings.LastIndex(name, "@"); at >= 0 {
		return quote(name[:at]) + "@" + quote(name[at+1:])
	}
	return quote(name) + "@'%'"
}

// mysqlOwn are the tables that gateways need.
var mysqlOwn = []string{"store", "log", "snapshot", "snapshotter", "lease", "renewal"}

// init implements database. What was made before an error stays, and is made no second time.
func (m *mysqlServer) init(ctx context.Context, statements []string) (before *schemaIs, err error) {
	connecting, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if before, err = m.schema(connecting); err != nil {
		return nil, err
	}
	c, err := m.open(connecting)
	if err != nil {
		return nil, err
	}
	defer c.close()
	var there []string
	if err := c.ask(ctx, "do get_lock('fencepost store init', 30); select table_name from information_schema.tables where table_schema = database() and table_name in ('"+strings.Join(mysqlOwn, "', '")+"') order by 1", nil,
		func(row []driver.Value) error {
			there = append(there, text(row[0]))
			return nil
		}); err != nil {
		return nil, err
	}
	if err := checkWhole(there, mysqlOwn...); err != nil {
		if begun, cause := c.isBegun(ctx, there); !begun || cause != nil {
			return nil, errors.Join(err, cause)
		}
	}
	if c.kind.maria { // else a user who is not there is made, without a password
		statements = append([]string{"set session sql_mode = concat(@@session.sql_mode, ',NO_AUTO_CREATE_USER')"}, statements...)
	}
	for _, statement := range statements {
		if err := c.ask(ctx, statement, nil); err != nil {
			return nil, err
		}
	}
	return before, nil
}

// isBegun reports whether the tables that are there may be what an init has made that was broken off: it begins with store, whose row it
// writes last, and until then nothing else is in them.
func (c *mysqlConn) isBegun(ctx context.Context, there []string) (is bool, err error) {
	is = slices.Contains(there, "store")
	for _, table := range there {
		if table != "snapshotter" {
			err = errors.Join(err, c.ask(ctx, "select 1 from "+table+" limit 1", nil, func([]driver.Value) error {
				is = false
				return nil
			}))
		}
	}
	return is, err
}

// schema returns what tables there are, nil if there are none. It fails if they are of a newer version.
func (m *mysqlServer) schema(ctx context.Context) (is *schemaIs, err error) {
	c, err := m.open(ctx)
	if err != nil {
		return nil, err
	}
	defer c.close()
	err = c.ask(ctx, "select version, format from store where id = 1", nil, func(row []driver.Value) error {
		is = &schemaIs{int(number(row[0])), int(number(row[1]))}
		return nil
	})
	switch {
	case isNoSchema(err):
		return nil, nil
	case err == nil && is != nil && is.isNewer():
		err = is.check()
	}
	return is, err
}
