package embedded

import (
	"encoding/binary"
	"time"

	"fencepost/internal/fencing"
)

// diskRecord is a fencing.Record in the file. Stamps are left out: the requests
// they name do not outlive the process. The expiry is left out: a restart
// begins the TTL anew.
type diskRecord struct {
	LastToken       int64         `cbor:"1,keyasint"`
	HighestAdmitted int64         `cbor:"2,keyasint,omitempty"`
	Holders         []diskHolding `cbor:"3,keyasint,omitempty"`
	Broken          []int64       `cbor:"4,keyasint,omitempty"`
	ForgetAt        int64         `cbor:"5,keyasint,omitempty"`
}

type diskHolding struct {
	Lease      string            `cbor:"1,keyasint"`
	Secret     []byte            `cbor:"2,keyasint"`
	Owner      string            `cbor:"3,keyasint,omitempty"`
	Metadata   map[string]string `cbor:"4,keyasint,omitempty"`
	Mode       string            `cbor:"5,keyasint"`
	Limit      int               `cbor:"6,keyasint,omitempty"`
	Slot       int               `cbor:"7,keyasint,omitempty"`
	Hold       int               `cbor:"8,keyasint"`
	Token      int64             `cbor:"9,keyasint"`
	TTL        int64             `cbor:"10,keyasint"` // nanoseconds, like the next two and Waited
	GrantTTL   int64             `cbor:"11,keyasint"`
	MaxHold    int64             `cbor:"12,keyasint,omitempty"`
	AcquiredAt int64             `cbor:"13,keyasint"` // microseconds
	Waited     int64             `cbor:"14,keyasint,omitempty"`
}

type diskTombstone struct {
	Secret []byte `cbor:"1,keyasint"`
	Token  int64  `cbor:"2,keyasint"`
	Reason string `cbor:"3,keyasint"`
	At     int64  `cbor:"4,keyasint"`
}

func recordOnDisk(r *fencing.Record) diskRecord {
	d := diskRecord{LastToken: int64(r.LastToken), HighestAdmitted: int64(r.HighestAdmitted), ForgetAt: int64(r.ForgetAt)}
	for _, token := range r.Broken {
		d.Broken = append(d.Broken, int64(token))
	}
	for i := range r.Holders {
		h := &r.Holders[i]
		d.Holders = append(d.Holders, diskHolding{
			Lease: string(h.Lease), Secret: h.Secret[:], Owner: h.Owner, Metadata: h.Metadata,
			Mode: string(h.Mode), Limit: h.Limit, Slot: h.Slot, Hold: h.Hold, Token: int64(h.Token),
			TTL: int64(h.TTL), GrantTTL: int64(h.GrantTTL), MaxHold: int64(h.MaxHold),
			AcquiredAt: int64(h.AcquiredAt), Waited: int64(h.Waited),
		})
	}
	return d
}

// restore returns the record as of a start at now, with remembered instants
// moved by shift.
func (d *diskRecord) restore(now, shift fencing.Instant) *fencing.Record {
	r := &fencing.Record{LastToken: fencing.Token(d.LastToken), HighestAdmitted: fencing.Token(d.HighestAdmitted)}
	if d.ForgetAt != 0 {
		r.ForgetAt = fencing.Instant(d.ForgetAt) + shift
	}
	for _, token := range d.Broken {
		r.Broken = append(r.Broken, fencing.Token(token))
	}
	for i := range d.Holders {
		h := &d.Holders[i]
		holding := fencing.Holding{Holder: fencing.Holder{
			Lease: fencing.LeasePublic(h.Lease), Owner: h.Owner, Metadata: h.Metadata,
			Mode: fencing.Mode(h.Mode), Limit: h.Limit, Slot: h.Slot, Hold: h.Hold, Token: fencing.Token(h.Token),
			TTL: time.Duration(h.TTL), GrantTTL: time.Duration(h.GrantTTL), MaxHold: time.Duration(h.MaxHold),
			AcquiredAt: fencing.Instant(h.AcquiredAt) + shift, Waited: time.Duration(h.Waited),
		}}
		copy(holding.Secret[:], h.Secret)
		holding.ExpiresAt = now.Add(holding.TTL)
		if holding.MaxHold > 0 {
			holding.ExpiresAt = min(holding.ExpiresAt, holding.AcquiredAt.Add(holding.MaxHold))
		}
		r.Holders = append(r.Holders, holding)
	}
	return r
}

func tombstoneOnDisk(t fencing.Tombstone) diskTombstone {
	return diskTombstone{Secret: t.Secret[:], Token: int64(t.Token), Reason: string(t.Reason), At: int64(t.At)}
}

// restore returns the tombstone under key, which begins with its Until.
func (d *diskTombstone) restore(key []byte) fencing.Tombstone {
	t := fencing.Tombstone{
		Token: fencing.Token(d.Token), Reason: fencing.Reason(d.Reason),
		At: fencing.Instant(d.At), Until: fencing.Instant(binary.BigEndian.Uint64(key)),
	}
	copy(t.Secret[:], d.Secret)
	return t
}
