package embedded

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"

	"fencepost/internal/fencing"
)

// pinned is what the format of the table says of the values: their fields by type, and how many
// buckets there are.
const pinned = `format 5, 6 buckets
embedded.diskRecord 1,keyasint int64; 2,keyasint,omitempty int64; 3,keyasint,omitempty []int64; 4,keyasint,omitempty int64; 5,keyasint,omitempty int64; 6,keyasint,omitempty int64
embedded.diskHolding 1,keyasint,omitempty []uint8; 2,keyasint,omitempty string; 3,keyasint,omitempty map[string]string; 4,keyasint string; 5,keyasint,omitempty int; 6,keyasint,omitempty int; 7,keyasint int; 8,keyasint int64; 9,keyasint int64; 10,keyasint int64; 11,keyasint,omitempty int64; 12,keyasint int64; 13,keyasint,omitempty int64; 14,keyasint,omitempty string; 15,keyasint,omitempty int64; 16,keyasint,omitempty string; 17,keyasint,omitempty int; 18,keyasint,omitempty string; 19,keyasint,omitempty int64
embedded.diskEnded 1,keyasint string; 2,keyasint embedded.diskHolding; 3,keyasint int64; 4,keyasint string; 5,keyasint int64; 6,keyasint,omitempty string
embedded.diskTombstone 1,keyasint []uint8; 2,keyasint int64; 3,keyasint string; 4,keyasint int64; 5,keyasint,omitempty string
embedded.diskMarks map[int]int64
`

// A field that comes, goes or changes is another format: a version before it refuses the file
// then, before it changes anything.
func TestFieldsGoWithTheFormat(t *testing.T) {
	var b strings.Builder
	fmt.Fprintf(&b, "format %s, %d buckets\n", strings.TrimSpace(tableFormat), buckets)
	for _, value := range []any{diskRecord{}, diskHolding{}, diskEnded{}, diskTombstone{}} {
		kind := reflect.TypeOf(value)
		var fields []string
		for _, field := range reflect.VisibleFields(kind) {
			fields = append(fields, fmt.Sprint(field.Tag.Get("cbor"), " ", field.Type))
		}
		fmt.Fprintln(&b, kind, strings.Join(fields, "; "))
	}
	marks := reflect.TypeFor[diskMarks]()
	fmt.Fprintf(&b, "%s map[%s]%s\n", marks, marks.Key(), marks.Elem())
	if got := b.String(); got != pinned {
		t.Errorf("the fields are\n%swhich is not what is pinned: raise tableFormat, read the one before too, and pin them", got)
	}
}

// tableOf returns a table with entries.
func tableOf(t *testing.T, entries ...entry) []byte {
	t.Helper()
	files := newTrace(nil)
	d := &disk{directory: directory{files, "dir"}}
	err := d.writeTable(func(w *tableWriter) error {
		for _, e := range latest(entries) {
			if err := w.add(&e); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files.content()[filepath.Join("dir", fileName)]
}

// with returns the encoding of a value with another field.
func with(t *testing.T, value any, key int) []byte {
	t.Helper()
	b, err := cbor.Marshal(value)
	fields := map[int]any{}
	if err == nil {
		err = cbor.Unmarshal(b, &fields)
	}
	if err != nil {
		t.Fatal(err)
	}
	fields[key] = 1
	if b, err = cbor.Marshal(fields); err != nil {
		t.Fatal(err)
	}
	return b
}

// What a field promises that is not known here would be forgotten: the file is refused, and
// stays as it is.
func TestUnknownFieldsAreRefused(t *testing.T) {
	holding := diskHolding{Mode: "exclusive", Hold: 1, Token: 1, TTL: int64(time.Minute)}
	record := entry{locks, []byte("a"), with(t, diskRecord{LastToken: 1}, 1)}
	lease := string(acquire("a", 0).Lease.Public())
	for what, entries := range map[string][]entry{
		"an entry of meta": {{meta, []byte("later"), []byte("x")}},
		"a record":         {{locks, []byte("a"), with(t, diskRecord{LastToken: 1}, 7)}},
		"a lease":          {record, {holders, subKey("a", lease), with(t, holding, 20)}},
		"a history":        {record, {history, pastKey("a", 1), with(t, diskEnded{Holder: holding}, 7)}},
		"a lease of a history": {record, {history, pastKey("a", 1), with(t, map[int]any{
			2: map[int]any{4: "exclusive", 20: 1},
		}, 3)}},
		"a tombstone": {{tombstones, tombstoneKey(fencing.EndedLease{Name: "a", Lease: fencing.LeasePublic(lease)}, 1), with(t, diskTombstone{}, 6)}},
	} {
		t.Run(what, func(t *testing.T) {
			content := tableOf(t, entries...)
			dir := writeFiles(t, map[string][]byte{fileName: content})
			_, err := Examine(dir)
			s, openErr := Open(Options{Dir: dir})
			if openErr == nil {
				s.Close()
			}
			for _, err := range []error{err, openErr} {
				if !errors.Is(err, errFormat) || !strings.Contains(err.Error(), "start the version that wrote it") {
					t.Errorf("it says %v", err)
				}
			}
			if after, err := os.ReadFile(filepath.Join(dir, fileName)); err != nil || !bytes.Equal(after, content) {
				t.Errorf("the file has changed: %v", err)
			}
		})
	}
}

// asFormat returns a table as another version has headed it.
func asFormat(table []byte, format string) []byte {
	table = bytes.Clone(table)
	copy(table[len(tableMagic):], format)
	binary.BigEndian.PutUint32(table[tableHeader-4:], crc32.Checksum(table[:tableHeader-4], castagnoli))
	return table
}

// What the version before has left, cleanly or not, is taken over. It is of this format then.
func TestTheFormatBefore(t *testing.T) {
	for _, clean := range []bool{true, false} {
		t.Run(fmt.Sprint("clean ", clean), func(t *testing.T) {
			c := openCrashing(t)
			mustAcquire(t, c.Store, acquire("a", time.Hour))
			files := c.lastFiles()
			if clean {
				if err := c.Close(); err != nil {
					t.Fatal(err)
				}
				content, err := os.ReadFile(filepath.Join(c.dir, fileName))
				if err != nil {
					t.Fatal(err)
				}
				files = map[string][]byte{fileName: content}
			}
			files[fileName] = asFormat(files[fileName], readFormat)
			dir := writeFiles(t, files)
			s := open(t, Options{Dir: dir, Now: c.clock.read})
			if out, err := s.Do(t.Context(), fencing.InspectRequest{Name: "a"}); err != nil || !out.Lock.Held() {
				t.Errorf("%+v, %v", out.Lock, err)
			}
			content, err := os.ReadFile(filepath.Join(dir, fileName))
			if err != nil || !strings.HasPrefix(string(content), tableMagic+tableFormat) {
				t.Errorf("it begins with %q, %v", content[:tableHeader], err)
			}
		})
	}
}
