package clients

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// goProgram is the program of examples in Go. It is built first, and its TTL stays.
var goProgram = language{"go", "nightly/main.go", "./nightly"}

// programs returns those of all languages whose commands are there.
func programs() (all []language) {
	missing := Languages{}.Missing()
	return append(slices.DeleteFunc(slices.Clone(languages), func(l language) bool { return slices.Contains(missing, l.command) }), goProgram)
}

var (
	waitOfProgram = regexp.MustCompile(`((?:acquire\(|insist POST )30(000)?\b|client\.Wait\(30)`)
	buildProgram  = sync.OnceValues(func() (content []byte, err error) {
		dir, err := os.MkdirTemp("", "fencepost-nightly")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		if said, err := exec.Command("go", "build", "-o", dir, "fencepost/examples/nightly").CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%w: %s", err, said)
		}
		return os.ReadFile(filepath.Join(dir, "nightly"))
	})
)

// prepare has a program in a directory, with a short TTL, and waiting for a second instead of 30, where it can be altered.
func (l language) prepare(t *testing.T, wait bool) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if l == goProgram {
		program, err := buildProgram()
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "nightly"), program, 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	if err := l.copy(examples, dir, languageTTL); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, l.file)
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(waitOfProgram.FindAll(program, -1)); n != 1 {
		t.Fatalf("its wait is found %d times", n)
	}
	if !wait {
		program = regexp.MustCompile(`(acquire\(|insist POST )30`).ReplaceAll(program, []byte("${1}1"))
	}
	if err := os.WriteFile(path, program, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// scripted is a gateway that grants and renews, and answers some requests otherwise.
type scripted struct {
	server *httptest.Server
	fault  func(method string, n int) http.HandlerFunc // of the nth request of that method, from 1; nil: as a gateway does

	mu   sync.Mutex
	came map[string]int // how often each method
	well map[string]int // how often it was answered as a gateway does
}

func newScripted(t *testing.T, fault func(method string, n int) http.HandlerFunc) *scripted {
	s := &scripted{fault: fault, came: map[string]int{}, well: map[string]int{}}
	s.server = httptest.NewServer(s)
	t.Cleanup(s.server.Close)
	return s
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	s.mu.Lock()
	s.came[r.Method]++
	fault := s.fault(r.Method, s.came[r.Method])
	if fault == nil {
		s.well[r.Method]++
	}
	s.mu.Unlock()
	switch {
	case fault != nil:
		fault(w, r)
	case r.Method == http.MethodDelete:
		w.WriteHeader(http.StatusNoContent)
	default:
		s.grant(w, r)
	}
}

// grant grants or renews.
func (s *scripted) grant(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.Method == http.MethodPost {
		w.WriteHeader(http.StatusCreated)
	}
	fmt.Fprintf(w, `{"name":"reports/nightly","lease_id":%q,"fencing_token":5,"ttl_ms":6000,"waited_ms":0,"expires_in_ms":%d,"renew_in_ms":300}`,
		r.Header.Get("Lease-Id"), languageTTL.Milliseconds())
}

func (s *scripted) counts(method string) (came, well int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.came[method], s.well[method]
}

// status is an answer that is no gateway's, or one of a gateway's, with its code.
func status(status int, code string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "1")
		w.Header().Set("Location", "http://127.0.0.1:1/elsewhere")
		body := "<html>what a proxy says</html>"
		if code != "" {
			w.Header().Set("Content-Type", "application/problem+json")
			body = fmt.Sprintf(`{"title":"no","status":%d,"code":%q}`, status, code)
		}
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

func hangs(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func resets(w http.ResponseWriter, _ *http.Request) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}
}

// notFinal is what may be answered beside what a gateway decides: the next gateway is asked.
var notFinal = map[string]http.HandlerFunc{
	"301": status(301, ""), "308": status(308, ""),
	"401": status(401, ""), "401 of a gateway": status(401, "unauthenticated"),
	"403": status(403, ""), "403 of a gateway": status(403, "forbidden"),
	"400": status(400, ""), "409": status(409, ""), "412": status(412, ""), "423": status(423, ""),
	"404": status(404, ""), "408": status(408, ""),
	"421": status(421, ""), "421 of a gateway": status(421, "misdirected"),
	"429": status(429, ""), "429 of a gateway": status(429, "too_many_requests"),
	"500": status(500, ""), "502": status(502, ""), "503 of a gateway": status(503, "unavailable"), "503 draining": status(503, "draining"),
	"200 that is none": status(200, ""), "a hang": hangs, "a reset": resets,
}

// outcome runs a program to its end.
func (l language) outcome(t *testing.T, dir, gateways string, st *storage, env ...string) (exit int, said string) {
	t.Helper()
	cmd, out, err := l.start(t.Context(), gateways, dir, st, env...)
	if err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	return cmd.ProcessState.ExitCode(), out.String()
}

// goesOn has one gateway answer POSTs badly, the other one PUTs, and both the first DELETE: the program asks the other one each
// time, keeps its lease, and releases it.
func (l language) goesOn(t *testing.T, how string) {
	var mu sync.Mutex
	deleted := false
	bad := func(method string) func(string, int) http.HandlerFunc {
		return func(m string, _ int) http.HandlerFunc {
			mu.Lock()
			defer mu.Unlock()
			if m == http.MethodDelete && !deleted {
				deleted = true
				return notFinal[how]
			}
			if m == method {
				return notFinal[how]
			}
			return nil
		}
	}
	a, b := newScripted(t, bad(http.MethodPost)), newScripted(t, bad(http.MethodPut))
	st := newStorage(0)
	defer st.server.Close()
	exit, said := l.outcome(t, l.prepare(t, true), a.server.URL+"/,"+b.server.URL+"/", st)
	if exit != 0 || st.count() != parts || !strings.Contains(said, "20 parts are written\n") {
		t.Errorf("%d parts, exit status %d: %s", st.count(), exit, said)
	}
	posted, _ := a.counts(http.MethodPost)
	refused, _ := b.counts(http.MethodPut)
	_, renewed := a.counts(http.MethodPut)
	_, releasedA := a.counts(http.MethodDelete)
	_, releasedB := b.counts(http.MethodDelete)
	if posted == 0 || refused == 0 || renewed < 2 || releasedA+releasedB != 1 {
		t.Errorf("%d POSTs and %d PUTs answered so, then renewed %d times, released %d times: %s", posted, refused, renewed, releasedA+releasedB, said)
	}
}

// One cell for each program here; TestSystemAnswers has all.
func TestOtherGatewayIsAsked(t *testing.T) {
	t.Parallel()
	for _, l := range programs() {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			l.goesOn(t, "404")
		})
	}
}

func TestSystemAnswers(t *testing.T) {
	t.Parallel()
	for _, l := range programs() {
		if l == goProgram { // the client's own tests have it
			continue
		}
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			for how := range notFinal { // one after the other: Java takes the machine for itself
				t.Run(how, func(t *testing.T) { l.goesOn(t, how) })
			}
		})
	}
}

// A program that is not granted the lock says why, and its status tells whose fault it is.
func TestRefusalsAreTold(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer http.HandlerFunc // nil: nobody listens
		exit   int
		slow   bool // the Go program, whose patience can't be altered, asks for long
		said   string
	}{
		"a wrong key":      {answer: status(401, "unauthenticated"), exit: 77, said: "unauthenticated"},
		"a key too small":  {answer: status(403, "forbidden"), exit: 77, said: "forbidden"},
		"a wrong URL":      {answer: status(404, ""), exit: 69, slow: true, said: "404"},
		"a wrong request":  {answer: status(400, "invalid_request"), exit: 64, said: "invalid_request"},
		"a lease id used":  {answer: status(409, "conflict"), exit: 75, slow: true, said: "conflict"},
		"held":             {answer: status(423, "wait_timeout"), exit: 75, slow: true, said: "wait_timeout"},
		"a limit":          {answer: status(429, "too_many_requests"), exit: 75, slow: true, said: "too_many_requests"},
		"a quarantine":     {answer: status(503, "quarantined"), exit: 75, slow: true, said: "quarantined"},
		"a redirect":       {answer: status(308, ""), exit: 64, said: "308"},
		"a proxy's 502":    {answer: status(502, ""), exit: 69, slow: true, said: "502"},
		"nobody listening": {exit: 69, slow: true, said: "http://127.0.0.1:1/locks/reports/nightly"},
	} {
		for _, l := range programs() {
			if l == goProgram && c.slow {
				continue
			}
			t.Run(name+"/"+l.name, func(t *testing.T) {
				t.Parallel()
				gateway := "http://127.0.0.1:1"
				if c.answer != nil {
					gateway = newScripted(t, func(string, int) http.HandlerFunc { return c.answer }).server.URL
				}
				st := newStorage(0)
				defer st.server.Close()
				exit, said := l.outcome(t, l.prepare(t, false), gateway, st)
				if exit != c.exit || !strings.Contains(said, c.said) || st.count() > 0 {
					t.Errorf("exit status %d, want %d, and it says %q", exit, c.exit, said)
				}
			})
		}
	}
}

// A release that is not answered, or answered by something else, is repeated: at the end of the work, and after SIGTERM. A list of
// which the first address is dead is a list.
func TestReleasesAreRepeated(t *testing.T) {
	t.Parallel()
	for _, l := range programs() {
		for _, signalled := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%t", l.name, signalled), func(t *testing.T) {
				t.Parallel()
				gateway := newScripted(t, func(method string, n int) http.HandlerFunc {
					if method == http.MethodDelete && n == 1 {
						return status(500, "")
					}
					return nil
				})
				st := newStorage(0)
				defer st.server.Close()
				cmd, said, err := l.start(t.Context(), "http://127.0.0.1:1,"+gateway.server.URL, l.prepare(t, true), st)
				if err != nil {
					t.Fatal(err)
				}
				want := 0
				if signalled {
					want = 128 + int(syscall.SIGTERM)
					if !st.await(1) {
						t.Error("it writes nothing")
					}
					if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
						t.Error(err)
					}
				}
				_ = cmd.Wait()
				exit := cmd.ProcessState.ExitCode()
				if came, well := gateway.counts(http.MethodDelete); exit != want || came != 2 || well != 1 || signalled == (st.count() == parts) {
					t.Errorf("exit status %d, %d parts, %d releases, of which %d were answered: %s", exit, st.count(), came, well, said)
				}
			})
		}
	}
}

// What the storage answers is told, and that there is none.
func TestFailedWritesAreTold(t *testing.T) {
	t.Parallel()
	for _, l := range programs() {
		for how, want := range map[failure]string{answers500: "500", breaksOff: ""} {
			t.Run(l.name+"/"+string(how), func(t *testing.T) {
				t.Parallel()
				gateway := newScripted(t, func(string, int) http.HandlerFunc { return nil })
				st := newStorage(0)
				defer st.server.Close()
				st.fail(3, how)
				exit, said := l.outcome(t, l.prepare(t, true), gateway.server.URL, st)
				told := regexp.MustCompile(`(?m)^part 4 is not written: .*\S\S\S`).FindString(said)
				if exit != 1 || told == "" || !strings.Contains(told, want) {
					t.Errorf("exit status %d, and it says %q", exit, said)
				}
			})
		}
	}
}

// The end of a lease is told with what the gateway has answered.
func TestLossIsTold(t *testing.T) {
	t.Parallel()
	for _, l := range programs() {
		for how, want := range map[string]string{"lost": "lease_lost", "not renewed": "404"} {
			if l == goProgram && how != "lost" { // its TTL is long; that of ErrUnknown is tested in client
				continue
			}
			t.Run(l.name+"/"+how, func(t *testing.T) {
				t.Parallel()
				gateway := newScripted(t, func(method string, n int) http.HandlerFunc {
					switch {
					case method != http.MethodPut:
						return nil
					case how == "lost":
						return status(412, "lease_lost")
					}
					return status(404, "")
				})
				st := newStorage(languageTTL / parts)
				defer st.server.Close()
				exit, said := l.outcome(t, l.prepare(t, true), gateway.server.URL, st)
				if exit != exitLost || !strings.Contains(said, want) {
					t.Errorf("exit status %d, and it says %q", exit, said)
				}
			})
		}
	}
}

// The storage to try the programs with says what to do where another program has its port.
func TestSampleStorageNamesPort(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	var said bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "python3", examples+"/storage.py")
	cmd.Env, cmd.Stderr = append(os.Environ(), "PORT="+port), &said
	_ = cmd.Run()
	if line := said.String(); cmd.ProcessState.ExitCode() != 1 || strings.Count(line, "\n") != 1 || !strings.Contains(line, "127.0.0.1:"+port) || !strings.Contains(line, "set PORT") {
		t.Errorf("exit status %d, and it says %q", cmd.ProcessState.ExitCode(), line)
	}
}
