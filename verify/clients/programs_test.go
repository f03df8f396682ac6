package clients

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// What separates the addresses of FENCEPOST for lockctl separates them for the programs, and empty ones are none.
func TestAddressesAreSeparated(t *testing.T) {
	t.Parallel()
	for _, l := range programs() {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			gateway := newScripted(t, func(string, int) http.HandlerFunc { return status(400, "invalid_request") })
			st := newStorage(0)
			defer st.server.Close()
			exit, said := l.outcome(t, l.prepare(t, false), " ,, http://127.0.0.1:1\t\n"+gateway.server.URL+"/ ,", st)
			if exit != 64 || !strings.Contains(said, "invalid_request") {
				t.Errorf("exit status %d, and it says %q", exit, said)
			}
		})
	}
}

// A list that is none is refused at once.
func TestAddressesAreURLs(t *testing.T) {
	t.Parallel()
	for _, list := range []string{" , ", "http://127.0.0.1:1,127.0.0.1:8080", "http://127.0.0.1:http"} {
		for _, l := range programs() {
			t.Run(l.name+"/"+list, func(t *testing.T) {
				t.Parallel()
				st := newStorage(0)
				defer st.server.Close()
				exit, said := l.outcome(t, l.prepare(t, false), list, st)
				if exit != 64 || !strings.Contains(said, "like http://127.0.0.1:8080") || strings.Contains(said, "not acquired") {
					t.Errorf("exit status %d, and it says %q", exit, said)
				}
			})
		}
	}
}

// A program that a signal ends between its first POST and the answer, whether that comes or not, has the status of that signal,
// and has released what it may have been granted. TestReleasesAreRepeated has SIGTERM while it writes.
func TestSignalsReleaseAndAreStatuses(t *testing.T) {
	t.Parallel()
	for by, moments := range map[syscall.Signal][]string{
		syscall.SIGTERM: {"asks", "asks, and is answered"},
		syscall.SIGINT:  {"asks, and is answered"},
		syscall.SIGHUP:  {"asks, and is answered"},
	} {
		for _, when := range moments {
			for _, l := range programs() {
				t.Run(l.name+"/"+by.String()+"/"+when, func(t *testing.T) {
					t.Parallel()
					l.signalledBy(t, by, when)
				})
			}
		}
	}
}

func (l language) signalledBy(t *testing.T, by syscall.Signal, when string) {
	up := make(chan *os.Process, 1)
	asked := sync.OnceFunc(func() {
		if err := (<-up).Signal(by); err != nil {
			t.Error(err)
		}
	})
	gateway := newScripted(t, nil)
	gateway.fault = func(method string, n int) http.HandlerFunc {
		if method != http.MethodPost {
			return nil
		}
		return func(w http.ResponseWriter, r *http.Request) {
			asked()
			if when == "asks" {
				<-r.Context().Done()
				return
			}
			time.Sleep(100 * time.Millisecond) // it may leave meanwhile
			gateway.grant(w, r)
		}
	}
	st := newStorage(0)
	defer st.server.Close()
	cmd, said, err := l.start(t.Context(), gateway.server.URL, l.prepare(t, true), st)
	if err != nil {
		t.Fatal(err)
	}
	up <- cmd.Process
	_ = cmd.Wait()
	exit := cmd.ProcessState.ExitCode()
	if _, released := gateway.counts(http.MethodDelete); exit != 128+int(by) || released != 1 || st.count() > 0 {
		t.Errorf("exit status %d, %d parts, %d releases: %s", exit, st.count(), released, said)
	}
}

// The bash program ends at a signal, however slowly it does: a trap runs within a read -t of the script, whose time can be over
// before that of the trap is.
func TestSlowTrapEndsBash(t *testing.T) {
	t.Parallel()
	bash := languages[0]
	dir := bash.prepare(t, true)
	path := filepath.Join(dir, bash.file)
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const kills = "\tfor group in $(jobs -p)"
	if strings.Count(string(program), kills) != 1 {
		t.Fatal("what kills its jobs is not found once")
	}
	slow := strings.Replace(string(program), kills, "\tend=$((${EPOCHREALTIME/./} + 200000))\n\twhile [ ${EPOCHREALTIME/./} -lt $end ]; do :; done\n"+kills, 1)
	if err := os.WriteFile(path, []byte(slow), 0o600); err != nil {
		t.Fatal(err)
	}
	gateway := newScripted(t, func(string, int) http.HandlerFunc { return nil })
	st := newStorage(0)
	defer st.server.Close()
	cmd, said, err := bash.start(t.Context(), gateway.server.URL, dir, st)
	if err != nil {
		t.Fatal(err)
	}
	if !st.await(2) { // it is in its loop
		t.Error("it writes nothing")
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	exit := cmd.ProcessState.ExitCode()
	if _, released := gateway.counts(http.MethodDelete); exit != 128+int(syscall.SIGTERM) || released != 1 || st.count() == parts {
		t.Errorf("exit status %d, %d parts, %d releases: %s", exit, st.count(), released, said)
	}
}
