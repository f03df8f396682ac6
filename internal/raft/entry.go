package raft

import (
	"fmt"

	"github.com/fxamacker/cbor/v2"

	"fencepost/internal/fencing"
)

// Format is the version of what all nodes of a cluster have to agree on: how an entry and a message are
// encoded, and what carrying out an entry comes to, which TestFormat holds it to. Whoever changes either raises it, and
// says so in the changelog: a node that took another decision than the others would have another state from then on.
// Nodes of two formats do not connect with each other, and none reads a log of another.
const Format = 2

const (
	// mostOps and mostBytes bound an entry, but for a batch that alone is larger: so much
	// is decided in about a millisecond, and a follower that lags is sent some megabytes
	// at once at most.
	mostOps   = 512
	mostBytes = 256 << 10
)

// entry is an entry of the log: what is to be done at one instant.
type entry struct {
	Version int     `cbor:"1,keyasint"`
	Term    uint64  `cbor:"2,keyasint"` // in which it was made; in another one nothing of it counts
	Now     int64   `cbor:"3,keyasint"`
	Batches []batch `cbor:"4,keyasint,omitempty"`
	Wall    int64   `cbor:"5,keyasint,omitempty"` // the leader's wall clock: see wallStep
}

// batch is what a gateway asks for, in order.
type batch struct {
	Gateway    string            `cbor:"1,keyasint"`
	Number     uint64            `cbor:"2,keyasint,omitempty"` // of this gateway's batches
	MaxHolders int               `cbor:"3,keyasint,omitempty"`
	StepLimit  int               `cbor:"4,keyasint,omitempty"`
	Ops        []cbor.RawMessage `cbor:"5,keyasint,omitempty"`
}

func (b *batch) guard() fencing.Guard {
	return fencing.Guard{Gateway: fencing.Gateway(b.Gateway), MaxHolders: b.MaxHolders, StepLimit: b.StepLimit}
}

func (b *batch) size() (size int) {
	for _, op := range b.Ops {
		size += len(op)
	}
	return size
}

func (e *entry) encode() ([]byte, error) {
	e.Version = Format
	return encoding.Marshal(e)
}

func decodeEntry(b []byte) (*entry, error) {
	var e entry
	if err := strict.Unmarshal(b, &e); err != nil {
		return nil, fmt.Errorf("it can't be read by this version: %w", err)
	}
	if e.Version != Format {
		return nil, fmt.Errorf("it has version %d; this version reads version %d", e.Version, Format)
	}
	return &e, nil
}
