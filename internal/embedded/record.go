package embedded

import (
	"encoding/binary"
	"time"

	"fencepost/internal/fencing"
)

// diskRecord is a fencing.Record in the file, without its holders and history,
// which have buckets of their own. The queue is left out: the requests in it do
// not outlive the process.
type diskRecord struct {
	LastToken       int64   `cbor:"1,keyasint"`
	HighestAdmitted int64   `cbor:"2,keyasint,omitempty"`
	Broken          []int64 `cbor:"3,keyasint,omitempty"`
	ForgetAt        int64   `cbor:"4,keyasint,omitempty"`
	Mark            int64   `cbor:"5,keyasint,omitempty"`
	DelayedUntil    int64   `cbor:"6,keyasint,omitempty"` // microseconds
}

// diskHolding is a fencing.Holding in the file. Its stamp, gateway and place are
// left out as the queue is, and so is the expiry: a restart begins the TTL anew.
type diskHolding struct {
	Secret     []byte            `cbor:"1,keyasint,omitempty"`
	Owner      string            `cbor:"2,keyasint,omitempty"`
	Metadata   map[string]string `cbor:"3,keyasint,omitempty"`
	Mode       string            `cbor:"4,keyasint"`
	Limit      int               `cbor:"5,keyasint,omitempty"`
	Slot       int               `cbor:"6,keyasint,omitempty"`
	Hold       int               `cbor:"7,keyasint"`
	Token      int64             `cbor:"8,keyasint"`
	TTL        int64             `cbor:"9,keyasint"` // nanoseconds, like the next two and Waited
	GrantTTL   int64             `cbor:"10,keyasint"`
	MaxHold    int64             `cbor:"11,keyasint,omitempty"`
	AcquiredAt int64             `cbor:"12,keyasint"` // microseconds
	Waited     int64             `cbor:"13,keyasint,omitempty"`
	Set        string            `cbor:"14,keyasint,omitempty"`
	BreakAt    int64             `cbor:"15,keyasint,omitempty"` // microseconds

	BreakReason string `cbor:"16,keyasint,omitempty"`
	MorePermits int    `cbor:"17,keyasint,omitempty"` // than one
	Slots       string `cbor:"18,keyasint,omitempty"`
	LockDelay   int64  `cbor:"19,keyasint,omitempty"` // nanoseconds
}

// diskEnded is a fencing.Ended in the file. Secret and metadata are left out:
// nobody is shown them.
type diskEnded struct {
	Lease     string      `cbor:"1,keyasint"`
	Holder    diskHolding `cbor:"2,keyasint"`
	ExpiresAt int64       `cbor:"3,keyasint"` // microseconds, like At
	Reason    string      `cbor:"4,keyasint"`
	At        int64       `cbor:"5,keyasint"`

	BreakReason string `cbor:"6,keyasint,omitempty"`
}

type diskTombstone struct {
	Secret []byte `cbor:"1,keyasint"`
	Token  int64  `cbor:"2,keyasint"`
	Reason string `cbor:"3,keyasint"`
	At     int64  `cbor:"4,keyasint"`

	BreakReason string `cbor:"5,keyasint,omitempty"`
}

func recordOnDisk(r *fencing.Record) diskRecord {
	d := diskRecord{
		LastToken: int64(r.LastToken), HighestAdmitted: int64(r.HighestAdmitted), ForgetAt: int64(r.ForgetAt),
		Mark: int64(r.Mark), DelayedUntil: int64(r.DelayedUntil),
	}
	for _, token := range r.Broken {
		d.Broken = append(d.Broken, int64(token))
	}
	return d
}

// restore returns the record as of a start, with remembered instants moved by
// shift.
func (d *diskRecord) restore(shift fencing.Instant) *fencing.Record {
	r := &fencing.Record{
		LastToken: fencing.Token(d.LastToken), HighestAdmitted: fencing.Token(d.HighestAdmitted),
		Mark: fencing.Token(d.Mark),
	}
	if d.ForgetAt != 0 {
		r.ForgetAt = fencing.Instant(d.ForgetAt) + shift
	}
	if d.DelayedUntil != 0 {
		r.DelayedUntil = fencing.Instant(d.DelayedUntil) + shift
	}
	for _, token := range d.Broken {
		r.Broken = append(r.Broken, fencing.Token(token))
	}
	return r
}

func holderOnDisk(h *fencing.Holder) diskHolding {
	return diskHolding{
		Owner: h.Owner, Mode: string(h.Mode), Limit: h.Limit, Slot: h.Slot, Hold: h.Hold, Token: int64(h.Token),
		TTL: int64(h.TTL), GrantTTL: int64(h.GrantTTL), MaxHold: int64(h.MaxHold),
		AcquiredAt: int64(h.AcquiredAt), Waited: int64(h.Waited), BreakAt: int64(h.BreakAt), BreakReason: h.BreakReason,
		MorePermits: h.Permits - 1, Slots: string(h.Slots), LockDelay: int64(h.LockDelay),
	}
}

func holdingOnDisk(h *fencing.Holding) diskHolding {
	d := holderOnDisk(&h.Holder)
	d.Secret, d.Metadata, d.Set = h.Secret[:], h.Metadata, h.Set
	return d
}

func (d *diskHolding) holder(lease fencing.LeasePublic, shift fencing.Instant) fencing.Holder {
	h := fencing.Holder{
		Lease: lease, Owner: d.Owner, Metadata: d.Metadata,
		Mode: fencing.Mode(d.Mode), Limit: d.Limit, Slot: d.Slot, Hold: d.Hold, Token: fencing.Token(d.Token),
		TTL: time.Duration(d.TTL), GrantTTL: time.Duration(d.GrantTTL), MaxHold: time.Duration(d.MaxHold),
		AcquiredAt: fencing.Instant(d.AcquiredAt) + shift, Waited: time.Duration(d.Waited), BreakReason: d.BreakReason,
		Permits: 1 + d.MorePermits, Slots: fencing.Slots(d.Slots), LockDelay: time.Duration(d.LockDelay),
	}
	if d.BreakAt != 0 {
		h.BreakAt = fencing.Instant(d.BreakAt) + shift
	}
	return h
}

// restore returns the holding as of a start at now: with its full TTL, but the
// time it was held before counts against its bound, and it ends when it is to be broken.
func (d *diskHolding) restore(lease fencing.LeasePublic, now, shift fencing.Instant) fencing.Holding {
	h := fencing.Holding{Holder: d.holder(lease, shift), Set: d.Set}
	copy(h.Secret[:], d.Secret)
	h.ExpiresAt = now.Add(h.TTL)
	if h.MaxHold > 0 {
		h.ExpiresAt = min(h.ExpiresAt, h.AcquiredAt.Add(h.MaxHold))
	}
	if h.BreakAt != 0 {
		h.ExpiresAt = min(h.ExpiresAt, h.BreakAt)
	}
	return h
}

func endedOnDisk(e *fencing.Ended) diskEnded {
	return diskEnded{
		Lease: string(e.Holder.Lease), Holder: holderOnDisk(&e.Holder), ExpiresAt: int64(e.Holder.ExpiresAt),
		Reason: string(e.Reason), At: int64(e.At), BreakReason: e.BreakReason,
	}
}

func (d *diskEnded) restore(name fencing.Name, shift fencing.Instant) fencing.Ended {
	e := fencing.Ended{
		Name: name, Holder: d.Holder.holder(fencing.LeasePublic(d.Lease), shift),
		Reason: fencing.Reason(d.Reason), At: fencing.Instant(d.At) + shift, BreakReason: d.BreakReason,
	}
	e.Holder.ExpiresAt = fencing.Instant(d.ExpiresAt) + shift
	return e
}

func tombstoneOnDisk(t fencing.Tombstone) diskTombstone {
	return diskTombstone{Secret: t.Secret[:], Token: int64(t.Token), Reason: string(t.Reason), At: int64(t.At), BreakReason: t.BreakReason}
}

// restore returns the tombstone under key, which begins with its Until.
func (d *diskTombstone) restore(key []byte) fencing.Tombstone {
	t := fencing.Tombstone{
		Token: fencing.Token(d.Token), Reason: fencing.Reason(d.Reason),
		At: fencing.Instant(d.At), Until: fencing.Instant(binary.BigEndian.Uint64(key)), BreakReason: d.BreakReason,
	}
	copy(t.Secret[:], d.Secret)
	return t
}
