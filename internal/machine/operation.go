package machine

import (
	"fmt"
	"time"

	"github.com/fxamacker/cbor/v2"

	"fencepost/internal/fencing"
)

// kind says what an operation of the log is. Numbers are never used again for something
// else: logs are read by later versions.
type kind int

const (
	kindAcquire kind = iota + 1
	kindRenew
	kindRelease
	kindConfirm
	kindLeave
	kindTakeBack
	kindBreak
	kindClaim
	kindAdmit
	kindJudge
	kindInspect
	kindHistory
	kindExpire
	kindBeat  // a sign of life of the gateway
	kindTick  // nothing but that the time is written down
	kindPrune // tombstones that are due go
	kindEvict
	kindRestart // of a gateway that is the only one: see Machine.Restart
	kindLoss    // see Machine.Lose
	kindArrive  // see fencing.Arrive
)

// operation is an operation as it is in the log, and sent between nodes: a request with
// the hash of its secret in the place of that. Durations are in nanoseconds.
type operation struct {
	Kind        kind              `cbor:"1,keyasint"`
	Name        string            `cbor:"2,keyasint,omitempty"`
	Lease       string            `cbor:"3,keyasint,omitempty"` // the public part; of an eviction the waiter's
	Secret      []byte            `cbor:"4,keyasint,omitempty"` // of a request with a lease
	Stamp       string            `cbor:"5,keyasint,omitempty"`
	Owner       string            `cbor:"6,keyasint,omitempty"`
	Metadata    map[string]string `cbor:"7,keyasint,omitempty"`
	Mode        string            `cbor:"8,keyasint,omitempty"`
	Limit       int               `cbor:"9,keyasint,omitempty"`
	Hold        int               `cbor:"10,keyasint,omitempty"`
	TTL         int64             `cbor:"11,keyasint,omitempty"`
	MaxHold     int64             `cbor:"12,keyasint,omitempty"`
	Wait        int64             `cbor:"13,keyasint,omitempty"`
	Keep        bool              `cbor:"14,keyasint,omitempty"`
	Again       bool              `cbor:"15,keyasint,omitempty"`
	Attach      bool              `cbor:"16,keyasint,omitempty"`
	MaxWaiters  int               `cbor:"17,keyasint,omitempty"`
	Set         string            `cbor:"18,keyasint,omitempty"`
	Behind      bool              `cbor:"19,keyasint,omitempty"`
	Intent      int64             `cbor:"20,keyasint,omitempty"`
	Token       int64             `cbor:"21,keyasint,omitempty"` // of an acquire: Propose
	Refused     bool              `cbor:"22,keyasint,omitempty"`
	Unknown     bool              `cbor:"23,keyasint,omitempty"`
	BreakReason string            `cbor:"24,keyasint,omitempty"`
	Slot        int               `cbor:"25,keyasint,omitempty"`
	Claimed     bool              `cbor:"26,keyasint,omitempty"`
	Holders     int               `cbor:"27,keyasint,omitempty"`
	Notice      int64             `cbor:"28,keyasint,omitempty"`
	Permits     int               `cbor:"29,keyasint,omitempty"`
	NoMetadata  bool              `cbor:"30,keyasint,omitempty"` // of a renewal: Metadata is there, and has no entries
	LockDelay   int64             `cbor:"31,keyasint,omitempty"`
	Epoch       int64             `cbor:"32,keyasint,omitempty"`
	Left        bool              `cbor:"33,keyasint,omitempty"`
	AtRestart   bool              `cbor:"34,keyasint,omitempty"` // of a loss
}

// Encoding sorts the keys of maps, so that equal values are equal bytes. Strict refuses
// what it does not know: to leave out a part of an operation would set who reads it apart from
// the others. Lenient is for what nodes ask each other and answer, in which a later version may say more.
var (
	Encoding = must(cbor.EncOptions{Sort: cbor.SortBytewiseLexical}.UserBufferEncMode())
	Strict   = must(cbor.DecOptions{
		DupMapKey: cbor.DupMapKeyEnforcedAPF, ExtraReturnErrors: cbor.ExtraDecErrorUnknownField,
		MaxArrayElements: mostElements, MaxMapPairs: mostElements,
	}.DecMode())
	Lenient = must(cbor.DecOptions{MaxArrayElements: mostElements, MaxMapPairs: mostElements}.DecMode())
)

// mostElements is more than a list or map of anything encoded has.
const mostElements = 1 << 30

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (o *operation) lease(id fencing.LeaseID) {
	o.Lease = string(id.Public())
	if !id.IsZero() {
		hash := id.Hash()
		o.Secret = hash[:]
	}
}

// leaseID returns the lease id that was given to lease, with the hash of its secret.
func (o *operation) leaseID() fencing.LeaseID {
	if o.Lease == "" {
		return fencing.LeaseID{}
	}
	var hash fencing.SecretHash
	copy(hash[:], o.Secret)
	return fencing.HashedLeaseID(fencing.LeasePublic(o.Lease), hash)
}

// operationOf returns an operation as it is encoded.
func operationOf(op fencing.Op) operation {
	o := operation{Name: string(op.LockName())}
	o.lease(op.LockLease())
	switch r := op.(type) {
	case fencing.AcquireRequest:
		o.Kind, o.Stamp, o.Owner, o.Metadata, o.Mode, o.Limit, o.Hold = kindAcquire, string(r.Stamp), r.Owner, r.Metadata, string(r.Mode), r.Limit, r.Hold
		o.TTL, o.MaxHold, o.Wait, o.Intent = int64(r.TTL), int64(r.MaxHold), int64(r.Wait), int64(r.Intent)
		o.Keep, o.Again, o.Attach, o.Behind = r.Keep, r.Again, r.Attach, r.Behind
		o.MaxWaiters, o.Set, o.Token, o.Permits, o.LockDelay, o.Claimed = r.MaxWaiters, r.Set, int64(r.Propose), r.Permits, int64(r.LockDelay), r.Claimed
		o.Epoch = r.Epoch
	case fencing.RenewRequest:
		o.Kind, o.TTL, o.Mode, o.Limit, o.Permits, o.Stamp = kindRenew, int64(r.TTL), string(r.Mode), r.Limit, r.Permits, string(r.Stamp)
		o.Owner, o.Metadata, o.NoMetadata = r.Owner, r.Metadata, r.Metadata != nil && len(r.Metadata) == 0
		o.Epoch = r.Epoch
	case fencing.ReleaseRequest:
		o.Kind, o.Hold, o.Stamp, o.TTL = kindRelease, r.Hold, string(r.Stamp), int64(r.Linger)
		o.Epoch = r.Epoch
	case fencing.ConfirmRequest:
		o.Kind, o.Stamp = kindConfirm, string(r.Stamp)
	case fencing.LeaveRequest:
		o.Kind, o.Stamp = kindLeave, string(r.Stamp)
	case fencing.TakeBackRequest:
		o.Kind, o.Stamp, o.Refused, o.Unknown, o.Left, o.TTL = kindTakeBack, string(r.Stamp), r.Refused, r.Unknown, r.Left, int64(r.Linger)
		o.Epoch = r.Epoch
	case fencing.BreakRequest:
		o.Kind, o.Token, o.BreakReason, o.Notice = kindBreak, int64(r.Token), r.BreakReason, int64(r.Notice)
	case fencing.EvictRequest:
		o.Kind, o.Lease, o.BreakReason = kindEvict, string(r.Waiter), r.BreakReason
	case fencing.ClaimRequest:
		o.Kind, o.Token = kindClaim, int64(r.Token)
	case fencing.AdmitRequest:
		o.Kind, o.Token, o.Slot, o.Claimed = kindAdmit, int64(r.Token), r.Slot, r.Claimed
	case fencing.JudgeRequest:
		o.Kind, o.Token, o.Claimed = kindJudge, int64(r.Token), r.Claimed
	case fencing.InspectRequest:
		o.Kind, o.Holders = kindInspect, r.Holders
	case fencing.HistoryRequest:
		o.Kind, o.Holders = kindHistory, r.Holders
	case fencing.ExpireRequest:
		o.Kind = kindExpire
	default:
		panic(fmt.Sprintf("machine: no encoding for %T", op))
	}
	return o
}

// ofStep reports whether an operation is one of fencing's.
func (k kind) ofStep() bool {
	return k < kindBeat || k > kindPrune && k != kindRestart && k != kindLoss && k != kindArrive
}

// op returns what operationOf was given, but for the secret; an error is of a kind that
// this version does not know, or that is none of fencing's.
func (o *operation) op() (fencing.Op, error) {
	name, lease, stamp, token := fencing.Name(o.Name), o.leaseID(), fencing.Stamp(o.Stamp), fencing.Token(o.Token)
	switch o.Kind {
	case kindAcquire:
		return fencing.AcquireRequest{
			Name: name, Lease: lease, Stamp: stamp, Owner: o.Owner, Metadata: o.Metadata, Mode: fencing.Mode(o.Mode), Limit: o.Limit, Hold: o.Hold,
			TTL: time.Duration(o.TTL), MaxHold: time.Duration(o.MaxHold), Wait: time.Duration(o.Wait), Intent: time.Duration(o.Intent),
			Keep: o.Keep, Again: o.Again, Attach: o.Attach, Behind: o.Behind, MaxWaiters: o.MaxWaiters, Set: o.Set, Propose: token, Permits: o.Permits,
			LockDelay: time.Duration(o.LockDelay), Claimed: o.Claimed, Epoch: o.Epoch,
		}, nil
	case kindRenew:
		if o.NoMetadata {
			o.Metadata = map[string]string{}
		}
		return fencing.RenewRequest{
			Name: name, Lease: lease, TTL: time.Duration(o.TTL), Mode: fencing.Mode(o.Mode), Limit: o.Limit, Permits: o.Permits, Stamp: stamp,
			Owner: o.Owner, Metadata: o.Metadata, Epoch: o.Epoch,
		}, nil
	case kindRelease:
		return fencing.ReleaseRequest{Name: name, Lease: lease, Hold: o.Hold, Stamp: stamp, Linger: time.Duration(o.TTL), Epoch: o.Epoch}, nil
	case kindConfirm:
		return fencing.ConfirmRequest{Name: name, Lease: lease, Stamp: stamp}, nil
	case kindLeave:
		return fencing.LeaveRequest{Name: name, Lease: lease, Stamp: stamp}, nil
	case kindTakeBack:
		return fencing.TakeBackRequest{Name: name, Lease: lease, Stamp: stamp, Refused: o.Refused, Unknown: o.Unknown, Left: o.Left, Linger: time.Duration(o.TTL), Epoch: o.Epoch}, nil
	case kindBreak:
		return fencing.BreakRequest{Name: name, Token: token, BreakReason: o.BreakReason, Notice: time.Duration(o.Notice)}, nil
	case kindEvict:
		return fencing.EvictRequest{Name: name, Waiter: fencing.LeasePublic(o.Lease), BreakReason: o.BreakReason}, nil
	case kindClaim:
		return fencing.ClaimRequest{Name: name, Lease: lease, Token: token}, nil
	case kindAdmit:
		return fencing.AdmitRequest{Name: name, Token: token, Slot: o.Slot, Claimed: o.Claimed}, nil
	case kindJudge:
		return fencing.JudgeRequest{Name: name, Token: token, Claimed: o.Claimed}, nil
	case kindInspect:
		return fencing.InspectRequest{Name: name, Holders: o.Holders}, nil
	case kindHistory:
		return fencing.HistoryRequest{Name: name, Holders: o.Holders}, nil
	case kindExpire:
		return fencing.ExpireRequest{Name: name}, nil
	}
	return nil, fmt.Errorf("an operation is of kind %d, which this version does not know", o.Kind)
}

// EncodeOp returns an operation as bytes.
func EncodeOp(op fencing.Op) cbor.RawMessage {
	return must(Encoding.Marshal(operationOf(op)))
}

// DecodeOp returns what EncodeOp was given, but for the secret. It fails where this version does not know all of it, or it
// is none of fencing's.
func DecodeOp(b cbor.RawMessage) (fencing.Op, error) {
	o, err := decodeOperation(b)
	if err != nil {
		return nil, err
	}
	return o.op()
}

// Readable returns why an operation of a log can't be read, nil if it can.
func Readable(b cbor.RawMessage) error {
	o, err := decodeOperation(b)
	if err == nil && o.Kind.ofStep() {
		_, err = o.op()
	}
	return err
}

// Beat, Tick, Prune and Restart return an operation that is none of fencing's: a sign of life of the batch's gateway, nothing
// but that the time is written down, that tombstones which are due go, and a restart of a gateway that is the only one.
func Beat() cbor.RawMessage    { return plain(kindBeat) }
func Tick() cbor.RawMessage    { return plain(kindTick) }
func Prune() cbor.RawMessage   { return plain(kindPrune) }
func Restart() cbor.RawMessage { return plain(kindRestart) }

// Loss returns the operation of Machine.Lose, whose quarantine begins again at the next Restart.
func Loss(longest time.Duration) cbor.RawMessage {
	return must(Encoding.Marshal(operation{Kind: kindLoss, TTL: int64(longest), AtRestart: true}))
}

// Arrive returns the operation that fencing.Arrive carries out: a gateway has found who serves.
func Arrive(a fencing.Arrival) cbor.RawMessage {
	return must(Encoding.Marshal(operation{
		Kind: kindArrive, Owner: a.Server, TTL: int64(a.Longest), Intent: int64(a.Until), Wait: int64(a.Least), MaxHold: int64(a.Most),
		Token: int64(a.Floor), Keep: a.Lossless, Again: a.Lost, Behind: a.Late,
	}))
}

// arrival returns what Arrive was given.
func (o *operation) arrival() fencing.Arrival {
	return fencing.Arrival{
		Server: o.Owner, Longest: time.Duration(o.TTL), Until: fencing.Instant(o.Intent), Least: time.Duration(o.Wait), Most: time.Duration(o.MaxHold),
		Floor: fencing.Token(o.Token), Lossless: o.Keep, Lost: o.Again, Late: o.Behind,
	}
}

// plain returns an operation of a kind that is none of fencing's.
func plain(k kind) cbor.RawMessage { return must(Encoding.Marshal(operation{Kind: k})) }

func decodeOperation(b []byte) (operation, error) {
	var o operation
	err := Strict.Unmarshal(b, &o)
	return o, err
}
