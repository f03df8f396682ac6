package embedded

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fxamacker/cbor/v2"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"fencepost/internal/fencing"
)

// The file: bucket meta has "format" and "clock" (counter and time of the last
// flush, 8 bytes each, big endian); bucket locks has a record a name; bucket
// tombstones has a record for until (8 bytes, big endian), name, 0, lease, so
// that what is to be forgotten stands first and what is new is appended.
const (
	fileName = "fencepost.db"
	format   = "1"
)

var (
	bucketMeta       = []byte("meta")
	bucketLocks      = []byte("locks")
	bucketTombstones = []byte("tombstones")
	keyFormat        = []byte("format")
	keyClock         = []byte("clock")
)

// disk is the durable half of the store.
type disk struct {
	db           *bolt.DB
	beforeCommit func() error
	afterCommit  func()
}

func openDisk(o Options) (*disk, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("the data directory can't be made: %w", err)
	}
	path := filepath.Join(o.Dir, fileName)
	_, statErr := os.Stat(path)
	db, err := bolt.Open(path, 0o600, &bolt.Options{
		Timeout:        time.Second, // for a predecessor that is just shutting down
		NoFreelistSync: true,        // the free list is found again at start; not writing it saves a page a flush
		FreelistType:   bolt.FreelistMapType,
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("%s is in use by another process; only one gateway can use a data directory", path)
	}
	if err != nil {
		return nil, fmt.Errorf("%s can't be opened: %w", path, err)
	}
	d := &disk{db: db, beforeCommit: o.beforeCommit, afterCommit: o.afterCommit}
	if err := d.prepare(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), db.Close())
	}
	if errors.Is(statErr, fs.ErrNotExist) {
		// The file's name has to be as durable as its content.
		if err := errors.Join(syncDir(o.Dir), syncDir(filepath.Dir(filepath.Clean(o.Dir)))); err != nil {
			return nil, errors.Join(err, db.Close())
		}
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
		meta, err := tx.CreateBucketIfNotExists(bucketMeta)
		if err != nil {
			return err
		}
		for _, name := range [][]byte{bucketLocks, bucketTombstones} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		switch found := meta.Get(keyFormat); {
		case found == nil:
			return meta.Put(keyFormat, []byte(format))
		case string(found) != format:
			return fmt.Errorf("it has format %q; this version reads format %q", found, format)
		}
		return nil
	})
}

func (d *disk) close() error { return d.db.Close() }

// changes is what a batch has to make durable.
type changes struct {
	records   map[fencing.Name]struct{}
	ended     map[fencing.EndedLease]struct{}
	forgotten [][]byte
	clock     bool // write the clock though nothing else has changed
}

func (c *changes) empty() bool {
	return len(c.records) == 0 && len(c.ended) == 0 && len(c.forgotten) == 0 && !c.clock
}

func (c *changes) record(name fencing.Name) {
	if c.records == nil {
		c.records = map[fencing.Name]struct{}{}
	}
	c.records[name] = struct{}{}
}

func (c *changes) end(key fencing.EndedLease) {
	if c.ended == nil {
		c.ended = map[fencing.EndedLease]struct{}{}
	}
	c.ended[key] = struct{}{}
}

func (c *changes) forget(key fencing.EndedLease, until fencing.Instant) {
	c.forgotten = append(c.forgotten, tombstoneKey(key, until))
}

// writes is what a flush puts into the file.
type writes struct {
	locks      []entry
	tombstones []entry
	forgotten  [][]byte
	clock      [16]byte
	err        error // something could not be encoded
}

// entry is a key with its value; nil deletes.
type entry struct{ key, value []byte }

// encode takes down the changes as they are in state.
func (c *changes) encode(state *fencing.State, now fencing.Instant) writes {
	w := writes{
		locks:      make([]entry, 0, len(c.records)),
		tombstones: make([]entry, 0, len(c.ended)),
		forgotten:  c.forgotten,
	}
	for name := range c.records {
		var value []byte
		if r := state.Records[name]; r != nil {
			value = w.marshal(recordOnDisk(r))
		}
		w.locks = append(w.locks, entry{[]byte(name), value})
	}
	for key := range c.ended {
		if tomb, ok := state.Tombstones[key]; ok {
			w.tombstones = append(w.tombstones, entry{tombstoneKey(key, tomb.Until), w.marshal(tombstoneOnDisk(tomb))})
		}
	}
	binary.BigEndian.PutUint64(w.clock[:8], uint64(state.Counter))
	binary.BigEndian.PutUint64(w.clock[8:], uint64(now))
	return w
}

func (w *writes) marshal(v any) []byte {
	value, err := cbor.Marshal(v)
	w.err = errors.Join(w.err, err)
	return value
}

// commit makes writes durable. It returns when they are on disk.
func (d *disk) commit(w *writes) error {
	if w.err != nil {
		return w.err
	}
	err := d.db.Update(func(tx *bolt.Tx) error {
		if d.beforeCommit != nil {
			if err := d.beforeCommit(); err != nil {
				return err
			}
		}
		tombstones := tx.Bucket(bucketTombstones)
		for _, key := range w.forgotten {
			if err := tombstones.Delete(key); err != nil {
				return err
			}
		}
		if err := putAll(tx.Bucket(bucketLocks), w.locks); err != nil {
			return err
		}
		if err := putAll(tombstones, w.tombstones); err != nil {
			return err
		}
		return tx.Bucket(bucketMeta).Put(keyClock, w.clock[:])
	})
	if err == nil && d.afterCommit != nil {
		d.afterCommit()
	}
	return err
}

func putAll(bucket *bolt.Bucket, entries []entry) error {
	for _, e := range entries {
		if e.value == nil {
			if err := bucket.Delete(e.key); err != nil {
				return err
			}
		} else if err := bucket.Put(e.key, e.value); err != nil {
			return err
		}
	}
	return nil
}

// load reads the state back at now. Every lease gets its full TTL, but the time
// it was held before counts against its bound. If the clock was set back since
// the last flush, all remembered instants move back with it, and are written
// back so.
func (d *disk) load(now fencing.Instant) (*fencing.State, error) {
	state := fencing.NewState()
	var shift fencing.Instant
	var moved changes
	err := d.db.View(func(tx *bolt.Tx) error {
		if clock := tx.Bucket(bucketMeta).Get(keyClock); len(clock) == 16 {
			state.Counter = fencing.Token(binary.BigEndian.Uint64(clock[:8]))
			shift = min(0, now-fencing.Instant(binary.BigEndian.Uint64(clock[8:])))
		}
		err := tx.Bucket(bucketLocks).ForEach(func(name, value []byte) error {
			var r diskRecord
			if err := cbor.Unmarshal(value, &r); err != nil {
				return fmt.Errorf("the record of %q is damaged: %w", name, err)
			}
			state.Records[fencing.Name(name)] = r.restore(now, shift)
			return nil
		})
		if err != nil {
			return err
		}
		return tx.Bucket(bucketTombstones).ForEach(func(key, value []byte) error {
			ended, err := parseTombstoneKey(key)
			if err != nil {
				return err
			}
			var t diskTombstone
			if err := cbor.Unmarshal(value, &t); err != nil {
				return fmt.Errorf("the tombstone of %s on %q is damaged: %w", ended.Lease, ended.Name, err)
			}
			tomb := t.restore(key)
			if shift != 0 {
				moved.forget(ended, tomb.Until)
				tomb.At, tomb.Until = tomb.At+shift, tomb.Until+shift
				moved.end(ended)
			}
			state.Tombstones[ended] = tomb
			return nil
		})
	})
	if err != nil || shift == 0 {
		return state, err
	}
	for name := range state.Records {
		moved.record(name)
	}
	w := moved.encode(state, now)
	return state, d.commit(&w)
}

func tombstoneKey(key fencing.EndedLease, until fencing.Instant) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 8+len(key.Name)+1+len(key.Lease)), uint64(until))
	b = append(b, key.Name...)
	b = append(b, 0)
	return append(b, key.Lease...)
}

func parseTombstoneKey(b []byte) (fencing.EndedLease, error) {
	if len(b) > 8 {
		if name, lease, ok := bytes.Cut(b[8:], []byte{0}); ok {
			return fencing.EndedLease{Name: fencing.Name(name), Lease: fencing.LeasePublic(lease)}, nil
		}
	}
	return fencing.EndedLease{}, fmt.Errorf("the key of a tombstone is damaged: %x", b)
}
