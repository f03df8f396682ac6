package machine

import (
	"fmt"
	"time"

	"github.com/fxamacker/cbor/v2"

	"fencepost/internal/fencing"
)

// Format is the version of how an entry, a snapshot and a message between nodes are encoded. Whoever changes that raises
// it, and says so in the changelog. Nodes of two formats do not connect with each other, and none reads a log of another.
// That two versions decide differently is seen by what entries say of those before them: see Entry.Digest.
const Format = 3

const (
	// MostOps and MostBytes bound an entry, but for a batch that alone is larger: so much
	// is decided in about a millisecond, and a follower that lags is sent some megabytes
	// at once at most.
	MostOps   = 512
	MostBytes = 256 << 10
)

// Entry is an entry of the log: what is to be done, and when.
type Entry struct {
	Version int     `cbor:"1,keyasint"`
	Term    uint64  `cbor:"2,keyasint,omitempty"` // of a cluster: in which it was made; in another one nothing of it counts
	Now     int64   `cbor:"3,keyasint"`           // microseconds; no rule reckons with less than of the entry before, unless the log follows a clock
	Batches []Batch `cbor:"4,keyasint,omitempty"`
	Wall    int64   `cbor:"5,keyasint,omitempty"` // its writer's wall clock: see WallStep
	Behind  uint64  `cbor:"6,keyasint,omitempty"` // its writer had carried out the log up to this index, which may be its own; 0: it does not say
	Digest  uint64  `cbor:"7,keyasint,omitempty"` // over what had come of that
	Writer  string  `cbor:"8,keyasint,omitempty"` // the version of the gateway that writes, with the first entry that it does
	Rules   int     `cbor:"9,keyasint,omitempty"` // from here on these decide, if they are later ones: see fencing.State.Rules
}

// Batch is what a gateway asks for, in order, at one instant.
type Batch struct {
	Gateway    string            `cbor:"1,keyasint,omitempty"`
	Number     uint64            `cbor:"2,keyasint,omitempty"` // of this gateway's batches
	MaxHolders int               `cbor:"3,keyasint,omitempty"`
	StepLimit  int               `cbor:"4,keyasint,omitempty"`
	Ops        []cbor.RawMessage `cbor:"5,keyasint,omitempty"`
	After      int64             `cbor:"6,keyasint,omitempty"` // microseconds after Entry.Now

	// Of a store with a clock of its own: see fencing.Guard.
	Sent    int64 `cbor:"7,keyasint,omitempty"` // microseconds; 0: within MaxSkew of the clock
	MaxSkew int64 `cbor:"8,keyasint,omitempty"` // nanoseconds
	Floor   int64 `cbor:"9,keyasint,omitempty"`

	Kept []int64 `cbor:"10,keyasint,omitempty"` // tokens of leases that do not end

	Tentative bool `cbor:"11,keyasint,omitempty"` // all that is handed to waiters is provisional
}

// Op is an operation as it is encoded: see EncodeOp, Tick, Prune, Beat and Restart.
type Op = cbor.RawMessage

// Guard returns what goes with the operations of a batch.
func (b *Batch) Guard() fencing.Guard {
	var kept map[fencing.Token]bool
	for _, token := range b.Kept {
		if kept == nil {
			kept = make(map[fencing.Token]bool, len(b.Kept))
		}
		kept[fencing.Token(token)] = true
	}
	return fencing.Guard{
		Kept: kept, Tentative: b.Tentative,
		Gateway: fencing.Gateway(b.Gateway), MaxHolders: b.MaxHolders, StepLimit: b.StepLimit,
		Sent: fencing.Instant(b.Sent), MaxSkew: time.Duration(b.MaxSkew), Floor: fencing.Token(b.Floor),
	}
}

// Size returns how many bytes the operations of a batch have.
func (b *Batch) Size() (size int) {
	for _, op := range b.Ops {
		size += len(op)
	}
	return size
}

// Encode returns an entry as it stands in the log.
func (e *Entry) Encode() ([]byte, error) {
	e.Version = Format
	return Encoding.Marshal(e)
}

// Decoded is an entry with its operations.
type Decoded struct {
	*Entry
	batches []decodedBatch
}

// decodedBatch is a batch with its operations.
type decodedBatch struct {
	*Batch
	kinds []kind
	ops   []fencing.Op // nil of those that are none of fencing's,
	plain []operation  // which are here; nil if there are none
}

// Decode returns what Encode was called for, or an error: then nothing of it counts.
func Decode(data []byte) (*Decoded, error) {
	var e Entry
	if err := Strict.Unmarshal(data, &e); err != nil {
		return nil, fmt.Errorf("it can't be read by this version: %w", err)
	}
	if e.Version != Format {
		return nil, fmt.Errorf("it has version %d; this version reads version %d", e.Version, Format)
	}
	d := &Decoded{&e, make([]decodedBatch, len(e.Batches))}
	for i := range e.Batches {
		b := decodedBatch{Batch: &e.Batches[i]}
		b.kinds, b.ops = make([]kind, len(b.Ops)), make([]fencing.Op, len(b.Ops))
		for j, encoded := range b.Ops {
			o, err := decodeOperation(encoded)
			if err != nil {
				return nil, fmt.Errorf("an operation can't be read by this version: %w", err)
			}
			if b.kinds[j] = o.Kind; !o.Kind.ofStep() {
				if b.plain == nil {
					b.plain = make([]operation, len(b.Ops))
				}
				b.plain[j] = o
				continue
			}
			if b.ops[j], err = o.op(); err != nil {
				return nil, err
			}
		}
		d.batches[i] = b
	}
	return d, nil
}
