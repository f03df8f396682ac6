package clients

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"fencepost/client"
	"fencepost/verify/check"
	"fencepost/verify/system"
)

// Languages runs the programs of examples as they are, but for the TTL where a lease has to end.
type Languages struct {
	Dir string // the path of examples
}

// language is one of them.
type language struct {
	name    string
	file    string
	command string
}

var languages = []language{
	{"bash", "nightly.sh", "bash"},
	{"python", "nightly.py", "python3"},
	{"javascript", "nightly.mjs", "node"},
	{"java", "Nightly.java", "java"},
}

// parts is how many the programs write.
const parts = 20

var ttlOfProgram = regexp.MustCompile(`((?:ttl|TTL) ?= ?)30000`)

// Missing returns the commands that are not there.
func (Languages) Missing() (missing []string) {
	for _, l := range languages {
		if _, err := exec.LookPath(l.command); err != nil {
			missing = append(missing, l.command)
		}
	}
	return missing
}

// Run runs those whose commands are there.
func (o Languages) Run(ctx context.Context, r *check.Result) error {
	missing := o.Missing()
	errs := make([]error, len(languages))
	var running sync.WaitGroup
	for i, l := range languages {
		if slices.Contains(missing, l.command) {
			r.Note("%s is not there: its program was not run", l.command)
			continue
		}
		running.Go(func() {
			if err := l.run(ctx, o.Dir, r); err != nil {
				errs[i] = fmt.Errorf("%s: %w", l.name, err)
			}
		})
	}
	running.Wait()
	r.Reach("programs", len(languages)-len(missing), len(languages))
	return errors.Join(errs...)
}

// copy writes the program into another directory, with a TTL.
func (l language) copy(examples, dir string, ttl time.Duration) error {
	program, err := os.ReadFile(filepath.Join(examples, l.file))
	if err != nil {
		return err
	}
	if len(ttlOfProgram.FindAll(program, -1)) != 1 {
		return errors.New("its TTL is not found once")
	}
	program = ttlOfProgram.ReplaceAll(program, []byte("${1}"+strconv.FormatInt(ttl.Milliseconds(), 10)))
	return os.WriteFile(filepath.Join(dir, l.file), program, 0o600)
}

// javaOptions: Java compiles a program for longer than it runs here.
const javaOptions = "JAVA_TOOL_OPTIONS=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

// patienceOfPrograms bounds each trial of a program: Java takes long to start, the more so
// beside others.
const patienceOfPrograms = 5 * patience

// Where a lease has to end, it is soon: languageTTL is in place of the documented TTL.
const (
	documentedTTL = 30 * time.Second
	languageTTL   = 6 * time.Second
)

func (l language) run(ctx context.Context, examples string, r *check.Result) error {
	s, err := system.Start(system.Options{Store: system.Embedded})
	if err != nil {
		return err
	}
	defer s.Close()
	dir, err := os.MkdirTemp("", "fencepost-languages")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := l.copy(examples, dir, documentedTTL); err != nil {
		return err
	}
	if err := l.inTurn(ctx, s, dir, r); err != nil {
		return err
	}
	if err := errors.Join(l.storageFails(ctx, s, dir, r), l.raises(ctx, s, dir, r), l.signalled(ctx, s, dir, r)); err != nil {
		return err
	}
	if err := l.copy(examples, dir, languageTTL); err != nil {
		return err
	}
	return errors.Join(l.inTime(ctx, s, dir, r), l.stoppedPast(ctx, s, dir, r), l.hungUp(ctx, s, dir, r), l.despiteAnswers(ctx, dir, r), l.slowly(ctx, dir, r), l.lateAnswers(ctx, s, dir, r))
}

// start starts the program, with the gateway at a URL.
func (l language) start(ctx context.Context, gateway, dir string, st *storage, env ...string) (cmd *exec.Cmd, said *bytes.Buffer, err error) {
	cmd, said = exec.CommandContext(ctx, l.command, l.file), &bytes.Buffer{}
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, said, said
	cmd.Env = append(os.Environ(), "FENCEPOST="+gateway, "STORAGE="+st.server.URL, "no_proxy=*", javaOptions)
	cmd.Env = append(cmd.Env, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	return cmd, said, cmd.Start()
}

// exitNotHad is a program's status for a lock that it has waited for in vain.
const exitNotHad = 75

var errNotHad = errors.New("the lock was not to be had")

// inTurn runs two at a time: all parts come, and those of the two are not mixed.
func (l language) inTurn(ctx context.Context, s *system.System, dir string, r *check.Result) error {
	ctx, cancel := context.WithTimeout(ctx, patienceOfPrograms)
	defer cancel()
	st := newStorage(0)
	defer st.server.Close()
	errs := make([]error, 2)
	var running sync.WaitGroup
	for i := range errs {
		running.Go(func() {
			for errs[i] = errNotHad; errs[i] == errNotHad; { // the other one takes its time
				cmd, said, err := l.start(ctx, s.Gateways[0].URL(), dir, st)
				if err == nil {
					err = cmd.Wait()
				}
				switch errs[i] = nil; {
				case cmd.ProcessState.ExitCode() == exitNotHad:
					errs[i] = errNotHad
				case err != nil:
					errs[i] = fmt.Errorf("%w: %s", err, said)
				}
			}
		})
	}
	running.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	var tokens []int64 // in the order of the parts
	for _, p := range st.taken {
		if len(tokens) == 0 || tokens[len(tokens)-1] != p.token {
			tokens = append(tokens, p.token)
		}
	}
	if len(st.taken) != 2*parts || len(tokens) != 2 || tokens[0] >= tokens[1] || st.refused != 0 {
		r.Violation("%s: %d parts under the tokens %v in turn, %d refused", l.name, len(st.taken), tokens, st.refused)
	}
	return l.isFree(ctx, s, "its end", r)
}

// isFree holds it against the program if its lock is held after something.
func (l language) isFree(ctx context.Context, s *system.System, after string, r *check.Result) error {
	c, err := client.New(client.Options{Addresses: []string{s.Gateways[0].URL()}})
	if err != nil {
		return err
	}
	defer c.Close()
	seen, err := c.Inspect(ctx, lockOfPrograms)
	if err == nil && seen.Held {
		r.Violation("%s: the lock is held after %s", l.name, after)
	}
	return err
}

// inTime stops the gateway in the middle: no part may come when the lease may have ended.
func (l language) inTime(ctx context.Context, s *system.System, dir string, r *check.Result) error {
	ctx, cancel := context.WithTimeout(ctx, patienceOfPrograms)
	defer cancel()
	st := newStorage(languageTTL / parts)
	defer st.server.Close()
	cmd, said, err := l.start(ctx, s.Gateways[0].URL(), dir, st)
	if err != nil {
		return err
	}
	if !st.await(3) {
		return errors.Join(fmt.Errorf("it writes nothing: %s", said), cmd.Cancel(), cmd.Wait())
	}
	stopped := time.Now()
	if err := s.Gateways[0].Pause(); err != nil {
		return err
	}
	_ = cmd.Wait()
	st.mu.Lock()
	last := st.taken[len(st.taken)-1].at
	st.mu.Unlock()
	margin := stopped.Add(languageTTL).Sub(last)
	r.Count(l.name+" stopped writing before the end of its lease by", margin)
	if status := cmd.ProcessState.ExitCode(); status != exitLost || margin <= 0 {
		r.Violation("%s: its last part came %s before the lease's end at the latest, exit status %d: %s", l.name, margin, status, said)
	}
	return s.Gateways[0].Resume()
}

// storage takes parts, and refuses stale tokens.
type storage struct {
	server *httptest.Server
	slow   time.Duration // how long an answer takes, so that the work outlasts a lease

	mu      sync.Mutex
	highest int64
	taken   []part
	refused int
	more    chan struct{} // closed with the next part that is taken
	tried   []part        // all writes, in the order in which they came
	reach   func(moment)  // told that a write has come, and before it is answered; nil: nobody is told

	after  int // so many parts something happens to the next, or to the answer of the last
	how    failure
	failed int           // how many were tried after it had failed
	held   chan struct{} // closed to have the last answered; nil: none is held
}

// failure is how storage fails.
type failure string

const (
	answers500 failure = "500"
	breaksOff  failure = "no answer"
)

// fail has all writes after so many parts fail.
func (st *storage) fail(after int, how failure) { st.after, st.how = after, how }

// hold has the answer to the part of that number wait until it is let go.
func (st *storage) hold(number int) (answer func()) {
	st.after, st.held = number, make(chan struct{})
	return sync.OnceFunc(func() { close(st.held) })
}

func (st *storage) failures() int {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.failed
}

type part struct {
	token int64
	at    time.Time
	taken bool // false: refused
	next  bool // of the next holder
}

// take is a write of the next holder, under its token.
func (st *storage) take(token int64) {
	st.mu.Lock()
	defer st.mu.Unlock()
	taken := token >= st.highest
	st.highest = max(st.highest, token)
	st.tried = append(st.tried, part{token, time.Now(), taken, true})
}

func (st *storage) tries() []part {
	st.mu.Lock()
	defer st.mu.Unlock()
	return slices.Clone(st.tried)
}

func newStorage(slow time.Duration) *storage {
	st := &storage{slow: slow, more: make(chan struct{})}
	st.server = httptest.NewServer(st)
	return st
}

func (st *storage) count() int {
	st.mu.Lock()
	defer st.mu.Unlock()
	return len(st.taken)
}

// await waits until so many parts were taken, and reports whether they were.
func (st *storage) await(n int) bool {
	late := time.After(patience)
	for {
		st.mu.Lock()
		enough, more := len(st.taken) >= n, st.more
		st.mu.Unlock()
		if enough {
			return true
		}
		select {
		case <-more:
		case <-late:
			return false
		}
	}
}

func (st *storage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token, err := strconv.ParseInt(r.Header.Get("Fencing-Token"), 10, 64)
	body, readErr := io.ReadAll(r.Body)
	if st.reach != nil {
		st.reach(sent("write")) // which may keep it
		defer st.reach(answered("write"))
	}
	came := time.Now()
	defer time.Sleep(st.slow)
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.how != "" && len(st.taken) == st.after {
		st.failed++
		if st.how == breaksOff {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	switch {
	case r.Method != http.MethodPut || err != nil || readErr != nil || !bytes.HasPrefix(body, []byte("part ")):
		w.WriteHeader(http.StatusBadRequest)
	case token < st.highest:
		st.refused++
		st.tried = append(st.tried, part{token: token, at: came})
		w.WriteHeader(http.StatusPreconditionFailed)
	default:
		st.highest = token
		st.taken = append(st.taken, part{token: token, at: time.Now(), taken: true})
		st.tried = append(st.tried, part{token: token, at: came, taken: true})
		close(st.more)
		st.more = make(chan struct{})
		if st.held != nil && len(st.taken) == st.after {
			st.mu.Unlock()
			<-st.held
			st.mu.Lock()
		}
	}
}
