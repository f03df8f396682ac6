package redistest

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

//go:embed testdata/clock.c
var clockSource []byte

// Clock is the wall clock of one server. It goes right until it is set.
type Clock struct{ file *os.File }

// StartWithClock is Start for a server with a wall clock of its own: TIME and the expiry of keys
// go by it. It is a library that is preloaded, so gcc is needed.
func StartWithClock(t testing.TB, args ...string) *Server {
	t.Helper()
	args = append([]string{"--jemalloc-bg-thread", "no"}, args...) // it would wait by this clock for a moment of the kernel's
	return endWithTest(t)(run(&Server{args: args, clock: &Clock{}}))
}

// Clock returns the clock of a server of StartWithClock, and nil of others.
func (s *Server) Clock() *Clock { return s.clock }

// Set sets the clock ahead of the right time by so much, or of the time at which it stands.
func (c *Clock) Set(ahead time.Duration) error { return c.write(0, ahead.Microseconds()) }

// Stop makes the clock stand at a time, to the microsecond; time.Time{} lets it go.
func (c *Clock) Stop(at time.Time) error {
	if at.IsZero() {
		return c.write(1, 0)
	}
	return c.write(1, at.UnixMicro())
}

// close forgets the file, which goes with its directory.
func (c *Clock) close() error {
	if c == nil || c.file == nil {
		return nil
	}
	return c.file.Close()
}

// write writes one of the two numbers that the library reads.
func (c *Clock) write(i int64, number int64) error {
	_, err := c.file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(number)), 8*i)
	return err
}

// make builds the library in a directory, for a clock that goes right.
func (c *Clock) make(dir string) (err error) {
	source := filepath.Join(dir, "clock.c")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		return err
	}
	if said, err := exec.Command("gcc", "-O2", "-shared", "-fPIC", "-o", clockLibrary(dir), source).CombinedOutput(); err != nil {
		return fmt.Errorf("gcc: %w: %s", err, said)
	}
	if c.file, err = os.Create(filepath.Join(dir, "clock")); err != nil {
		return err
	}
	return errors.Join(c.Set(0), c.Stop(time.Time{}))
}

// env returns what a process needs besides its environment to go by the clock.
func (c *Clock) env(dir string) []string {
	return []string{"CLOCK=" + c.file.Name(), "LD_PRELOAD=" + clockLibrary(dir)}
}

func clockLibrary(dir string) string { return filepath.Join(dir, "clock.so") }
