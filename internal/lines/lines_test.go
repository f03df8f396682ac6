package lines

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// reader takes what is written while it reads; else it hangs.
type reader struct {
	mu     sync.Mutex
	text   strings.Builder
	writes int
	reads  chan struct{} // closed while it reads
	fails  error         // of a write
	takes  int           // bytes that a write that fails takes
}

func newReader(reads bool) *reader {
	r := &reader{reads: make(chan struct{})}
	if reads {
		close(r.reads)
	}
	return r
}

func (r *reader) Write(line []byte) (int, error) {
	<-r.reads
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writes++
	if r.fails != nil {
		n := min(r.takes, len(line))
		r.text.Write(line[:n])
		return n, r.fails
	}
	return r.text.Write(line)
}

func (r *reader) fail(err error, takes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fails, r.takes = err, takes
}

func (r *reader) got() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

func tells(l Loss) []byte {
	return fmt.Appendf(nil, "lost %d in %s\n", l.Lines, l.Until.Sub(l.From))
}

func opened(t *testing.T, to io.Writer, mostLines, mostBytes int) *Queue {
	t.Helper()
	q := New(to, mostLines, mostBytes)
	q.Remark(tells)
	return q
}

func say(q io.Writer, from, to int) {
	for i := from; i <= to; i++ {
		fmt.Fprintf(q, "line %d\n", i)
	}
}

func numbered(from, to int) string {
	var b strings.Builder
	say(&b, from, to)
	return b.String()
}

func check(t *testing.T, what string, got, want any) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// Lines come out whole, in order, one a write, whoever writes them.
func TestLinesInOrder(t *testing.T) {
	r := newReader(true)
	q := opened(t, r, 100_000, 100<<20)
	var writing sync.WaitGroup
	for w := range 8 {
		writing.Go(func() {
			for i := range 1000 {
				fmt.Fprintf(q, "%d %d %s\n", w, i, strings.Repeat("x", i%300))
			}
		})
	}
	writing.Wait()
	q.Close(time.Minute)
	var next [8]int
	for line := range strings.Lines(r.got()) {
		var w, i int
		var rest string
		if _, err := fmt.Sscanf(line, "%d %d %s\n", &w, &i, &rest); err != nil && i%300 != 0 || len(rest) != i%300 || next[w] != i {
			t.Fatalf("%q, after %d lines of %d", line, next[w], w)
		}
		next[w]++
	}
	check(t, "lines", next, [8]int{1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000})
	check(t, "writes", r.writes, 8000)
	check(t, "state", q.State(), State{})
}

// A line never waits for its reader, and what has no room is counted. When the reader is back, it gets what was queued,
// and then what was lost; what comes after the gap goes on.
func TestAReaderThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReader(false)
		q := opened(t, r, 10, 1<<20)
		say(q, 1, 1)
		synctest.Wait() // it is being written
		say(q, 2, 11)
		check(t, "state while all fits", q.State(), State{Waiting: 11})
		say(q, 12, 12)
		time.Sleep(7 * time.Second)
		say(q, 13, 15)
		check(t, "state", q.State(), State{Lost: 4, Waiting: 11, Hangs: 7 * time.Second, Losing: true})
		close(r.reads)
		synctest.Wait()
		say(q, 16, 17)
		q.Close(time.Second)
		check(t, "text", r.got(), numbered(1, 11)+"lost 4 in 7s\n"+numbered(16, 17))
		check(t, "state when it reads again", q.State(), State{Lost: 4})
	})
}

// From the first line that is lost all are, until what was queued is written: who reads sees one gap.
func TestOneGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		q := opened(t, w, 2, 1<<20)
		say(q, 1, 1)
		synctest.Wait()
		say(q, 2, 4)
		line := make([]byte, 100)
		for i := 1; i <= 3; i++ {
			n, _ := r.Read(line)
			check(t, "line", string(line[:n]), numbered(i, i))
			synctest.Wait()
			if i < 3 {
				say(q, 4+i, 4+i) // there is room, and it is in the gap
			}
		}
		n, _ := r.Read(line)
		check(t, "gap", string(line[:n]), "lost 3 in 0s\n")
		say(q, 7, 7)
		n, _ = r.Read(line)
		check(t, "line", string(line[:n]), numbered(7, 7))
		q.Close(time.Second)
	})
}

func TestBoundInBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReader(false)
		const most = 10_000
		q := opened(t, r, 1000, most)
		line := []byte(strings.Repeat("x", 936) + "\n")
		for range 50 {
			q.Write(line)
			synctest.Wait()
		}
		fit := most / (len(line) + lineBytes)
		check(t, "state", q.State(), State{Lost: uint64(50 - fit), Waiting: fit, Losing: true})
		close(r.reads)
		synctest.Wait()
		q.Write(make([]byte, most)) // never fits
		synctest.Wait()
		check(t, "lost", q.State().Lost, uint64(50-fit+1))
		q.Write(line)
		q.Close(time.Second)
		check(t, "text", r.got(), strings.Repeat(string(line), fit)+fmt.Sprintf("lost %d in 0s\n", 50-fit)+"lost 1 in 0s\n"+string(line))
	})
}

// A line is the caller's again when Write returns.
func TestALineIsCopied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReader(false)
		q := opened(t, r, 10, 1<<20)
		line := []byte("line 1\n")
		q.Write(line)
		copy(line, "else")
		close(r.reads)
		q.Close(time.Second)
		check(t, "text", r.got(), "line 1\n")
	})
}

// Close waits for what is queued, but not for ever.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReader(false)
		q := opened(t, r, 10, 1<<20)
		say(q, 1, 3)
		begun := time.Now()
		q.Close(time.Second)
		check(t, "a reader that hangs held it for", time.Since(begun), time.Second)
		close(r.reads)
		synctest.Wait()
		check(t, "text", r.got(), numbered(1, 3))
		say(q, 4, 4) // nobody writes any more
		check(t, "state", q.State(), State{Lost: 1, Losing: true})
	})
	synctest.Test(t, func(t *testing.T) {
		r := newReader(false)
		q := opened(t, r, 2, 1<<20)
		say(q, 1, 1)
		synctest.Wait()
		say(q, 2, 6)
		time.AfterFunc(time.Second/2, func() { close(r.reads) })
		begun := time.Now()
		q.Close(time.Second)
		check(t, "a reader that is back held it for", time.Since(begun), time.Second/2)
		check(t, "text", r.got(), numbered(1, 3)+"lost 3 in 0s\n")
	})
}

// Lines that can't be written are counted, and it goes on; when they can be again, it is told how many were lost. A
// part of a line is not the begin of the next one.
func TestWritesThatFail(t *testing.T) {
	for _, err := range []error{syscall.EPIPE, syscall.ENOSPC} {
		synctest.Test(t, func(t *testing.T) {
			r := newReader(true)
			q := opened(t, r, 10, 1<<20)
			say(q, 1, 1)
			synctest.Wait()
			r.fail(err, 4)
			say(q, 2, 2)
			synctest.Wait()
			r.fail(err, 0)
			time.Sleep(3 * time.Second)
			say(q, 3, 30)
			synctest.Wait()
			if s := q.State(); s.Lost != 29 || s.Well() {
				t.Errorf("state: %+v", s)
			}
			if _, err := q.Reserve(1); !errors.Is(err, ErrNoRoom) {
				t.Errorf("room in what can't be written: %v", err)
			}
			synctest.Wait()
			written := r.writes
			time.Sleep(time.Hour)
			check(t, "writes without a line", r.writes, written)
			r.fail(nil, 0)
			q.State() // who looks has it tried again
			synctest.Wait()
			check(t, "state", q.State(), State{Lost: 29})
			say(q, 31, 31)
			q.Close(time.Second)
			// Of line 2 and of the remark on it four bytes were taken.
			check(t, "text", r.got(), "line 1\nline\n"+"los\n"+"lost 29 in 3s\nline 31\n")
		})
	}
}

// A pipe that nobody has open for reading.
func TestBrokenPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	q := opened(t, w, 10, 1<<20)
	say(q, 1, 5)
	q.Close(time.Minute)
	check(t, "lost", q.State().Lost, uint64(5))
}

func TestRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReader(false)
		q := opened(t, r, 100, 1000)
		room, err := q.Reserve(500)
		if err != nil {
			t.Fatal(err)
		}
		unused, err := q.Reserve(200)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := q.Reserve(200); !errors.Is(err, ErrNoRoom) {
			t.Errorf("room that others have: %v", err)
		}
		unused.Close()
		unused.Close()
		say(q, 1, 20)
		if q.State().Lost == 0 {
			t.Fatal("lines took the room")
		}
		lost := q.State().Lost
		fmt.Fprintf(room, "%s\n", strings.Repeat("x", 499))
		check(t, "lost of what room was set aside for", q.State().Lost, lost)
		fmt.Fprintf(room, "again\n")
		check(t, "lost of a second line", q.State().Lost, lost+1)
		room.Close()
		if _, err := q.Reserve(1); !errors.Is(err, ErrNoRoom) {
			t.Errorf("room where lines are lost: %v", err)
		}
		close(r.reads)
		synctest.Wait()
		if !strings.Contains(r.got(), strings.Repeat("x", 499)+"\n") {
			t.Error("the line was not written")
		}
		check(t, "bytes that are taken", q.bytes, 0)
		room, err = q.Reserve(900)
		if err != nil {
			t.Error(err)
		}
		room.Close()
		q.Close(time.Second)
	})
	synctest.Test(t, func(t *testing.T) {
		r := newReader(false)
		q := opened(t, r, 100, 1<<20)
		say(q, 1, 1)
		time.Sleep(hangsAfter)
		if _, err := q.Reserve(1); !errors.Is(err, ErrNoRoom) {
			t.Errorf("room behind a reader that hangs: %v", err)
		}
		close(r.reads)
		q.Close(time.Second)
	})
}
