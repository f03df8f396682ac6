package sql

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"fencepost/internal/fencing"
)

// postgresError returns an error in words for whoever runs the gateway; nil for nil.
func postgresError(err error) error {
	var refusal *pgconn.PgError
	var connecting *pgconn.ConnectError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refusal):
		return postgresSays(refusal)
	case errors.As(err, &connecting):
		err = attempts{errors.Unwrap(connecting)}
		if strings.Contains(err.Error(), "read only connection") { // of several hosts none accepts writes
			return readOnly.fault(err)
		}
		return away(fmt.Errorf("the database can't be reached: %w", err))
	}
	return away(fmt.Errorf("the connection to the database failed: %w", err))
}

// closed closes the results of a batch, and returns its first error: to close them returns that once more.
func closed(r pgx.BatchResults, err error) error { return cmp.Or(err, r.Close()) }

// sqlStates are what a server says by SQLSTATE of what it lacks or refuses, and sqlStarts those of one that starts or ends. sqlTroubles are the classes of
// those that are about no statement: connections, transactions that were ended, resources, operators and the system.
var (
	sqlStates = map[string]cause{
		"3D000": nowhere, "3F000": noSchema, "42P01": noSchema, "ZF500": noSchema, "28000": foreign, "28P01": password, "25006": readOnly, "55000": readOnly,
		"42501": noRights, "42P05": pooled, "26000": pooled, "53100": full, "53300": crowded,
	}
	sqlTroubles = map[string]bool{"08": true, "40": true, "53": true, "57": true, "58": true}
	sqlStarts   = map[string]string{"57P01": ended, "57P02": starting, "57P03": starting}
)

// postgresSays returns what the server has said in words. What it says of a transaction, and may do when it is asked again, is refused; what is about
// the server is not.
func postgresSays(said *pgconn.PgError) error {
	if said.Code == stateHeld {
		return held("")
	}
	if said.Code == "55P03" {
		return lockedBy("")
	}
	err := fmt.Errorf("the database refuses: %s (SQLSTATE %s)", said.Message, said.Code)
	if detail, is := sqlStarts[said.Code]; is {
		return &fencing.Outage{Detail: detail, Err: err}
	}
	known, is := sqlStates[said.Code]
	if said.Code == "42P01" && !strings.Contains(said.Message, "fencepost.store") { // which is asked for first; in quotes of the server's language
		known, is = partial, strings.Contains(said.Message, "fencepost.") // or else a trigger lacks another one
	}
	switch {
	case is && (known == noRights || known == noSchema || known == partial):
		return unclear{known.fault(err)}
	case is && known != full:
		return known.fault(err)
	case is:
		err = known.fault(err)
	case !sqlTroubles[said.Code[:min(2, len(said.Code))]]:
		err = unclear{err}
	}
	if said.SeverityUnlocalized == "ERROR" && said.Code != "40001" && said.Code != "40P01" {
		err = refused{err, postgresRefusal(said.Code)}
	}
	return err
}

// attempts is why no connection could be opened: one error for each address, with TLS and without.
type attempts struct{ error }

func (a attempts) Unwrap() error { return a.error }

// Error is one line.
func (a attempts) Error() string {
	lines := strings.Split(a.error.Error(), "\n")
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "; ")
}

// undecidedUnlessRefused returns an error that wraps errUndecided, unless the server says that it has rolled the transaction back.
func undecidedUnlessRefused(err error) error {
	var refusal *pgconn.PgError
	if errors.As(err, &refusal) && refusal.SeverityUnlocalized == "ERROR" && refusal.Code != "57014" {
		return postgresError(err)
	}
	return fmt.Errorf("%w: %w", errUndecided, postgresError(err))
}

// standbyError returns the error of beginWriting. A standby has another code for that than for a statement that writes.
func standbyError(err error) error {
	var refusal *pgconn.PgError
	if errors.As(err, &refusal) && refusal.Code == "0A000" {
		refusal.Code = "25006"
	}
	return err
}
