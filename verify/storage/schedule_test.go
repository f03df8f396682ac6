package storage_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fencepost/fence/fencetest"
	"fencepost/verify/system"
)

const (
	// holderRole is the variable of the environment that makes this program the holder
	// that is stopped.
	holderRole = "STORAGE_TEST_HOLDER"

	// roundsSetting says how many schedules each recipe gets.
	roundsSetting = "FENCEPOST_ROUNDS"

	ttl      = 150 * time.Millisecond
	holders  = 3 // of a recipe, at the same time
	patience = time.Minute
)

// rounds returns how many schedules are asked for.
func rounds(t *testing.T) int {
	text := os.Getenv(roundsSetting)
	if text == "" {
		return 3
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q; it must be a positive number", roundsSetting, text)
	}
	return n
}

// acquire takes a lock of the gateway, waiting for it, and returns its token. It asks again
// where the gateway says so: on a busy machine a short lease is over before it is told.
func acquire(ctx context.Context, gateway, name string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway+"/locks/"+name,
			strings.NewReader(fmt.Sprintf(`{"ttl_ms":%d,"wait_ms":30000}`, ttl.Milliseconds())))
		if err != nil {
			return 0, err
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0, err
		}
		content, err := io.ReadAll(response.Body)
		response.Body.Close()
		switch {
		case err != nil:
			return 0, err
		case response.StatusCode == http.StatusCreated:
			return strconv.ParseInt(response.Header.Get("Fencing-Token"), 10, 64)
		case response.StatusCode != http.StatusServiceUnavailable:
			return 0, fmt.Errorf("acquire: %d %s", response.StatusCode, content)
		}
	}
}

// assignment is what a holder is told at its start.
type assignment struct {
	Recipe, Address, Gateway string
	Text                     map[string]string
}

// hold is the process that is stopped. It reads a name, takes its lock, says its token,
// reads a value and writes it, as its last look at the clock or the lock was before.
func hold() error {
	var a assignment
	if err := json.Unmarshal([]byte(os.Getenv(holderRole)), &a); err != nil {
		return err
	}
	storage, err := recipeNamed(a.Recipe).open(recipeNamed(a.Recipe), a.Text, a.Address)
	if err != nil {
		return err
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		name := in.Text()
		token, err := acquire(context.Background(), a.Gateway, name)
		if err != nil {
			return err
		}
		fmt.Println(token)
		if !in.Scan() {
			return in.Err()
		}
		err = storage.Write(context.Background(), fencetest.Write{Resource: name, Token: strconv.FormatInt(token, 10), Slot: -1, Value: in.Text()})
		switch {
		case err == nil:
			fmt.Println("written")
		case errors.Is(err, fencetest.ErrRefused):
			fmt.Println("refused")
		default:
			fmt.Println("failed:", err)
		}
	}
	return nil
}

func recipeNamed(name string) recipe {
	for _, r := range recipes {
		if r.name == name {
			return r
		}
	}
	panic(name)
}

// holder is that process, from outside.
type holder struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startHolder(t *testing.T, a assignment) *holder {
	t.Helper()
	text, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	h := &holder{cmd: exec.Command("/proc/self/exe")}
	h.cmd.Env = append(os.Environ(), holderRole+"="+string(text))
	h.cmd.Stderr = os.Stderr
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if h.in, err = h.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	h.out = bufio.NewReader(out)
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = h.cmd.Process.Kill()
		_ = h.cmd.Wait()
	})
	return h
}

func (h *holder) say(line string) error {
	_, err := io.WriteString(h.in, line+"\n")
	return err
}

func (h *holder) hear() (string, error) {
	line, err := h.out.ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}

// halt stops the process, and returns when all of it stands: until then it may still do
// what it is told.
func (h *holder) halt() error {
	if err := h.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		switch _, err := syscall.Wait4(h.cmd.Process.Pid, &status, syscall.WUNTRACED, nil); {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return err
		case !status.Stopped():
			return errors.New("the holder has ended")
		default:
			return nil
		}
	}
}

// outcome is what came of one schedule.
type outcome struct {
	answer string // of the one that was stopped
	stored string // at the end
	want   string // what the next holder wrote
}

// schedule is Kleppmann's: a holder is stopped past its TTL, the next one writes, and the
// first goes on.
func (h *holder) schedule(ctx context.Context, gateway, name string, storage fencetest.Storage) (o outcome, err error) {
	if err := h.say(name); err != nil {
		return o, err
	}
	first, err := h.hear()
	if err != nil {
		return o, err
	}
	if err := h.halt(); err != nil {
		return o, err
	}
	if err := h.say("stale-" + first); err != nil { // it finds that when it wakes up
		return o, err
	}
	second, err := acquire(ctx, gateway, name) // waits for the end of the first lease
	if err != nil {
		return o, err
	}
	if old, err := strconv.ParseInt(first, 10, 64); err != nil || second <= old {
		return o, fmt.Errorf("token %d after %q, %w", second, first, err)
	}
	o.want = "next-" + strconv.FormatInt(second, 10)
	if err := storage.Write(ctx, fencetest.Write{Resource: name, Token: strconv.FormatInt(second, 10), Slot: -1, Value: o.want}); err != nil {
		return o, fmt.Errorf("the next holder's write: %w", err)
	}
	if err := h.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return o, err
	}
	if o.answer, err = h.hear(); err != nil {
		return o, err
	}
	o.stored, err = storage.Read(ctx, name)
	return o, err
}

// A holder that was stopped past its TTL writes nothing, however often; without the guard
// it does, at least once in five.
func TestStoppedHolder(t *testing.T) {
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	n := rounds(t)
	t.Run("recipes", func(t *testing.T) {
		eachRecipe(t, func(t *testing.T, r recipe, guarded bool) {
			stopHolders(t, s.Gateways[0].URL(), r, guarded, n)
		})
	})
}

func stopHolders(t *testing.T, gateway string, r recipe, guarded bool, n int) {
	text := r.text(t, guarded)
	address := r.start(t, r, text)
	storage, err := r.open(r, text, address)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	begun, done, corrupted := 0, 0, 0
	next := func() (int, bool) {
		mu.Lock()
		defer mu.Unlock()
		begun++
		return begun, begun <= n
	}
	var all sync.WaitGroup
	for range min(holders, n) {
		h := startHolder(t, assignment{r.name, address, gateway, text})
		all.Go(func() {
			for i, ok := next(); ok; i, ok = next() {
				o, err := h.schedule(t.Context(), gateway, fmt.Sprintf("%s-%d", strings.Trim(plainName(t.Name()), "_"), i), storage)
				if err != nil {
					t.Errorf("schedule %d: %v", i, err)
					return
				}
				mu.Lock()
				done++
				if o.stored != o.want || o.answer == "written" {
					corrupted++
				}
				mu.Unlock()
				if guarded && (o.answer != "refused" || o.stored != o.want) {
					t.Errorf("schedule %d: it was answered %q, %q is stored, and %q was written last", i, o.answer, o.stored, o.want)
				}
			}
		})
	}
	all.Wait()
	kind := "with"
	if !guarded {
		kind = "without"
	}
	t.Logf("%s: %s its guard %d stopped holders, %d stale writes stand", r.name, kind, done, corrupted)
	if done != n || !guarded && 5*corrupted < n {
		t.Errorf("of %d schedules %d were played, %d corrupted", n, done, corrupted)
	}
}
