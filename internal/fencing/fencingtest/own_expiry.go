package fencingtest

import (
	"maps"
	"time"

	"fencepost/internal/fencing"
)

// keptUntil is until when a store with OwnExpiry keeps the tombstone that counts until an instant.
type keptUntil struct {
	until fencing.Instant
	ms    int64 // of the store's clock, in whole ms since 1970
}

// keepTombstones notes until when the store keeps what is new: for TombstoneTTL at least from when
// it was written, in whole ms. What was over already is not written.
func (d *comparison) keepTombstones() {
	if !d.caps.OwnExpiry {
		return
	}
	tombstones := d.model.memory().state.Tombstones
	for lease, tomb := range tombstones {
		if d.kept[lease].until == tomb.Until {
			continue
		}
		d.kept[lease] = keptUntil{tomb.Until, millis(d.now) + (max(tomb.Until.Sub(d.now), fencing.TombstoneTTL) + time.Millisecond - 1).Milliseconds()}
		if tomb.Until <= d.now {
			delete(tombstones, lease)
		}
	}
}

// expireTombstones has the model forget those that the store does not keep any more: it drops them by
// its own clock, right or wrong.
func (d *comparison) expireTombstones() {
	if !d.caps.OwnExpiry {
		return
	}
	maps.DeleteFunc(d.model.memory().state.Tombstones, func(lease fencing.EndedLease, _ fencing.Tombstone) bool {
		return d.kept[lease].ms < millis(d.now)
	})
}

func millis(at fencing.Instant) int64 { return int64(at) / int64(time.Millisecond/time.Microsecond) }

// collected has the model forget an idle record that the store has collected by its own clock, right
// or wrong, and reports whether it did: when the store does, only it knows.
func (d *comparison) collected(name fencing.Name, r, want *result) bool {
	if !d.caps.OwnExpiry || r.err != nil || want.err != nil || r.out.Lock.LastToken != 0 || want.out.Lock.LastToken == 0 {
		return false
	}
	records := d.model.memory().state.Records
	if record := records[name]; !idle(record) || record.ForgetAt > d.latest {
		return false
	}
	delete(records, name)
	return true
}
