package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"

	"fencepost/internal/auth"
)

// watchKeys has the keys file read now and whenever it has changed; nil if there is none.
func watchKeys(cfg config, watched *files, log *slog.Logger) (*auth.Keys, error) {
	if cfg.KeysFile == "" {
		return nil, nil
	}
	var keys *auth.Keys
	err := watched.add(file{setting: "FENCEPOST_KEYS_FILE", paths: []string{cfg.KeysFile}, public: true, apply: func(contents [][]byte) error {
		set, err := auth.Parse(contents[0])
		if err != nil {
			return err
		}
		if keys == nil {
			keys = auth.New(set, nil)
			log.Info("requests need a key", "keys", keys.Len())
			return nil
		}
		for _, change := range keys.Replace(set) {
			auditKey(watched.audit, change)
		}
		return nil
	}})
	return keys, err
}

// auditKey writes the line of a key that has come, gone or changed.
func auditKey(audit *slog.Logger, change auth.Change) {
	p := change.Principal
	attrs := []any{slog.String("event", "key "+change.Kind), slog.String("principal", p.Name)}
	if p.ID != "" {
		attrs = append(attrs, slog.String("key", p.ID))
	}
	attrs = append(attrs, slog.String("scope", p.Scopes()), slog.String("prefix", p.Names().String()))
	if expires := p.Expires(); expires.IsZero() {
		attrs = append(attrs, slog.String("expires", "never"))
	} else {
		attrs = append(attrs, slog.Time("expires", expires))
	}
	audit.Info("audit", slog.Group("audit", attrs...))
}

// keygen makes a key. The line for the keys file goes to out and the key itself, alone,
// to secret: it is nowhere else, and not shown again.
func keygen(args []string, out, secret io.Writer) error {
	flags := flag.NewFlagSet("keygen", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	name := flags.String("name", "", "")
	scopes := flags.String("scope", "", "")
	prefixes := flags.String("prefix", "", "")
	expires := flags.String("expires", "", "")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, err := fmt.Fprint(out, keygenHelp)
		return err
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("there is an unexpected argument")
	case err == nil && (*name == "" || *scopes == "" || *prefixes == ""):
		err = errors.New("-name, -scope and -prefix are needed")
	}
	if err != nil {
		return usageError{fmt.Errorf("keygen: %w; see gateway keygen -help", err)}
	}
	key := auth.NewKey()
	line, err := auth.Line(key, *name, *scopes, *prefixes, *expires)
	if err != nil {
		return usageError{fmt.Errorf("keygen: %w", err)}
	}
	_, err = fmt.Fprintln(out, line)
	if err == nil {
		_, err = fmt.Fprintln(secret, key.Reveal())
	}
	return err
}

const keygenHelp = `Usage: gateway keygen -name NAME -scope SCOPES -prefix PREFIXES [-expires TIME]

Makes a key. Standard output gets the line for FENCEPOST_KEYS_FILE, with the hash of the key.
Standard error gets the key itself, which is stored nowhere else. Set umask 077 so that only
the owner can read the files:

  gateway keygen -name ci -scope lock,read -prefix jobs/ >>keys 2>ci.key

  -name     who the key belongs to, for logs
  -scope    what it may do: read, lock, fence or admin, or several separated by commas
  -prefix   which names it may use: jobs/ (all below jobs), jobs (that name and all below
            it), several separated by commas, or * (every name)
  -expires  when it expires, like 2027-01-01T00:00:00Z; by default never
`
