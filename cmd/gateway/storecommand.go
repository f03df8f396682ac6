package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"fencepost/internal/sql"
)

// initTimeout bounds how long it takes to make the tables: to alter one waits for those that use it.
const initTimeout = time.Minute

const storeHelp = `Usage: gateway store init [-print] [-role NAME] [-app NAME]
       gateway store hold COMMAND [ARGUMENT...]

init creates the missing tables in the database of FENCEPOST_STORE=postgres://... or mysql://..., and prints
what it did. Existing tables are kept, so you can repeat it. The user of the URL must have the right to
create a schema; gateways do not need that right.

  -print       only print the statements, for somebody else to run
  -role NAME   give this existing user exactly the rights that a gateway needs
               (MariaDB, MySQL: NAME@HOST; any host by default)
  -app NAME    give this existing user the rights of an application: to read leases (the view
               fencepost.leases) and to check one in a transaction (the function fencepost.guard)

After an upgrade it updates the tables if the new version needs that. Stop all gateways first in that
case.

hold runs a command, such as a restore, while no gateway uses the tables: gateways that run answer 503
until it ends, then go on by themselves. It waits up to 20 s for what they have begun. Any user who may
connect will do (MariaDB, MySQL: the gateway's). Signals are passed on. If the connection to the
database is lost, it asks the command to end, and fails; gateways go on.

It exits with 0 on success, 1 on failure, and 2 if the command line or the settings are wrong; hold with
the status of the command (126 or 127 if that can't be run, 128 plus the signal's number if a signal
ended it).
`

// storeCommand makes the tables of the store of the settings, or keeps gateways from them.
func storeCommand(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("store", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	printed := flags.Bool("print", false, "")
	var rights sql.Rights
	flags.StringVar(&rights.Gateway, "role", "", "")
	flags.StringVar(&rights.Application, "app", "", "")
	verb := ""
	if len(args) > 0 && args[0] != "" && args[0][0] != '-' {
		verb, args = args[0], args[1:]
	}
	err := flags.Parse(args)
	holds := verb == "hold"
	switch {
	case errors.Is(err, flag.ErrHelp) || verb == "help":
		_, err := fmt.Fprint(out, storeHelp)
		return err
	case err == nil && verb == "":
		err = errors.New("a command is missing: init or hold")
	case err == nil && holds && flags.NFlag() > 0:
		err = errors.New("hold has no flags of its own: write -- before a command that begins with a dash")
	case err == nil && holds && flags.NArg() == 0:
		err = errors.New("hold needs a command to run")
	case err == nil && holds:
	case err == nil && verb != "init":
		err = fmt.Errorf("there is no command %q", verb)
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("%q is an unexpected argument", flags.Arg(0))
	}
	if err != nil {
		return usageError{fmt.Errorf("store: %w; see gateway store -help", err)}
	}
	cfg, err := loadConfig()
	if err != nil {
		return err
	}
	if !cfg.onDatabase() {
		return usageError{errors.New("store: FENCEPOST_STORE is neither postgres:// nor mysql://; other stores need no tables")}
	}
	if holds {
		return holdWhile(ctx, cfg, flags.Args())
	}
	if *printed {
		text, err := sql.Script(cfg.Store, rights)
		if err != nil {
			return fmt.Errorf("FENCEPOST_STORE: %w", err)
		}
		_, err = fmt.Fprint(out, text)
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, initTimeout)
	defer cancel()
	is, err := sql.Init(ctx, cfg.Store, rights)
	if err != nil {
		return fmt.Errorf("store init: %w", err)
	}
	return printInit(out, location(cfg.Store), is, rights)
}

func printInit(out io.Writer, where string, is sql.Outcome, rights sql.Rights) error {
	did := "The tables existed already"
	switch {
	case is.Made:
		did = "The tables were made"
	case is.Raised:
		did = "The tables were updated"
	}
	if strings.HasPrefix(where, "postgres") {
		where = "the schema fencepost of " + where
	}
	_, err := fmt.Fprintf(out, "%s, in %s: version %d.\n", did, where, is.Version)
	if rights.Gateway != "" && err == nil {
		_, err = fmt.Fprintf(out, "%s has the rights of a gateway.\n", rights.Gateway)
	}
	if rights.Application != "" && err == nil {
		_, err = fmt.Fprintf(out, "%s may read leases, and check one in a transaction.\n", rights.Application)
	}
	return err
}
