package embedded

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const (
	fileName = "fencepost.db"
	newName  = "fencepost.db.new" // on its way to be fileName
	lockName = "fencepost.lock"

	// lockPatience is how long a predecessor may take that is just shutting down.
	lockPatience = time.Second

	// growAt is how many times a half of the journal the file may be, before the
	// journal grows: with each half, all of the file is written anew.
	growAt = 2

	// remedy follows what is wrong with a file.
	remedy = "nothing in the directory was changed; put back a copy of it, or, when none of its leases can be in use any more (after the longest TTL), move it away: an empty one is made, and tokens go on growing by the clock"
)

// bucket is a kind of entry, in the order in which they stand in the file.
type bucket uint8

// The buckets. Bucket meta has "clock" (counter and time of the last flush, 8 bytes
// each, big endian) and, from the first flush of a run until its clean end, "journal"
// (its id and the number of the last flush that is in the file, the same). Bucket locks
// has a record a name. Bucket holders has a record a lease: under name, 0, lease. Bucket
// history has ended leases under name, 0, number (8 bytes, big endian). Bucket
// tombstones has them under until (8 bytes, big endian), name, 0, lease. Bucket marks has
// the marks of slots, up to slotsPerEntry together, under name, 0, slot / slotsPerEntry (1
// byte).
const (
	meta bucket = iota
	locks
	holders
	history
	tombstones
	marks
	buckets
)

var (
	keyClock   = []byte("clock")
	keyJournal = []byte("journal")
)

// disk is the durable half of the store: a table, and before it the journal. One
// goroutine uses it, but for what apply starts.
type disk struct {
	files    files
	lock     *os.File
	dir      string
	half     int64      // the least size of a half of the journal
	size     int64      // of the table as it was last read or written in full; of whoever commits
	journal  *journal   // nil until begin
	pending  []entry    // in the half of the journal that is being filled
	spare    []entry    // room for the next pending
	applying chan error // from the goroutine that puts the other half into the table; nil if there is none

	beforeFlush func() error
	afterFlush  func()
}

func openDisk(o Options) (*disk, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("the data directory can't be made: %w", err)
	}
	d := &disk{files: o.files, dir: o.Dir, half: journalHalf, beforeFlush: o.beforeFlush, afterFlush: o.afterFlush}
	if d.files == nil {
		d.files = system{}
	}
	if o.journalHalf != 0 {
		d.half = o.journalHalf
	}
	lock, err := lockDirectory(o.Dir, lockPatience)
	if err != nil {
		return nil, err
	}
	d.lock = lock
	if err = d.prepare(); err == nil {
		err = d.recover()
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// lockDirectory keeps other processes from a directory until the file it returns is
// closed.
func lockDirectory(dir string, patience time.Duration) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the data directory can't be locked: %w", err)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(patience / 20) {
		locked, err := tryLock(f)
		switch {
		case err != nil:
			return nil, errors.Join(fmt.Errorf("%s can't be locked: %w", path, err), f.Close())
		case locked:
			return f, nil
		case time.Now().After(deadline):
			return nil, errors.Join(fmt.Errorf("%s: %w", dir, errInUse), f.Close())
		}
	}
}

var errInUse = errors.New("it is in use by another process; only one gateway can use a data directory")

func (d *disk) path(name string) string { return filepath.Join(d.dir, name) }

// exists reports whether there is a file of that name.
func (d *disk) exists(name string) (bool, error) {
	f, err := d.files.open(d.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, f.Close()
}

// prepare makes an empty table where nothing is.
func (d *disk) prepare() error {
	found, err := d.exists(fileName)
	if err != nil || found {
		return err
	}
	switch left, err := d.exists(journalName); {
	case err != nil:
		return err
	case left:
		return fmt.Errorf("%s is missing, and %s, which is of no use without it, is there; %s", d.path(fileName), journalName, remedy)
	}
	// The directory's name has to be as durable as what is in it.
	if err := d.files.syncDir(filepath.Dir(filepath.Clean(d.dir))); err != nil {
		return err
	}
	return d.replace(func(w *tableWriter) error { return nil })
}

// errEnough ends a reading.
var errEnough = errors.New("enough")

// mark returns the mark of the journal in the table; nil after a clean end.
func (d *disk) mark() (mark []byte, err error) {
	err = d.each(func(e entry) error {
		if e.bucket != meta {
			return errEnough
		}
		if bytes.Equal(e.key, keyJournal) {
			mark = e.value
		}
		return nil
	})
	if err == nil || errors.Is(err, errEnough) {
		if mark != nil && len(mark) != 16 {
			return nil, fmt.Errorf("%s: %w: the mark of the journal has %d bytes; %s", d.path(fileName), errDamaged, len(mark), remedy)
		}
		return mark, nil
	}
	return nil, err
}

// each visits the entries of the table in order, and notes its size.
func (d *disk) each(visit func(entry) error) error {
	path := d.path(fileName)
	f, err := d.files.open(path)
	if err != nil {
		return err
	}
	size, err := readTable(f, visit)
	switch {
	case err == nil:
		d.size = size
	case !errors.Is(err, errEnough):
		err = fmt.Errorf("%s can't be used: %w; %s", path, err, remedy)
	}
	return errors.Join(err, f.Close())
}

// flushed returns the entries that the journal of an unclean end has beyond the table.
func (d *disk) flushed() ([]entry, error) {
	mark, err := d.mark()
	if err != nil || mark == nil {
		return nil, err
	}
	path := d.path(journalName)
	entries, err := readJournal(d.files, path, binary.BigEndian.Uint64(mark), binary.BigEndian.Uint64(mark[8:]))
	if err != nil {
		return nil, fmt.Errorf("%s, which has what was written last, can't be used: %w; %s", path, err, remedy)
	}
	return append(entries, entry{meta, keyJournal, nil}), nil
}

// recover puts what the journal of an unclean end has beyond the table into it.
func (d *disk) recover() error {
	entries, err := d.flushed()
	if err != nil || entries == nil {
		return err
	}
	return d.commit(entries)
}

// begin starts a journal that goes with the size of the table, which has been read or
// written. From here on flush is to be used instead of commit.
func (d *disk) begin() error {
	path := d.path(journalName)
	j, err := createJournal(d.files, path, max(d.half, wholeBlocks(int(min(d.size, maxJournalHalf)))))
	if err != nil {
		return fmt.Errorf("%s can't be made: %w", path, err)
	}
	if err := d.files.syncDir(d.dir); err != nil {
		return errors.Join(err, j.close())
	}
	if err := d.commit([]entry{j.mark()}); err != nil {
		return errors.Join(err, j.close())
	}
	d.journal = j
	return nil
}

// grow puts all that is pending, and entries, into the table, and goes on with a
// larger journal.
func (d *disk) grow(entries []entry) error {
	all := append(slices.Concat(d.pending, entries), entry{meta, keyJournal, nil})
	d.pending = nil
	if err := d.commit(all); err != nil {
		return err
	}
	old := d.journal
	d.journal = nil
	return errors.Join(old.close(), d.begin())
}

// mark is the entry of a table that has all of the journal so far.
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
		switch {
		case !fits: // goes into the table at once, with all before it
			d.journal.skip()
			all := slices.Concat(d.pending, entries)
			d.pending = nil
			return d.commit(append(all, d.journal.mark()))
		case d.size > growAt*d.journal.half && d.journal.half < maxJournalHalf:
			return d.grow(entries)
		}
		d.apply()
		d.journal.turn()
	}
	d.pending = append(d.pending, entries...)
	return d.journal.write()
}

// apply puts what is pending into the table, in the background.
func (d *disk) apply() {
	entries, done := append(d.pending, d.journal.mark()), make(chan error, 1)
	d.pending, d.spare, d.applying = d.spare, entries, done
	go func() { done <- d.commit(entries) }()
}

// applied waits for apply.
func (d *disk) applied() error {
	if d.applying == nil {
		return nil
	}
	err := <-d.applying
	d.applying = nil
	clear(d.spare)
	d.spare = d.spare[:0]
	return err
}

// finish puts all that is pending, and last, into the table. The journal has
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
	return d.files.remove(d.path(journalName))
}

func (d *disk) close() error {
	err := d.applied()
	if d.journal != nil {
		err = errors.Join(err, d.journal.close())
	}
	if d.lock != nil {
		err = errors.Join(err, d.lock.Close())
	}
	return err
}

// commit puts entries into the table. It returns when they are on disk.
func (d *disk) commit(entries []entry) error {
	return d.replace(func(w *tableWriter) error {
		each, end := onTop(latest(entries), func(e entry) error { return w.add(&e) })
		if err := d.each(each); err != nil {
			return err
		}
		return end()
	})
}

// replace makes what fill writes the table.
func (d *disk) replace(fill func(*tableWriter) error) error {
	f, err := d.files.create(d.path(newName))
	if err != nil {
		return err
	}
	w, err := newTableWriter(f)
	if err == nil {
		err = fill(w)
	}
	if err == nil {
		err = w.end()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	d.size = w.at
	if err := d.files.rename(d.path(newName), d.path(fileName)); err != nil {
		return err
	}
	return d.files.syncDir(d.dir)
}
