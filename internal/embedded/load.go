package embedded

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/fxamacker/cbor/v2"

	"fencepost/internal/fencing"
)

// strict refuses fields that are not known here: what they promise would be forgotten.
var strict = func() cbor.DecMode {
	mode, err := cbor.DecOptions{ExtraReturnErrors: cbor.ExtraDecErrorUnknownField}.DecMode()
	if err != nil {
		panic(err) // the options are constants
	}
	return mode
}()

// decode reads the value of an entry.
func decode(value []byte, into any) error {
	err := strict.Unmarshal(value, into)
	if _, ok := errors.AsType[*cbor.UnknownFieldError](err); ok {
		return fmt.Errorf("%w: a later one, for this version does not know all of its fields", errFormat)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	return nil
}

// loading is a state as it is read.
type loading struct {
	state *fencing.State
	last  map[fencing.Name]uint64 // the number of the newest entry of each history
	now   fencing.Instant
	shift fencing.Instant // by which remembered instants move
	moved changes         // what has moved
}

func newLoading(now fencing.Instant) *loading {
	return &loading{state: fencing.NewState(), last: map[fencing.Name]uint64{}, now: now}
}

// load reads the state back at now. Every lease gets its full TTL, but the time
// it was held before counts against its bound. If the clock was set back since
// the last flush, all remembered instants move back with it, and are written
// back so.
func (d *disk) load(now fencing.Instant) (*loading, error) {
	l := newLoading(now)
	if err := d.each(telling(d.log, tellEvery, l.entry)); err != nil {
		return nil, err
	}
	l.complete()
	if l.shift == 0 {
		return l, nil
	}
	l.noteMoved()
	w := l.moved.encode(l.state, now)
	if w.err != nil {
		return nil, w.err
	}
	return l, d.commit(w.entries)
}

// tellEvery is how often the log says how far a start has read.
const tellEvery = 5 * time.Second

// telling returns a visitor that tells the log how much it has visited, every so often.
func telling(log *slog.Logger, every time.Duration, visit func(entry) error) func(entry) error {
	const atOnce = 1 << 12 // it takes milliseconds
	entries, names := 0, 0
	next := time.Now().Add(every)
	return func(e entry) error {
		entries++
		if e.bucket == locks {
			names++
		}
		if entries%atOnce == 0 && !time.Now().Before(next) {
			log.Info("the store is being read", "entries", entries, "names", names)
			next = time.Now().Add(every)
		}
		return visit(e)
	}
}

// entry takes in an entry; they come in the order of the table.
func (l *loading) entry(e entry) error {
	switch e.bucket {
	case meta:
		return l.meta(e.key, e.value)
	case locks:
		return l.record(e.key, e.value)
	case holders:
		return l.holder(e.key, e.value)
	case history:
		return l.past(e.key, e.value)
	case marks:
		return l.slotMarks(e.key, e.value)
	}
	return l.tombstone(e.key, e.value)
}

func (l *loading) meta(key, value []byte) error {
	switch {
	case bytes.Equal(key, keyJournal):
		return nil // read before: disk.mark
	case !bytes.Equal(key, keyClock):
		return fmt.Errorf("%w: a later one, for this version does not know its entry %q", errFormat, key)
	case len(value) != 16:
		return fmt.Errorf("%w: its clock has %d bytes", errDamaged, len(value))
	}
	l.state.Counter = fencing.Token(binary.BigEndian.Uint64(value))
	l.shift = min(0, l.now-fencing.Instant(binary.BigEndian.Uint64(value[8:])))
	return nil
}

// complete follows the last entry.
func (l *loading) complete() {
	for _, r := range l.state.Records {
		if r.Holders.Len() == 0 && r.ForgetAt == 0 { // all it had was a provisional lease
			r.ForgetAt = l.now.Add(fencing.ForgetAfter)
		}
	}
}

func (l *loading) record(key, value []byte) error {
	var r diskRecord
	if err := decode(value, &r); err != nil {
		return fmt.Errorf("the record of %q: %w", key, err)
	}
	l.state.Records[fencing.Name(key)] = r.restore(l.shift)
	return nil
}

// below returns the record that a key of another bucket belongs to.
func (l *loading) below(key []byte) (fencing.Name, *fencing.Record, []byte, error) {
	name, rest, ok := bytes.Cut(key, []byte{0})
	r := l.state.Records[fencing.Name(name)]
	if !ok || r == nil {
		return "", nil, nil, fmt.Errorf("the key %q belongs to no record", key)
	}
	return fencing.Name(name), r, rest, nil
}

func (l *loading) holder(key, value []byte) error {
	name, r, lease, err := l.below(key)
	if err != nil {
		return err
	}
	var h diskHolding
	if err := decode(value, &h); err != nil {
		return fmt.Errorf("the lease %s on %q: %w", lease, name, err)
	}
	r.Holders.Put(h.restore(fencing.LeasePublic(lease), l.now, l.shift))
	return nil
}

func (l *loading) past(key, value []byte) error {
	name, r, number, err := l.below(key)
	if err != nil {
		return err
	}
	var e diskEnded
	if err := decode(value, &e); err != nil {
		return fmt.Errorf("the history of %q: %w", name, err)
	}
	if len(number) != 8 {
		return fmt.Errorf("a key of the history of %q is damaged: %x", name, key)
	}
	r.History = append(r.History, e.restore(name, l.shift))
	l.last[name] = binary.BigEndian.Uint64(number)
	return nil
}

func (l *loading) tombstone(key, value []byte) error {
	ended, err := parseTombstoneKey(key)
	if err != nil {
		return err
	}
	var t diskTombstone
	if err := decode(value, &t); err != nil {
		return fmt.Errorf("the tombstone of %s on %q: %w", ended.Lease, ended.Name, err)
	}
	tomb := t.restore(key)
	if l.shift != 0 {
		l.moved.forget(ended, tomb.Until)
		tomb.At, tomb.Until = tomb.At+l.shift, tomb.Until+l.shift
		l.moved.addTombstone(ended, tomb)
	}
	l.state.Tombstones[ended] = tomb
	return nil
}

// noteMoved notes all that has moved with the clock, tombstones aside.
func (l *loading) noteMoved() {
	for name, r := range l.state.Records {
		l.moved.record(name)
		for h := range r.Holders.All() {
			l.moved.holder(name, h.Lease)
		}
		for i := range r.History {
			l.moved.log.put(history, pastKey(name, l.last[name]-uint64(len(r.History)-1-i)), endedOnDisk(&r.History[i]))
		}
	}
}

// subKey is the key of something that belongs to a name, in order of the names.
func subKey(name fencing.Name, rest string) []byte {
	b := append(make([]byte, 0, len(name)+1+len(rest)), name...)
	b = append(b, 0)
	return append(b, rest...)
}

func tombstoneKey(key fencing.EndedLease, until fencing.Instant) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 8+len(key.Name)+1+len(key.Lease)), uint64(until))
	return append(b, subKey(key.Name, string(key.Lease))...)
}

func parseTombstoneKey(b []byte) (fencing.EndedLease, error) {
	if len(b) > 8 {
		if name, lease, ok := bytes.Cut(b[8:], []byte{0}); ok {
			return fencing.EndedLease{Name: fencing.Name(name), Lease: fencing.LeasePublic(lease)}, nil
		}
	}
	return fencing.EndedLease{}, fmt.Errorf("the key of a tombstone is damaged: %x", b)
}
