package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"fencepost/internal/seed"
	"fencepost/internal/wal/waltest"
)

// written is a log of several files, as a crash leaves it, and what it comes to.
type written struct {
	content map[string][]byte // by name
	is      string
	before  string // what it came to before the last frame
	last    string // the file that has the last frame
	from    int64  // and where that begins
}

// at returns the files as those of a directory.
func (w *written) at(dir string) map[string][]byte {
	moved := map[string][]byte{}
	for name, content := range w.content {
		moved[filepath.Join(dir, name)] = bytes.Clone(content)
	}
	return moved
}

// write makes a log with entries that count in so many files.
func write(t *testing.T, files int) *written {
	t.Helper()
	trace := waltest.New(nil)
	l := openTrace(t, trace)
	w := &written{content: map[string][]byte{}}
	describe := func() string {
		is, err := described(l)
		if err != nil {
			t.Fatal(err)
		}
		return is
	}
	frame := func(write func() error) {
		in, at := l.current, l.at
		w.before = describe()
		if err := errors.Join(write(), l.next()); err != nil {
			t.Fatal(err)
		}
		if w.last, w.from = l.current.name, at; in != l.current { // a head came before it
			w.from = 2 * block
		}
	}
	frame(func() error { return l.Set([]byte("vote"), []byte("a")) })
	frame(func() error { return l.SetUint64([]byte("number"), 7) })
	for i := uint64(1); l.current.number < uint64(files) || l.at < testFile/2; i++ {
		frame(func() error {
			return l.StoreLog(&raft.Log{Index: i, Term: 1, Data: bytes.Repeat([]byte{byte(i)}, int(i%5)*600)})
		})
		if i%7 == 0 {
			frame(func() error { return l.DeleteRange(i, i) })
			frame(func() error { return l.StoreLog(&raft.Log{Index: i, Term: 2}) })
		}
	}
	for path, content := range trace.Content() {
		w.content[filepath.Base(path)] = content
	}
	w.is = describe()
	return w
}

// check opens files that were damaged in one of them, and reports what is wrong with what comes of it: it is refused
// with the name of the file, or right. Of the last frame nobody can tell whether it was ever written.
func (w *written) check(dir string, content map[string][]byte, name string) (refused bool, err error) {
	l, is, err := opened(dir, waltest.New(content))
	if l != nil {
		defer l.Close()
	}
	switch {
	case errors.Is(err, ErrDamaged) && strings.Contains(err.Error(), name):
		return true, nil
	case err != nil:
		return true, fmt.Errorf("it is refused with %w", err)
	case is == w.is, name == w.last && is == w.before:
		return false, nil
	}
	return false, fmt.Errorf("it comes to\n%.300s\nand not to\n%.300s", is, w.is)
}

// Any bit that is wrong where something stands is found, wherever that is, but for the last frame.
func TestEveryBitCounts(t *testing.T) {
	w := write(t, 4)
	dir, refused, dropped := t.TempDir(), 0, 0
	for name, whole := range w.content {
		for at := range whole {
			inFrame := int64(at%block) < 60 || at%97 == 0
			if !inFrame || at/block > 0 && bytes.Equal(whole[at:min(at+60, len(whole))], make([]byte, min(60, len(whole)-at))) {
				continue
			}
			content := w.at(dir)
			content[filepath.Join(dir, name)][at] ^= 1 << (at % 8)
			is, err := w.check(dir, content, name)
			switch last := name == w.last && int64(at) >= w.from; {
			case err != nil:
				t.Fatalf("%s, byte %d: %v", name, at, err)
			case is:
				refused++
			case last:
				dropped++
			}
		}
	}
	if refused < 500 || dropped == 0 {
		t.Errorf("%d bits were refused, and %d in the last frame", refused, dropped)
	}
}

// damages are what may become of a file.
var damages = map[string]func(content []byte, at int, random *rand.Rand) []byte{
	"a bit flipped": func(b []byte, at int, random *rand.Rand) []byte {
		b[at] ^= 1 << random.IntN(8)
		return b
	},
	"a sector zeroed": func(b []byte, at int, _ *rand.Rand) []byte {
		clear(b[at/waltest.Sector*waltest.Sector : at/waltest.Sector*waltest.Sector+waltest.Sector])
		return b
	},
	"a block of noise": func(b []byte, at int, random *rand.Rand) []byte {
		copy(b[at/block*block:], randomBytes(random, block))
		return b
	},
	"cut off":            func(b []byte, at int, _ *rand.Rand) []byte { return b[:at] },
	"something appended": func(b []byte, at int, _ *rand.Rand) []byte { return append(b, b[:1+at]...) },
	"a part missing": func(b []byte, at int, random *rand.Rand) []byte {
		return append(b[:at:at], b[min(len(b), at+1+random.IntN(block)):]...)
	},
	"two blocks swapped": func(b []byte, at int, random *rand.Rand) []byte {
		one, other := at/block*block, random.IntN(len(b)/block)*block
		for i := range block {
			b[one+i], b[other+i] = b[other+i], b[one+i]
		}
		return b
	},
}

// Whatever is damaged in a file, the log is refused with its name, or is right.
func TestEveryDamageIsNamed(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.Of(t), 0))
	w := write(t, 4)
	dir, places, refused := t.TempDir(), times(60, 1000), 0
	for title, damage := range damages {
		for range places {
			content := w.at(dir)
			name := namesOf(content)[random.IntN(len(content))]
			path := filepath.Join(dir, name)
			at := random.IntN(len(content[path]))
			content[path] = damage(content[path], at, random)
			is, err := w.check(dir, content, name)
			if err != nil {
				t.Errorf("%s, %s at byte %d: %v", name, title, at, err)
			}
			if is {
				refused++
			}
		}
	}
	if refused < places*len(damages)/3 {
		t.Errorf("%d of %d were refused: the test misses its aim", refused, places*len(damages))
	}
	fmt.Printf("verified: damaged places of a log %d, refused %d\n", places*len(damages), refused)
}

// A damage in the middle is refused with the file, the byte and the entry.
func TestADamageSaysWhere(t *testing.T) {
	files := waltest.New(nil)
	l := openTrace(t, files)
	for i := uint64(1); i <= 3; i++ {
		if err := l.StoreLog(&raft.Log{Index: i, Term: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	content := files.Content()
	path := filepath.Join(l.dir, nameOf(1))
	content[path][3*block+20] ^= 1 // the frames are the head, and the entries
	_, err := Open(l.dir, Options{Files: waltest.New(content)})
	for _, text := range []string{path, "frame 3", "entry 2", "byte 12288", "frame 4 is in 0000000001.log at byte 16384"} {
		if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), text) {
			t.Errorf("no %q in: %v", text, err)
		}
	}
}

// A file that is missing, or another than it was, is refused, wherever it is: but for one that was made ahead.
func TestAFileThatIsMissing(t *testing.T) {
	w, other := write(t, 4), write(t, 4)
	dir := t.TempDir()
	names := namesOf(w.content)
	if len(names) != 5 || w.last != names[3] {
		t.Fatalf("the files are %v, and the last frame is in %s", names, w.last)
	}
	for i, name := range names {
		path := filepath.Join(dir, name)
		for what, content := range map[string][]byte{"missing": nil, "another log's": other.content[name], "a copy of the one before": w.content[names[(i+4)%5]]} {
			files := w.at(dir)
			files[path] = content
			if content == nil {
				delete(files, path)
			}
			_, err := Open(dir, Options{Files: waltest.New(files)})
			if content == nil && i == 4 {
				if err != nil {
					t.Errorf("without the file that was made ahead: %v", err)
				}
				continue
			}
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), name) && (i > 0 || content == nil) {
				t.Errorf("%s is %s: %v", name, what, err)
			}
		}
	}
	for n := 1; n < 5; n++ { // more than one
		files := w.at(dir)
		maps.DeleteFunc(files, func(path string, _ []byte) bool { return filepath.Base(path) <= names[n-1] })
		if _, err := Open(dir, Options{Files: waltest.New(files)}); !errors.Is(err, ErrDamaged) {
			t.Errorf("without the first %d files: %v", n, err)
		}
	}
}

// The first frame of a file that has another one after it was written, though nothing but that file says so.
func TestTheFirstFrameOfTheLastFile(t *testing.T) {
	files := waltest.New(nil)
	l := openTrace(t, files)
	for i := uint64(1); l.current.number < 2; i++ {
		l.making.Wait()
		if err := l.StoreLog(&raft.Log{Index: i, Term: 1}); err != nil {
			t.Fatal(err)
		}
	}
	l.making.Wait()
	content := files.Content()
	path := filepath.Join(l.dir, nameOf(2))
	clear(content[path][block:])
	_, err := Open(l.dir, Options{Files: waltest.New(content), FileSize: testFile})
	if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "0000000003.log was made after it") {
		t.Error(err)
	}
	delete(content, filepath.Join(l.dir, nameOf(3))) // a crash may have come before it was written
	if _, err := Open(l.dir, Options{Files: waltest.New(content), FileSize: testFile}); err != nil {
		t.Error(err)
	}
}

// What a disk changes while the log is open is noticed when it is read.
func TestAnEntryThatHasChanged(t *testing.T) {
	files := waltest.New(nil)
	l := openTrace(t, files)
	if err := l.StoreLogs([]*raft.Log{{Index: 5, Term: 1, Data: []byte("mark")}, {Index: 6, Term: 1}}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(l.dir, nameOf(1))
	files.Change(path, func(content []byte) { content[bytes.Index(content, []byte("mark"))]++ })
	err := l.GetLog(5, &raft.Log{})
	if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "entry 5") {
		t.Error(err)
	}
	if err := l.GetLog(6, &raft.Log{}); err != nil {
		t.Error(err)
	}
}

// What raft-wal kept is refused by name, and left alone.
func TestALogOfAnEarlierVersion(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "wal-meta.db")
	files := waltest.New(map[string][]byte{path: {1}})
	_, err := Open(dir, Options{Files: files})
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "start that version") {
		t.Error(err)
	}
	if left := files.Content(); len(left) != 1 {
		t.Errorf("there is %v", namesOf(left))
	}
	for name, is := range map[string]bool{"wal-meta.db": true, "0000000001.log": true, "0000000001.log.new": false, "1.log": false, "0000000000.log": false, "0000000001": false, "+000000001.log": false} {
		if Named(name) != is {
			t.Errorf("%s is a file of a log: %t", name, !is)
		}
	}
}

// FuzzReplay: whatever stands in a frame, sealed or not, it is carried out or refused.
func FuzzReplay(f *testing.F) {
	f.Add(appendBounds(nil, 1, 5))
	f.Add(appendRecord(appendRecord(nil, recordEntry, &raft.Log{Index: 1, Data: []byte("a")}), recordValue, &raft.Log{Extensions: []byte("b")}))
	f.Fuzz(func(t *testing.T, records []byte) {
		const id, size = 7, testFile
		header := headerOf(id, 1, size)
		s := &segment{number: 1, size: size, sum: binary.BigEndian.Uint32(header[headerSize-4:])}
		if len(records) > size-block-frameHeader {
			return
		}
		frame := append(make([]byte, frameHeader), records...)
		s.seal(frame, 1)
		content := append(make([]byte, 0, size), header...)
		content = append(append(content, make([]byte, block-len(header))...), frame...)
		content = append(content, make([]byte, size-len(content))...)
		dir := t.TempDir()
		l, err := Open(dir, Options{Files: waltest.New(map[string][]byte{filepath.Join(dir, nameOf(1)): content}), FileSize: testFile})
		if err == nil {
			_, err = described(l)
			l.Close()
		}
		if err != nil && !errors.Is(err, ErrDamaged) {
			t.Error(err)
		}
	})
}
