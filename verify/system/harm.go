package system

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"fencepost/verify/check"
)

// biteTimeout bounds how long a fault may take until it shows that it has done something, while clients use the system: none that
// works takes so long.
const biteTimeout = 60 * time.Second

// Harm is a fault that is under way.
type Harm struct {
	to   string // whom it is done to
	what string // is done, in the plural

	// seen counts that, from the begin of the fault until now, by what shows at whom it is done to: a process's state, a server's
	// reply, what strace or a proxy has counted. That something was asked for is not enough. It is called more than once.
	seen func() (int, error)

	// heal undoes it, and waits until the processes and their topology are as before.
	heal func() error
}

// NewHarm returns a fault that is under way. seen counts what it has done since it began, as it shows at whom it is done to, and
// may be called more than once; heal undoes it.
func NewHarm(to, what string, seen func() (int, error), heal func() error) *Harm {
	return &Harm{to, what, seen, heal}
}

// End heals a fault once it has done something, and returns what. If ctx ends before that, or clients that do not use what it is
// done to have it wait for biteTimeout, it has done nothing.
func (h *Harm) End(ctx context.Context) (did check.Harm, err error) { return h.end(ctx, biteTimeout) }

func (h *Harm) end(ctx context.Context, timeout time.Duration) (did check.Harm, err error) {
	did = check.Harm{To: h.to, What: h.what}
	for deadline := time.Now().Add(timeout); ; time.Sleep(5 * time.Millisecond) {
		did.N, err = h.seen()
		if err != nil || did.N > 0 || ctx.Err() != nil || time.Now().After(deadline) {
			break
		}
	}
	return did, errors.Join(err, h.heal())
}

// Do has a fault last for as long as last takes, and longer if it has done nothing by then, and returns what it has done. ctx ends
// when nobody uses the system any more.
func (f Fault) Do(ctx context.Context, s *System, random *rand.Rand, last func()) (did check.Harm, err error) {
	harm, err := f.Inject(s, random)
	if err != nil {
		return did, fmt.Errorf("%s: %w", f.Name, err)
	}
	last()
	if did, err = harm.End(ctx); err != nil {
		err = fmt.Errorf("end of %s: %w", f.Name, err)
	}
	return did, err
}

// AtOnce is a fault that is over when it is done. What finds nothing to do harm to is done again, until it does.
func AtOnce(to, what string, do func() (int, error)) (*Harm, error) {
	n, err := do()
	if err != nil {
		return nil, err
	}
	seen := func() (int, error) {
		if n > 0 {
			return n, nil
		}
		n, err = do()
		return n, err
	}
	return &Harm{to, what, seen, func() error { return nil }}, nil
}

// Since returns how much a counter has grown since now.
func Since(counter func() int) (seen func() (int, error)) {
	before := counter()
	return func() (int, error) { return counter() - before, nil }
}

// Killed is a fault that has ended processes; started, they are there again.
func Killed(to string, start func() error, pids ...int) *Harm {
	return &Harm{to, "processes ended", func() (int, error) { return Ended(pids...), nil }, start}
}

// Paused is a fault that has processes stand still until they are resumed.
func Paused(to string, resume func() error, pids ...int) *Harm {
	return &Harm{to, "processes standing still", func() (int, error) { return Standing(pids...), nil }, resume}
}

// Ended returns how many of some processes there are no more, or whose parent alone has not noticed yet.
func Ended(pids ...int) (n int) {
	for _, pid := range pids {
		if state := stateOf(fmt.Sprintf("/proc/%d/stat", pid)); state == "" || strings.Contains("ZX", state) {
			n++
		}
	}
	return n
}

// Standing returns how many of some processes stand still with all their threads.
func Standing(pids ...int) (n int) {
	for _, pid := range pids {
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		standing := err == nil && len(threads) > 0
		for _, thread := range threads {
			standing = standing && stateOf(fmt.Sprintf("/proc/%d/task/%s/stat", pid, thread.Name())) == "T"
		}
		if standing {
			n++
		}
	}
	return n
}

// stateOf returns the letter of proc(5) for a process or a thread, "" for one that is not there.
func stateOf(stat string) string {
	text, err := os.ReadFile(stat)
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')'):]), " ")
	return rest[:min(len(rest), 1)]
}
