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

Makes the tables of FENCEPOST_STORE=postgres://... or mysql://... in that database, as far as they
are not there, and says what it did. What is there is kept, so it may be done again. The user of the
URL has to be one who may make a schema; no gateway needs these rights afterwards.

  -print       print the statements instead, for whoever may carry them out
  -role NAME   give this user, who is there already, the rights that a gateway in use needs, and no more
               (MariaDB, MySQL: NAME@HOST, of any host if none is named)
  -app NAME    give this one those of an application: to look at leases (the view fencepost.leases) and
               to have a transaction check one (the function fencepost.guard)

After an update it brings the tables up to date, where the new version needs others. Then all gateways
are to be stopped first.

It exits with 0 if it was done, 1 if not, and 2 if the command line or the settings are at fault.
`

// storeCommand makes the tables of the store of the settings.
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
	switch {
	case errors.Is(err, flag.ErrHelp) || verb == "help":
		_, err := fmt.Fprint(out, storeHelp)
		return err
	case err == nil && verb == "":
		err = errors.New("what is to be done? init")
	case err == nil && verb != "init":
		err = fmt.Errorf("there is no command %q", verb)
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("%q is one argument too many", flags.Arg(0))
	}
	if err != nil {
		return usageError{fmt.Errorf("store: %w; see gateway store -help", err)}
	}
	cfg, err := loadConfig()
	if err != nil {
		return err
	}
	if !cfg.onDatabase() {
		return usageError{errors.New("store: FENCEPOST_STORE is neither postgres:// nor mysql://, and other stores need no tables")}
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
	did := "The tables were there already"
	switch {
	case is.Made:
		did = "The tables are made"
	case is.Raised:
		did = "The tables are brought up to date"
	}
	if strings.HasPrefix(where, "postgres") {
		where = "the schema fencepost of " + where
	}
	_, err := fmt.Fprintf(out, "%s, in %s: version %d.\n", did, where, is.Version)
	if rights.Gateway != "" && err == nil {
		_, err = fmt.Fprintf(out, "%s has the rights of a gateway.\n", rights.Gateway)
	}
	if rights.Application != "" && err == nil {
		_, err = fmt.Fprintf(out, "%s may look at leases, and check one in a transaction.\n", rights.Application)
	}
	return err
}
