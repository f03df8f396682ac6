package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"fencepost/client"
	"fencepost/fence/fencetest"
	"fencepost/internal/lines"
	"fencepost/internal/variables"
)

// version is set by the Makefile's build.
var version = "dev"

// patience is how long gateways may fail to answer, at least.
const patience = 5 * time.Second

const defaultGateway = "http://127.0.0.1:8080"

// settings are what flags and the environment say.
type settings struct {
	gateways string
	output   string

	ttl, wait, grace, maxHold, lockDelay time.Duration
	shared                               bool
	permit, permits, limit               int
	owner                                string
	also                                 names
	metadata                             entries
	passLeaseID, passKey                 bool
	quiet                                bool
	conflictExit                         int

	write, read string
	issued      bool
	attack      fencetest.Options

	admit bool
	slot  int

	filter client.Filter
	encode bool          // the names
	reason string        // of a break or an eviction
	notice time.Duration // of a break; 0: none is given
	yes    bool          // to a break of all leases of an owner

	noticeSignal     string // of run
	atLeast          time.Duration
	atLeastOnFailure bool
	withParent       bool
}

// call is one use of a command.
type call struct {
	settings
	args   []string
	asked  bool // -gateway says which gateways
	out    io.Writer
	err    io.Writer
	shell  forShell // of acquire
	client *client.Client
	unsaid bool // no gateway could be told of the end
}

// mostSaid and mostBytesSaid bound what waits until it is read, and endOfSpeech how long what was said last is waited for.
const (
	mostSaid      = 100
	mostBytesSaid = 1 << 20
	endOfSpeech   = time.Second
)

// command is one of what lockctl does.
type command struct {
	name, args, summary string
	least, most         int // arguments; most below 0: any number
	named               int // how many of them, the first, are names; below 0: all
	offline             bool
	flags               func(s *settings, f *flag.FlagSet)
	run                 func(ctx context.Context, c *call) error
	notes               string // what the help says besides
}

// commands lists all, in the order of the help.
func commands() []command {
	return []command{
		{name: "run", args: "NAME -- COMMAND [ARGUMENT...]", summary: "run a command under a lock", least: 2, most: -1, named: 1, flags: runFlags, run: runUnder, notes: runHelp},
		{name: "acquire", args: "NAME", summary: "acquire a lease, and print it for eval", least: 1, most: 1, named: 1, flags: leaseFlags, run: acquire},
		{name: "renew", args: "NAME...", summary: "renew the lease of $LEASE_ID", least: 1, most: -1, named: -1, flags: renewFlags, run: renew},
		{name: "release", args: "NAME...", summary: "release the lease of $LEASE_ID", least: 1, most: -1, named: -1, run: release},
		{name: "ls", args: "[PREFIX]", summary: "list the locks that are held", most: 1, flags: listFlags, run: list},
		{name: "get", args: "NAME", summary: "show a lock, its holders and its queue", least: 1, most: 1, named: 1, run: get},
		{name: "watch", args: "[PREFIX]", summary: "show changes of locks as they happen", most: 1, run: watch},
		{name: "history", args: "NAME", summary: "show the recent holders of a lock", least: 1, most: 1, named: 1, run: history},
		{name: "break", args: "NAME TOKEN", summary: "end the lease with this token, whoever holds it", most: 2, named: 1, flags: breakFlags, run: breakLease, notes: breakHelp},
		{name: "evict", args: "NAME LEASE", summary: "remove a waiter from the queue, by the public part of its lease id", least: 2, most: 2, named: 1, flags: evictFlags, run: evict},
		{name: "fence", args: "NAME TOKEN", summary: "show the state of a fencing token, or admit the token", least: 2, most: 2, named: 1, flags: fenceFlags, run: fence, notes: fenceHelp},
		{name: "attack", args: "[URL]", summary: "attack storage with stale and forged fencing tokens", most: 1, flags: attackFlags, run: attack, notes: attackHelp},
		{name: "doctor", summary: "show what every gateway has found", run: doctor},
		{name: "completion", args: "bash|zsh|fish", summary: "print a script that completes commands and names", least: 1, most: 1, offline: true, run: completion},
	}
}

// Exit statuses, as sysexits.h and timeout(1) have them.
const (
	exitFailed      = 1
	exitUsage       = 64
	exitUnreachable = 69
	exitNotAcquired = 75
	exitNotAllowed  = 77
	exitLost        = 124
	exitNotRunnable = 126
	exitNotFound    = 127
)

// exit is an error that has a status of its own. err may be nil: all has been said.
type exit struct {
	status int
	err    error
	by     syscall.Signal // lockctl ends by this signal, where it can, so that a shell sees what it sees without lockctl; 0: by none
	typed  bool           // on the terminal: those who would have got it there, were it not the command's, get it too
}

func (e exit) Error() string { return fmt.Sprint(e.err) }
func (e exit) Unwrap() error { return e.err }

func usage(format string, args ...any) error {
	return exit{status: exitUsage, err: fmt.Errorf(format, args...)}
}

// run is the program; it returns the exit status, unless lockctl is to end by a signal.
func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	to := &checked{Writer: out}
	err := dispatch(ctx, args, to, errOut)
	if err == nil {
		err = to.err // what was not written is missed by who reads it
	}
	status := statusOf(err)
	var e exit
	if own := errors.As(err, &e); err != nil && !(own && e.err == nil) {
		said := lines.New(errOut, mostSaid, mostBytesSaid) // signals are caught by now: a pipe that nobody reads would hold it for good
		fmt.Fprintln(said, "lockctl:", err)
		if advice := accessAdvice(err); advice != "" {
			fmt.Fprintln(said, "lockctl:", advice)
		}
		said.Close(endOfSpeech)
	}
	if e.by != 0 {
		endBy(e.by, e.typed)
	}
	return status
}

// checked is a writer that remembers its first failure.
type checked struct {
	io.Writer
	err error
}

func (w *checked) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if w.err == nil {
		w.err = err
	}
	return n, err
}

// statusOf says what a failure is for scripts.
func statusOf(err error) int {
	var e exit
	var refused *client.Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.status
	case errors.Is(err, client.ErrUnreachable):
		return exitUnreachable
	case errors.Is(err, client.ErrUnknown):
		return exitLost
	case errors.Is(err, client.ErrEvicted):
		return exitNotAcquired
	case errors.As(err, &refused):
		switch refused.Code {
		case client.CodeLeaseLost:
			return exitLost
		case client.CodeLocked, client.CodeWaitTimeout, client.CodeTooManyRequests, client.CodeQuarantined, client.CodeReplaced, client.CodeConflict:
			return exitNotAcquired
		case client.CodeUnauthenticated, client.CodeForbidden:
			return exitNotAllowed
		case client.CodeInvalidRequest, client.CodeUnsupportedByStore:
			return exitUsage
		}
	}
	return exitFailed
}

func dispatch(ctx context.Context, args []string, out, errOut io.Writer) error {
	if len(args) == 0 {
		printHelp(errOut)
		return exit{status: exitUsage}
	}
	switch args[0] {
	case "-help", "--help", "-h", "help":
		for _, cmd := range commands() {
			if len(args) > 1 && cmd.name == args[1] {
				cmd.printHelp(out)
				return nil
			}
		}
		return printHelp(out)
	case "-version", "--version":
		_, err := fmt.Fprintln(out, "lockctl", version)
		return err
	}
	if len(args) > 1 && args[0] == "completion" && args[1] == "names" { // what the scripts ask for
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, namesWithin)
		defer end()
		args = slices.Concat([]string{"ls", "-o", "name"}, args[2:])
	}
	for _, cmd := range commands() {
		if cmd.name == args[0] {
			return cmd.use(ctx, args[1:], out, errOut)
		}
	}
	if slices.Contains(args, "acquire") { // behind its flags
		shell := forShell{out: out, done: asksJSON(args)}
		shell.fail(exitUsage)
	}
	var known []string
	for _, cmd := range commands() {
		known = append(known, cmd.name)
	}
	meant := cmp.Or(otherNames[args[0]], variables.Nearest(args[0], known))
	if meant != "" {
		meant = "; did you mean " + meant + "?"
	}
	return usage("there is no command %q%s; see lockctl -help", args[0], meant)
}

// otherNames are what people look for under another name.
var otherNames = map[string]string{"lock": "run or acquire", "unlock": "release", "list": "ls", "status": "get or doctor", "version": "-version"}

// flagSet returns the flags of a command, which fill s.
func (cmd command) flagSet(s *settings) *flag.FlagSet {
	f := flag.NewFlagSet(cmd.name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	if cmd.offline {
		return f
	}
	f.StringVar(&s.gateways, "gateway", cmp.Or(os.Getenv(gatewaysVariable), defaultGateway), "`URLs` of gateways, separated by commas or spaces; default: $FENCEPOST, or "+defaultGateway)
	if cmd.name != "run" {
		f.StringVar(&s.output, "o", "text", "output `format`: text, or json with an object a line")
	}
	if cmd.named != 0 {
		f.BoolVar(&s.encode, "encode", false, "NAME can be any text: bytes that a name can't have, and ~, are written as ~ and two hexadecimal digits")
	}
	if cmd.flags != nil {
		cmd.flags(s, f)
	}
	return f
}

// use parses the arguments and runs the command.
func (cmd command) use(ctx context.Context, args []string, out, errOut io.Writer) error {
	c := &call{out: out, err: errOut, shell: forShell{out: out, done: asksJSON(args)}}
	err := cmd.do(ctx, c, args)
	err = cmd.hint(c, err)
	if err != nil && cmd.name == "acquire" {
		c.shell.fail(statusOf(err))
	}
	return err
}

func (cmd command) do(ctx context.Context, c *call, args []string) error {
	f := cmd.flagSet(&c.settings)
	f.VisitAll(explainTimes)
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		cmd.printHelp(c.out)
		return nil
	case err != nil:
		return usage("%w; see lockctl %s -help", err, cmd.name)
	}
	c.args = f.Args()
	f.Visit(func(given *flag.Flag) { c.asked = c.asked || given.Name == "gateway" })
	if late := cmd.lateFlag(f, args); late != "" {
		return usage("the flag %s comes before the name: lockctl %s [flags] %s", late, cmd.name, cmd.args)
	}
	if cmd.name == "run" && len(c.args) > 1 && c.args[1] == "--" {
		c.args = slices.Delete(c.args, 1, 2)
	}
	if n := len(c.args); n < cmd.least || cmd.most >= 0 && n > cmd.most {
		return usage("usage: lockctl %s", strings.TrimSpace(cmd.name+" [flags] "+cmd.args))
	}
	if c.encode {
		cmd.encodeNames(c)
	}
	if !cmd.offline && c.output != "" && c.output != "text" && c.output != "json" && !(cmd.name == "ls" && c.output == "name") {
		return usage("-o is %q; it must be text or json", c.output)
	}
	if !cmd.offline {
		err := checkEnvironment()
		if err != nil {
			return err
		}
		// Who waits for a lock waits for a gateway as well.
		o := client.Options{Addresses: strings.FieldsFunc(c.gateways, betweenAddresses), Owner: cmp.Or(c.owner, cmd.asker()), Patience: max(patience, c.wait), Header: traceHeader()}
		if err = setAccess(&o); err != nil {
			return err
		}
		if c.client, err = client.New(o); err != nil {
			return exit{status: exitUsage, err: err}
		}
	}
	err := cmd.run(ctx, c)
	if c.client != nil {
		c.close(err)
	}
	return err
}

// asker is whom a lease belongs to that outlives this process: who started it, such as a shell. Else "": this process.
func (cmd command) asker() string {
	host, err := os.Hostname()
	if cmd.name != "acquire" || err != nil {
		return ""
	}
	return fmt.Sprintf("%s:%d", host, os.Getppid())
}

// close closes the client, which may give up what was acquired. Where no gateway can be
// reached that is not waited for.
func (c *call) close(err error) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		c.client.Close()
	}()
	var late <-chan time.Time
	if c.unsaid || errors.Is(err, client.ErrUnreachable) {
		late = time.After(lastWord)
	}
	select {
	case <-closed:
	case <-late:
	}
}

func printHelp(out io.Writer) error {
	fmt.Fprint(out, "Usage: lockctl COMMAND [flags] [arguments]\n\n"+
		"The variable FENCEPOST has the URLs of the gateways, separated by commas or\nspaces; without it "+defaultGateway+" is asked.\n\n")
	for _, cmd := range commands() {
		fmt.Fprintf(out, "  %-38s %s\n", strings.TrimSpace(cmd.name+" "+cmd.args), cmd.summary)
	}
	_, err := fmt.Fprint(out, accessHelp+`
lockctl COMMAND -help lists the flags of a command. lockctl -version prints the version.

Exit status: 0; with run, the status of the command (128 plus the signal's number, if a signal
ended it); or
   64  the command line is wrong
   69  no gateway can be reached
   75  the lock was not acquired: somebody else has it, or no leases are granted now;
       -conflict-exit sets another status
   77  not allowed
  124  the lease was lost or could not be renewed in time: the command was ended
  126  the command can't be run
  127  the command was not found
    1  anything else
In each case lockctl prints the reason on stderr, except for 75 with -q.
`)
	return err
}

func (cmd command) printHelp(out io.Writer) {
	fmt.Fprintf(out, "Usage: lockctl %s\n\n%s\n", strings.TrimSpace(cmd.name+" [flags] "+cmd.args), cmd.summary)
	var s settings
	f := cmd.flagSet(&s)
	f.VisitAll(func(one *flag.Flag) { // the same whatever the environment says
		if one.Name == "gateway" {
			one.DefValue = ""
		}
	})
	fmt.Fprintln(out)
	f.SetOutput(out)
	f.PrintDefaults()
	fmt.Fprint(out, cmd.notes)
}
