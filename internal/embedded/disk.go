package embedded

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"slices"
	"time"

	"fencepost/internal/datadir"
)

const (
	fileName = "fencepost.db"

	// lockPatience is how long a predecessor may take that is just shutting down.
	lockPatience = time.Second

	// remedy follows what is wrong with a file.
	remedy = "nothing in the directory was changed; put back a copy of it, or, when none of its leases can be in use any more (after the longest TTL), move it away: an empty one is made, and tokens go on growing by the clock"

	// otherVersion follows that a file is of another version.
	otherVersion = "nothing in the directory was changed; start the version that wrote it. To go over to this one without it, stop the gateway, and when none of its leases can be in use any more (after the longest TTL), move the file away: an empty one is made, and tokens go on growing by the clock"
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
	directory
	lock     *datadir.Lock
	log      *slog.Logger
	least    int64      // of a segment of the journal, in bytes
	most     int64      // of a segment: the least once there was less room than the file system had said
	size     int64      // of the table as it was last opened or written; of whoever commits
	journal  *journal   // nil until begin
	pending  []entry    // in the segment of the journal that is being filled
	spare    []entry    // room for the next pending
	applying chan error // from the goroutine that puts the other segment into the table; nil if there is none

	beforeFlush func() error
	afterFlush  func()
}

func openDisk(o Options) (*disk, error) {
	kind := cmp.Or[files](o.files, system{})
	if err := datadir.Make(o.Dir, kind.syncDir); err != nil {
		return nil, fmt.Errorf("the data directory can't be made: %w", err)
	}
	lock, err := datadir.Take(o.Dir, lockPatience)
	if err != nil {
		return nil, err
	}
	d := &disk{
		directory: directory{locked{kind, lock}, o.Dir}, lock: lock, log: o.Logger,
		least: cmp.Or(o.segment, leastSegment), most: math.MaxInt64, beforeFlush: o.beforeFlush, afterFlush: o.afterFlush,
	}
	if err = d.prepare(); err == nil {
		err = d.recover()
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// prepare makes an empty table where nothing is.
func (d *disk) prepare() error {
	found, err := d.exists(fileName)
	if err != nil || found {
		return err
	}
	for _, name := range segmentNames {
		switch left, err := d.exists(name); {
		case err != nil:
			return err
		case left:
			return fmt.Errorf("%s is missing, and %s, which is of no use without it, is there; %s", d.path(fileName), name, remedy)
		}
	}
	if err := d.roomForNew(d.least); err != nil {
		return err
	}
	if err := datadir.SyncName(d.dir, d.files.syncDir); err != nil {
		return err
	}
	return d.writeTable(func(*tableWriter) error { return nil })
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

// each visits the entries of the table in order. It notes its size first.
func (d *disk) each(visit func(entry) error) error {
	path := d.path(fileName)
	f, err := d.files.open(path)
	if err != nil {
		return err
	}
	d.size, err = f.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err == nil {
		err = readTable(f, visit)
	}
	switch {
	case err == nil:
	case errors.Is(err, errFormat):
		err = fmt.Errorf("%s can't be used: %w; %s", path, err, otherVersion)
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
	entries, err := readJournal(d.directory, binary.BigEndian.Uint64(mark), binary.BigEndian.Uint64(mark[8:]))
	if err != nil {
		return nil, fmt.Errorf("the journal in %s, which has what was written last, can't be used: %w; %s", d.dir, err, remedy)
	}
	return append(entries, entry{meta, keyJournal, nil}), nil
}

// recover puts what the journal of an unclean end has beyond the table into it.
func (d *disk) recover() error {
	entries, err := d.flushed()
	if err != nil {
		return err
	}
	for _, name := range append(segmentNames[:], fileName) { // what a crash left half-written may have the room that is needed
		if err := d.removeLeft(name + newSuffix); err != nil {
			return err
		}
	}
	if entries == nil {
		return nil
	}
	return d.commit(entries)
}

// removeLeft removes a file that is of no use, if it is there.
func (d *disk) removeLeft(name string) error {
	if err := d.files.remove(d.path(name)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// begin starts a journal that goes with the size of the table, which has been read or
// written. From here on flush is to be used instead of commit. The journal before, which the table does
// not need any more, gives its room to this one.
func (d *disk) begin() error {
	// Who put the journal into the table may have been killed before the table's name was on disk.
	if err := d.files.syncDir(d.dir); err != nil {
		return err
	}
	err := d.makeJournal()
	if errors.Is(err, datadir.ErrNoRoom) { // a quota, or another process, leaves less than the file system has said
		d.most = d.least
		err = d.makeJournal()
	}
	return err
}

// makeJournal makes a journal in place of what is there.
func (d *disk) makeJournal() error {
	for _, name := range segmentNames {
		if err := d.removeLeft(name); err != nil {
			return err
		}
	}
	j, err := createJournal(d.directory, d.segmentSize(0))
	if err != nil {
		return fmt.Errorf("the journal can't be made: %w", err)
	}
	if err := d.commit([]entry{j.mark()}); err != nil {
		return errors.Join(err, j.close())
	}
	d.journal = j
	return nil
}

// segmentSize returns how large a segment is to be: as the table, where there is room for both segments,
// a new table, and what a segment adds to that. Else what fits, and as small as one may be at least. there is
// how many bytes those have that are to be replaced.
func (d *disk) segmentSize(there int64) int64 {
	size := min(d.size, d.most)
	if free, known := d.files.free(d.dir); known {
		size = min(size, (free+there-d.size)/3)
	}
	return max(d.least, size)
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
	if err := d.lock.Held(); err != nil { // who has what is there now may have granted the same
		return err
	}
	if d.afterFlush != nil {
		d.afterFlush()
	}
	return nil
}

func (d *disk) append(entries []entry) error {
	d.journal.encode(entries)
	if d.journal.full() {
		if err := d.applied(); err != nil {
			return err
		}
		d.apply()
		d.journal.switchSegment()
	}
	if d.journal.full() { // larger than a segment: goes into the table at once
		if err := d.applied(); err != nil {
			return err
		}
		d.journal.number++
		return d.commit(append(slices.Clip(entries), d.journal.mark()))
	}
	if err := d.appliedYet(); err != nil {
		return err
	}
	d.pending = append(d.pending, entries...)
	return d.journal.write()
}

// apply puts what is pending into the table, in the background, and makes the segment that
// it stood in larger if the table has outgrown it.
func (d *disk) apply() {
	entries, full, done := append(d.pending, d.journal.mark()), d.journal.current, make(chan error, 1)
	d.pending, d.spare, d.applying = d.spare, entries, done
	go func() {
		err := d.commit(entries)
		if err == nil {
			err = d.journal.grow(full, d.segmentSize(d.journal.bytes()))
		}
		done <- err
	}()
}

// applied waits for apply.
func (d *disk) applied() error {
	if d.applying == nil {
		return nil
	}
	return d.endApply(<-d.applying)
}

// appliedYet is applied for who does not wait: it returns nil where apply has not ended.
func (d *disk) appliedYet() error {
	select {
	case err := <-d.applying:
		return d.endApply(err)
	default:
		return nil
	}
}

func (d *disk) endApply(err error) error {
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
	served := d.journal
	d.journal = nil
	return served.remove()
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
	return d.writeTable(func(w *tableWriter) error {
		var failed error // of the new table: nothing is wrong with the one that is read
		each, end := onTop(latest(entries), func(e entry) error {
			failed = w.add(&e)
			return failed
		})
		if err := d.each(each); err != nil {
			return cmp.Or(failed, err)
		}
		return end()
	})
}

// writeTable makes what fill writes the table.
func (d *disk) writeTable(fill func(*tableWriter) error) error {
	return d.replace(fileName, d.size, func(f file) error {
		w, err := newTableWriter(f)
		if err == nil {
			err = fill(w)
		}
		if err == nil {
			err = w.end()
		}
		d.size = w.at
		return err
	})
}
