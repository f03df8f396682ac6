package sql

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// schemaVersion is the version of the tables and functions that this version of the gateway needs.
const schemaVersion = 2

var (
	//go:embed schema/postgres.sql
	postgresTables string
	//go:embed schema/postgres_rights.sql
	postgresRights string
	//go:embed schema/mysql.sql
	mysqlTables string
)

// errNoSchema says that the tables are not there.
var errNoSchema = noSchema.fault(errors.New("the table store is empty"))

// isNoSchema reports whether an error says so.
func isNoSchema(err error) bool { return err != nil && told(err) == noSchema.detail }

// schemaIs is what the store's one row says.
type schemaIs struct{ version, format int }

// isNewer reports whether another version of the gateway has made or raised them.
func (s schemaIs) isNewer() bool { return s.version > schemaVersion || s.format > machine.Format }

func (s schemaIs) check() error {
	are := fmt.Errorf("tables %d, log %d; this version has %d and %d", s.version, s.format, schemaVersion, machine.Format)
	switch {
	case s.isNewer():
		return cause{"the tables in the database are of a newer version of the gateway", "start that one"}.fault(are)
	case s.version < schemaVersion || s.format < machine.Format:
		return cause{"the tables in the database are of an older version of the gateway", "stop all gateways, then run gateway store init of this version, with -role and the gateways' user"}.fault(are)
	}
	return nil
}

// statements returns the statements of a text.
func statements(text string) []string { return strings.Split(text, "\n-- ;;\n") }

// newDatabase returns the database of a URL.
func newDatabase(address string) (database, error) {
	switch Kind(address) {
	case kindPostgres:
		return newPostgres(address)
	case kindMySQL:
		return newMySQL(address)
	}
	return nil, schemeError(address)
}

// plainURLError returns an error of a URL without what it repeats of that: there may be a password in it.
func plainURLError(err error) error {
	if of := errors.Unwrap(err); of != nil {
		return fmt.Errorf("the URL of the database has an option that can't be used: %w", of)
	}
	return errors.New("the URL of the database has an option that can't be used")
}

// Rights are those that Init gives to users who are there already.
type Rights struct {
	Gateway     string // may be a gateway's; empty: nobody
	Application string // may look at leases and guard one; empty: nobody
}

// grants returns the statements of a text that give rights. " to USER" in it stands for a name, which quote makes one of a statement.
func grants(text string, rights Rights, quote func(name string) string) (all []string) {
	gateway, application, _ := strings.Cut(text, "\n-- ;; application\n")
	for _, given := range []struct{ text, user string }{{gateway, rights.Gateway}, {application, rights.Application}} {
		if given.user != "" {
			all = append(all, statements(strings.ReplaceAll(given.text, " to USER", " to "+quote(given.user)))...)
		}
	}
	return all
}

// Outcome is what came of Init.
type Outcome struct {
	Made    bool // there were no tables before
	Raised  bool // they were of an older version
	Version int  // of the tables
}

// Script returns what Init carries out, in the language of the database of a URL.
func Script(address string, rights Rights) (string, error) {
	db, err := newDatabase(address)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	ends := ";"
	if Kind(address) == kindMySQL { // its client takes what a function has for ends of statements
		ends = "\n;;"
		text.WriteString("delimiter ;;\n\n")
	}
	for _, statement := range db.script(rights) {
		fmt.Fprintf(&text, "%s%s\n\n", strings.TrimSpace(statement), ends)
	}
	return strings.TrimSuffix(text.String(), "\n"), nil
}

// Init makes the tables of a store in the database of a URL, unless they are there, and gives rights to users. What is there is
// kept. Tables of an older version are brought up to date: no gateway may use them meanwhile. It fails where only some tables are there.
func Init(ctx context.Context, address string, rights Rights) (Outcome, error) {
	db, err := newDatabase(address)
	if err != nil {
		return Outcome{}, err
	}
	before, err := db.init(ctx, db.script(rights))
	if f := fencing.FaultOf(err); f != nil && f.Detail == noRights.detail {
		err = cause{"the user lacks rights that gateway store init needs", "run it as who may make a schema, tables and functions, and give rights to them"}.fault(f.Err)
	}
	if err != nil {
		return Outcome{}, err
	}
	is := schemaIs{schemaVersion, machine.Format}
	return Outcome{Made: before == nil, Raised: before != nil && *before != is, Version: schemaVersion}, nil
}

// checkWhole returns an error if some of the tables that a store needs are there, and others are not: what is missing would be made empty.
func checkWhole(there []string, needed ...string) error {
	missing := slices.DeleteFunc(slices.Clone(needed), func(table string) bool { return slices.Contains(there, table) })
	if len(there) == 0 || len(missing) == 0 {
		return nil
	}
	return cause{partial.detail, "if a restore was broken off, repeat it, or restore a backup; if these tables are of something else, or all leases are to be forgotten, name another database"}.fault(
		fmt.Errorf("there: %s; missing: %s", strings.Join(there, ", "), strings.Join(missing, ", ")))
}
