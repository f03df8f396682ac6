package embedded

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

const (
	fileName = "fencepost.db"
	format   = "2"
)

// bucket is a bucket of the file.
type bucket uint8

// The buckets. Bucket meta has "format", "clock" (counter and time of the last
// flush, 8 bytes each, big endian) and, from the first flush of a run until its
// clean end, "journal" (its id and the number of the last flush that is in the
// file, the same). Bucket locks has a record a name. Bucket
// holders has a record a lease: under name, 0, lease. Bucket history has ended
// leases under name, 0, number (8 bytes, big endian). Bucket tombstones has them
// under until (8 bytes, big endian), name, 0, lease, so that what is to be
// forgotten stands first and what is new is appended.
const (
	meta bucket = iota
	locks
	holders
	history
	tombstones
	buckets
)

var bucketNames = [buckets][]byte{[]byte("meta"), []byte("locks"), []byte("holders"), []byte("history"), []byte("tombstones")}

var (
	keyFormat  = []byte("format")
	keyClock   = []byte("clock")
	keyJournal = []byte("journal")
)

// in returns the bucket in a transaction.
func (b bucket) in(tx *bolt.Tx) *bolt.Bucket { return tx.Bucket(bucketNames[b]) }

// disk is the durable half of the store: the file, and before it the journal. One
// goroutine uses it, but for what apply starts.
type disk struct {
	db       *bolt.DB
	dir      string
	half     int64      // size of a half of the journal
	journal  *journal   // nil until begin
	pending  []entry    // in the half of the journal that is being filled
	applying chan error // from the goroutine that puts the other half into the file; nil if there is none

	beforeFlush func() error
	afterFlush  func()
}

func openDisk(o Options) (*disk, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("the data directory can't be made: %w", err)
	}
	path := filepath.Join(o.Dir, fileName)
	_, statErr := os.Stat(path)
	db, err := bolt.Open(path, 0o600, &bolt.Options{
		Timeout:        time.Second, // for a predecessor that is just shutting down
		NoFreelistSync: true,        // the free list is found again at start; not writing it saves a page a commit
		FreelistType:   bolt.FreelistMapType,
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("%s is in use by another process; only one gateway can use a data directory", path)
	}
	if err != nil {
		return nil, fmt.Errorf("%s can't be opened: %w", path, err)
	}
	d := &disk{db: db, dir: o.Dir, half: journalHalf, beforeFlush: o.beforeFlush, afterFlush: o.afterFlush}
	if o.journalHalf != 0 {
		d.half = o.journalHalf
	}
	if err := d.prepare(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), db.Close())
	}
	if errors.Is(statErr, fs.ErrNotExist) {
		// The file's name has to be as durable as its content.
		if err := errors.Join(syncDir(o.Dir), syncDir(filepath.Dir(filepath.Clean(o.Dir)))); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	if err := d.recover(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return d, nil
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// prepare makes what a new file needs and refuses another format.
func (d *disk) prepare() error {
	return d.db.Update(func(tx *bolt.Tx) error {
		if m := meta.in(tx); m != nil {
			if found := m.Get(keyFormat); string(found) != format {
				return fmt.Errorf("it has format %q; this version reads format %q", found, format)
			}
			return nil
		}
		for _, name := range bucketNames {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		return meta.in(tx).Put(keyFormat, []byte(format))
	})
}

// recover puts what the journal of an unclean end has beyond the file into it.
func (d *disk) recover() error {
	var mark []byte
	err := d.db.View(func(tx *bolt.Tx) error {
		mark = bytes.Clone(meta.in(tx).Get(keyJournal))
		return nil
	})
	if err != nil || mark == nil {
		return err
	}
	if len(mark) != 16 {
		return fmt.Errorf("the mark of the journal in %s is damaged", fileName)
	}
	path := filepath.Join(d.dir, journalName)
	entries, err := readJournal(path, binary.BigEndian.Uint64(mark), binary.BigEndian.Uint64(mark[8:]))
	if err != nil {
		return fmt.Errorf("%s, which has what was written last, can't be read: %w", path, err)
	}
	return d.commit(append(entries, entry{meta, keyJournal, nil}))
}

// begin starts a journal. From here on flush is to be used instead of commit.
func (d *disk) begin() error {
	path := filepath.Join(d.dir, journalName)
	j, err := createJournal(path, d.half)
	if err != nil {
		return fmt.Errorf("%s can't be made: %w", path, err)
	}
	if err := syncDir(d.dir); err != nil {
		return errors.Join(err, j.close())
	}
	if err := d.commit([]entry{j.mark()}); err != nil {
		return errors.Join(err, j.close())
	}
	d.journal = j
	return nil
}

// mark is the entry of a file that has all of the journal so far.
func (j *journal) mark() entry {
	value := binary.BigEndian.AppendUint64(make([]byte, 0, 16), j.id)
	return entry{meta, keyJournal, binary.BigEndian.AppendUint64(value, j.number)}
}

// flush makes writes durable. It returns when they are on disk. After an error
// nothing is to be flushed any more.
func (d *disk) flush(w *writes) error {
	if w.err != nil {
		return w.err
	}
	if d.beforeFlush != nil {
		if err := d.beforeFlush(); err != nil {
			return err
		}
	}
	if err := d.append(w.entries); err != nil {
		return err
	}
	if d.afterFlush != nil {
		d.afterFlush()
	}
	return nil
}

func (d *disk) append(entries []entry) error {
	fits := d.journal.encode(entries)
	if !fits || d.journal.full() {
		if err := d.applied(); err != nil {
			return err
		}
		if fits {
			d.apply()
			d.journal.turn()
		}
	}
	if !fits { // goes into the file at once, with all before it
		d.journal.skip()
		all := slices.Concat(d.pending, entries)
		d.pending = nil
		return d.commit(append(all, d.journal.mark()))
	}
	d.pending = append(d.pending, entries...)
	return d.journal.write()
}

// apply puts what is pending into the file, in the background.
func (d *disk) apply() {
	entries, done := append(d.pending, d.journal.mark()), make(chan error, 1)
	d.pending, d.applying = nil, done
	go func() { done <- d.commit(entries) }()
}

// applied waits for apply.
func (d *disk) applied() error {
	if d.applying == nil {
		return nil
	}
	err := <-d.applying
	d.applying = nil
	return err
}

// finish puts all that is pending, and last, into the file. The journal has
// served then.
func (d *disk) finish(last *writes) error {
	if err := errors.Join(last.err, d.applied()); err != nil {
		return err
	}
	all := append(slices.Concat(d.pending, last.entries), entry{meta, keyJournal, nil})
	if err := d.commit(all); err != nil {
		return err
	}
	if err := d.journal.close(); err != nil {
		return err
	}
	d.journal = nil
	return os.Remove(filepath.Join(d.dir, journalName))
}

func (d *disk) close() error {
	err := d.applied()
	if d.journal != nil {
		err = errors.Join(err, d.journal.close())
	}
	return errors.Join(err, d.db.Close())
}

// commit puts entries into the file. It returns when they are on disk.
func (d *disk) commit(entries []entry) error {
	return d.db.Update(func(tx *bolt.Tx) error {
		for _, e := range latest(entries) {
			b := e.bucket.in(tx)
			if e.value == nil {
				if err := b.Delete(e.key); err != nil {
					return err
				}
			} else if err := b.Put(e.key, e.value); err != nil {
				return err
			}
		}
		return nil
	})
}

// latest returns the last entry of each key, in order of buckets and keys.
func latest(entries []entry) []entry {
	compare := func(e, other entry) int {
		return cmp.Or(cmp.Compare(e.bucket, other.bucket), bytes.Compare(e.key, other.key))
	}
	sorted := slices.Clone(entries)
	slices.Reverse(sorted)
	slices.SortStableFunc(sorted, compare)
	return slices.CompactFunc(sorted, func(e, other entry) bool { return compare(e, other) == 0 })
}
