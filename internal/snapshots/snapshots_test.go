package snapshots

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"fencepost/internal/wal"
	"fencepost/internal/wal/waltest"
)

// times returns how often something is done: often with FENCEPOST_LONG.
func times(usually, long int) int {
	if os.Getenv("FENCEPOST_LONG") != "" {
		return long
	}
	return usually
}

func open(t *testing.T, dir string, files wal.Files) *Store {
	t.Helper()
	s, err := Open(dir, files, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var members = raft.Configuration{Servers: []raft.Server{{ID: "1", Address: "a:1"}, {ID: "2", Address: "b:2", Suffrage: raft.Nonvoter}}}

// take makes a snapshot of some content.
func take(s *Store, term, index uint64, content string) error {
	to, err := s.Create(raft.SnapshotVersionMax, index, term, members, 7, nil)
	if err != nil {
		return err
	}
	for part := range slices.Chunk([]byte(content), 5) {
		if n, err := to.Write(part); err != nil || n != len(part) {
			return errors.Join(err, to.Cancel())
		}
	}
	return to.Close()
}

func mustTake(t *testing.T, s *Store, term, index uint64, content string) {
	t.Helper()
	if err := take(s, term, index, content); err != nil {
		t.Fatal(err)
	}
}

// contentOf returns a snapshot.
func contentOf(s *Store, id string) (meta *raft.SnapshotMeta, content string, err error) {
	meta, from, err := s.Open(id)
	if err != nil {
		return nil, "", err
	}
	all, err := io.ReadAll(from)
	return meta, string(all), errors.Join(err, from.Close())
}

// named returns the names of files, in order.
func named(files map[string][]byte) (names []string) {
	for path := range files {
		names = append(names, filepath.Base(path))
	}
	slices.Sort(names)
	return names
}

// A snapshot says what it is of, and has what was written. The newest one is that of the latest term, and in it of the last entry, and
// no more than two are kept.
func TestSnapshots(t *testing.T) {
	for what, files := range map[string]wal.Files{"of the system": nil, "of a test": waltest.New(nil)} {
		dir := filepath.Join(t.TempDir(), "made", "here")
		s := open(t, dir, files)
		if id, err := s.Newest(); id != "" || err != nil {
			t.Errorf("%s: the newest of none is %q, %v", what, id, err)
		}
		if list, err := s.List(); len(list) != 0 || err != nil {
			t.Errorf("%s: there are %v, %v", what, list, err)
		}
		if files == nil { // what somebody has put there is none, whatever it is called
			for _, name := range []string{"z.snapshot", "9-9.snapshot", "99999999999999999999-99999999999999999999.snapshot"} {
				if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i, at := range [][2]uint64{{1, 9}, {1, 100}, {2, 50}, {10, 20}} { // term and index
			content := strings.Repeat(fmt.Sprint(i), 3000*i)
			mustTake(t, s, at[0], at[1], content)
			s = open(t, dir, files)
			id, err := s.Newest()
			if err != nil {
				t.Fatal(err)
			}
			meta, is, err := contentOf(s, id)
			want := raft.SnapshotMeta{
				Version: raft.SnapshotVersionMax, ID: id, Index: at[1], Term: at[0], Configuration: members, ConfigurationIndex: 7, Size: int64(len(content)),
			}
			if err != nil || is != content || !reflect.DeepEqual(*meta, want) {
				t.Errorf("%s: %+v, want %+v, with %d bytes, %v", what, meta, want, len(is), err)
			}
			list, err := s.List()
			if err != nil || len(list) != min(i+1, kept) || !reflect.DeepEqual(list[0], meta) {
				t.Errorf("%s: number %d: there are %d, and the first one is %+v, %v", what, i, len(list), list[0], err)
			}
			if i > 0 && (list[1].Index != []uint64{9, 9, 100, 50}[i] || list[1].ID == id) {
				t.Errorf("%s: the one before is %+v", what, list[1])
			}
		}
		id, err := s.Newest()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Remove(id); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Open(id); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: one that was removed: %v", what, err)
		}
		if before, err := s.Newest(); err != nil || before >= id || before == "" {
			t.Errorf("%s: the newest is %s then, %v", what, before, err)
		}
	}
}

// Of what is cancelled nothing is left, nor of what a process that died had begun; a second end changes nothing.
func TestWhatIsNotWhole(t *testing.T) {
	dir, files := t.TempDir(), waltest.New(nil)
	s := open(t, dir, files)
	mustTake(t, s, 1, 1, "one")
	to, err := s.Create(1, 2, 1, members, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := to.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	if id, err := s.Newest(); err != nil || id == to.ID() {
		t.Errorf("%s is there before it is whole, %v", id, err)
	}
	begun := files.Content()
	if err := errors.Join(to.Cancel(), to.Cancel(), to.Close()); err != nil {
		t.Error(err)
	}
	if is := named(files.Content()); len(is) != 1 || is[0] != nameOf(1, 1) {
		t.Errorf("cancelled, there is %v", is)
	}
	died := waltest.New(begun)
	s = open(t, dir, died)
	if is := named(died.Content()); len(is) != 1 || is[0] != nameOf(1, 1) {
		t.Errorf("after the death of a process there is %v", is)
	}
	to, err = s.Create(1, 2, 1, members, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(to.Close(), to.Close(), to.Cancel()); err != nil {
		t.Error(err)
	}
	if id, err := s.Newest(); err != nil || id != to.ID() {
		t.Errorf("the newest is %s, %v", id, err)
	}
	mustTake(t, s, 1, 2, "the same again")
	if _, is, err := contentOf(s, nameOf(1, 2)); err != nil || is != "the same again" {
		t.Errorf("one that was taken twice has %q, %v", is, err)
	}
}

// A head that was changed or cut off is named, and not passed over for an older snapshot.
func TestADamagedHead(t *testing.T) {
	dir, files := t.TempDir(), waltest.New(nil)
	s := open(t, dir, files)
	mustTake(t, s, 1, 1, "one")
	mustTake(t, s, 1, 2, "two")
	id, whole := nameOf(1, 2), files.Content()
	path := filepath.Join(dir, id)
	head := len(whole[path]) - len("two")
	for at := range head {
		for what, content := range map[string][]byte{"cut off": whole[path][:at], "changed": bytes.Clone(whole[path])} {
			if what == "changed" {
				content[at] ^= 1 << (at % 8)
			}
			damaged := maps.Clone(whole)
			damaged[path] = content
			files := waltest.New(damaged)
			s := open(t, dir, files)
			if newest, err := s.Newest(); err != nil || newest != id {
				t.Fatalf("the newest is %s, %v", newest, err)
			}
			_, _, opened := s.Open(id)
			_, listed := s.List()
			for _, err := range []error{opened, listed} {
				if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), path) {
					t.Fatalf("%s at byte %d: %v", what, at, err)
				}
			}
			if is := files.Content(); !maps.EqualFunc(is, damaged, bytes.Equal) {
				t.Fatalf("%s at byte %d: there is %v now", what, at, named(is))
			}
			if _, is, err := contentOf(s, nameOf(1, 1)); err != nil || is != "one" {
				t.Fatalf("the one before: %q, %v", is, err)
			}
		}
	}
}

// Whatever fails while a snapshot is taken is said, and those before it stay. The next one is taken all the same.
func TestFailures(t *testing.T) {
	for number := 0; ; number++ {
		dir, files := t.TempDir(), waltest.New(nil)
		s := open(t, dir, files)
		mustTake(t, s, 1, 1, "one")
		mustTake(t, s, 1, 2, "two")
		failure, seen := errors.New("it failed"), 0
		files.Fault = func(*waltest.Op) error {
			if seen++; seen == number+1 {
				return failure
			}
			return nil
		}
		err := take(s, 1, 3, "three and more")
		if seen <= number {
			if number < 8 {
				t.Errorf("only %d things can fail: the test misses its aim", number)
			}
			return
		}
		files.Fault = nil
		if !errors.Is(err, failure) {
			t.Errorf("failure %d comes to %v", number, err)
		}
		id, err := s.Newest()
		if err != nil {
			t.Fatal(err)
		}
		if _, is, err := contentOf(s, id); err != nil || is != "two" && is != "three and more" {
			t.Errorf("after failure %d the newest is %s, with %q, %v", number, id, is, err)
		}
		mustTake(t, s, 1, 4, "four")
		if is := named(files.Content()); len(is) != kept || is[1] != nameOf(1, 4) {
			t.Errorf("after failure %d and another snapshot there is %v", number, is)
		}
	}
}

// Nothing is made, renamed or removed where the directory is another's, whenever it comes to be that.
func TestADirectoryThatIsAnothers(t *testing.T) {
	taken := errors.New("the directory was replaced")
	for number := 0; ; number++ {
		files, dir, left, when := waltest.New(nil), t.TempDir(), -1, number
		held := func() error {
			if when--; when >= 0 {
				return nil
			}
			if left < 0 {
				left = files.Count()
			}
			return taken
		}
		mustTake(t, open(t, dir, files), 1, 1, "one")
		if _, err := open(t, dir, files).Create(1, 2, 1, members, 1, nil); err != nil { // a process dies then
			t.Fatal(err)
		}
		s, err := Open(dir, files, held)
		if err == nil {
			err = errors.Join(take(s, 1, 3, "three"), take(s, 1, 4, "four"), s.Remove(nameOf(1, 4)))
		}
		if left < 0 {
			if number < 5 {
				t.Errorf("held is asked %d times only: the test misses its aim", number)
			}
			return
		}
		if !errors.Is(err, taken) {
			t.Errorf("taken at question %d: %v", number, err)
		}
		for _, op := range files.Since(left) {
			if op.Kind != waltest.Write && op.Kind != waltest.Sync && op.Kind != waltest.SyncDir {
				t.Errorf("taken at question %d: %s of %s", number, op.Kind, op.Path)
			}
		}
	}
}

// What can't be read again takes the place of nothing, also under the same name.
func TestASnapshotThatIsChecked(t *testing.T) {
	files := waltest.New(nil)
	s := open(t, "dir", files)
	mustTake(t, s, 1, 5, "whole")
	wrong := errors.New("it is wrong")
	for _, index := range []uint64{5, 6} {
		to, err := s.Create(raft.SnapshotVersionMax, index, 1, members, 7, nil)
		if err != nil {
			t.Fatal(err)
		}
		read := ""
		Checked(to, func(from io.Reader) error {
			all, err := io.ReadAll(from)
			read = string(all)
			return errors.Join(wrong, err)
		})
		if _, err := to.Write([]byte("new")); err != nil {
			t.Fatal(err)
		}
		if err := to.Close(); !errors.Is(err, wrong) || read != "new" {
			t.Errorf("it is kept: %v, of %q", err, read)
		}
	}
	if list, err := s.List(); err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	if _, content, err := contentOf(s, nameOf(1, 5)); err != nil || content != "whole" {
		t.Errorf("the one before has %q, %v", content, err)
	}
	if left := named(files.Content()); len(left) != 1 {
		t.Errorf("there is %v", left)
	}
}
