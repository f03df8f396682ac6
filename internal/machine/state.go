package machine

import (
	"time"

	"fencepost/internal/fencing"
)

// What follows is a fencing.State as it stands in a snapshot: all of it, for who reads it goes on
// from there. Durations are in nanoseconds, instants in microseconds.

// stateHead is all but records and tombstones.
type stateHead struct {
	Version    int              `cbor:"1,keyasint"`
	Now        int64            `cbor:"2,keyasint"`
	Applied    uint64           `cbor:"3,keyasint"` // the index of the last entry in it
	Counter    int64            `cbor:"4,keyasint"`
	Seen       map[string]int64 `cbor:"5,keyasint,omitempty"`
	Heard      int64            `cbor:"6,keyasint,omitempty"`
	Stopped    int64            `cbor:"7,keyasint,omitempty"`
	Serving    int64            `cbor:"8,keyasint,omitempty"`
	Quarantine stateQuarantine  `cbor:"9,keyasint"`
	Digest     uint64           `cbor:"10,keyasint"` // see digest
	Wall       WallSteps        `cbor:"11,keyasint,omitempty"`
	Writer     string           `cbor:"12,keyasint,omitempty"` // see Entry.Writer
	Behind     uint64           `cbor:"13,keyasint,omitempty"` // the entry before the last one,
	Before     uint64           `cbor:"14,keyasint,omitempty"` // and the digest after it: by it a log is known that the snapshot goes with
	Resting    map[string]int64 `cbor:"15,keyasint,omitempty"` // until when nothing is changed on a name: see Refused
	Rules      int              `cbor:"16,keyasint,omitempty"` // in force; 0: version 1
	Last       uint64           `cbor:"17,keyasint,omitempty"` // the entry that Digest is of; 0: Applied, or it is not known
}

type stateQuarantine struct {
	Until  int64  `cbor:"1,keyasint,omitempty"`
	Period int64  `cbor:"2,keyasint,omitempty"`
	TTL    int64  `cbor:"3,keyasint,omitempty"`
	Before int64  `cbor:"4,keyasint,omitempty"`
	Server string `cbor:"5,keyasint,omitempty"`
	Again  int64  `cbor:"6,keyasint,omitempty"`
}

type stateRecord struct {
	Name            string         `cbor:"1,keyasint"`
	LastToken       int64          `cbor:"2,keyasint,omitempty"`
	EndedToken      int64          `cbor:"3,keyasint,omitempty"`
	IntentLease     string         `cbor:"4,keyasint,omitempty"`
	IntentUntil     int64          `cbor:"5,keyasint,omitempty"`
	LastClaimed     int64          `cbor:"6,keyasint,omitempty"`
	Mark            int64          `cbor:"7,keyasint,omitempty"`
	SlotMarks       map[int]int64  `cbor:"8,keyasint,omitempty"`
	HighestAdmitted int64          `cbor:"9,keyasint,omitempty"`
	RetryAt         int64          `cbor:"10,keyasint,omitempty"`
	Broken          []int64        `cbor:"11,keyasint,omitempty"`
	ForgetAt        int64          `cbor:"12,keyasint,omitempty"`
	Holders         []stateHolding `cbor:"13,keyasint,omitempty"`
	History         []stateEnded   `cbor:"14,keyasint,omitempty"`
	Waiting         []statePlace   `cbor:"15,keyasint,omitempty"`
	Resting         []statePlace   `cbor:"16,keyasint,omitempty"`
	LastSeq         int64          `cbor:"17,keyasint,omitempty"`
	DelayedUntil    int64          `cbor:"18,keyasint,omitempty"`
	DelaySetAt      int64          `cbor:"19,keyasint,omitempty"`
	DelaySentAt     int64          `cbor:"20,keyasint,omitempty"`
	DelayedOther    int64          `cbor:"21,keyasint,omitempty"`
}

type stateHolder struct {
	Lease       string         `cbor:"1,keyasint"`
	Owner       string         `cbor:"2,keyasint,omitempty"`
	Metadata    fencing.Labels `cbor:"3,keyasint,omitzero"`
	Mode        string         `cbor:"4,keyasint,omitempty"`
	Limit       int            `cbor:"5,keyasint,omitempty"`
	Slot        int            `cbor:"6,keyasint,omitempty"`
	Hold        int            `cbor:"7,keyasint,omitempty"`
	Token       int64          `cbor:"8,keyasint,omitempty"`
	TTL         int64          `cbor:"9,keyasint,omitempty"`
	GrantTTL    int64          `cbor:"10,keyasint,omitempty"`
	MaxHold     int64          `cbor:"11,keyasint,omitempty"`
	AcquiredAt  int64          `cbor:"12,keyasint,omitempty"`
	ExpiresAt   int64          `cbor:"13,keyasint,omitempty"`
	Waited      int64          `cbor:"14,keyasint,omitempty"`
	Provisional bool           `cbor:"15,keyasint,omitempty"`
	Claimed     bool           `cbor:"16,keyasint,omitempty"`
	Attached    string         `cbor:"17,keyasint,omitempty"`
	BreakAt     int64          `cbor:"18,keyasint,omitempty"`
	BreakReason string         `cbor:"19,keyasint,omitempty"`
	MorePermits int            `cbor:"20,keyasint,omitempty"` // than one
	Slots       string         `cbor:"21,keyasint,omitempty"`
	LockDelay   int64          `cbor:"22,keyasint,omitempty"`
	Epoch       int64          `cbor:"23,keyasint,omitempty"`
}

type stateHolding struct {
	Holder   stateHolder        `cbor:"1,keyasint"`
	Secret   fencing.SecretHash `cbor:"2,keyasint"`
	Stamp    string             `cbor:"3,keyasint,omitempty"`
	Told     bool               `cbor:"4,keyasint,omitempty"`
	Gateway  string             `cbor:"5,keyasint,omitempty"`
	Set      string             `cbor:"6,keyasint,omitempty"`
	Keep     bool               `cbor:"7,keyasint,omitempty"`
	Seq      int64              `cbor:"8,keyasint,omitempty"`
	JoinedAt int64              `cbor:"9,keyasint,omitempty"`
	SetAt    int64              `cbor:"10,keyasint,omitempty"`
	SentAt   int64              `cbor:"11,keyasint,omitempty"`
}

// stateEnded is an entry of a history. Its metadata is left out: nobody is shown that.
type stateEnded struct {
	Holder      stateHolder `cbor:"1,keyasint"`
	Reason      string      `cbor:"2,keyasint"`
	At          int64       `cbor:"3,keyasint"`
	BreakReason string      `cbor:"4,keyasint,omitempty"`
}

type statePlace struct {
	Ask      operation `cbor:"1,keyasint"`
	Secret   []byte    `cbor:"2,keyasint"`
	Stamp    string    `cbor:"3,keyasint,omitempty"`
	Gateway  string    `cbor:"4,keyasint,omitempty"`
	Seq      int64     `cbor:"5,keyasint,omitempty"`
	JoinedAt int64     `cbor:"6,keyasint,omitempty"`
	RestTill int64     `cbor:"7,keyasint,omitempty"`
	SetAt    int64     `cbor:"8,keyasint,omitempty"`
	SentAt   int64     `cbor:"9,keyasint,omitempty"`
}

type stateTombstone struct {
	Name        string `cbor:"1,keyasint"`
	Lease       string `cbor:"2,keyasint"`
	Secret      []byte `cbor:"3,keyasint"`
	Token       int64  `cbor:"4,keyasint,omitempty"`
	Reason      string `cbor:"5,keyasint,omitempty"`
	At          int64  `cbor:"6,keyasint,omitempty"`
	Until       int64  `cbor:"7,keyasint,omitempty"`
	BreakReason string `cbor:"8,keyasint,omitempty"`
}

func headOf(s *fencing.State, now fencing.Instant, applied uint64) stateHead {
	g, q := &s.Gateways, &s.Quarantine
	h := stateHead{
		Version: Format, Now: int64(now), Applied: applied, Counter: int64(s.Counter),
		Seen: make(map[string]int64, len(g.Seen)), Heard: int64(g.Heard), Stopped: int64(g.Stopped), Serving: int64(g.Serving),
		Quarantine: stateQuarantine{Until: int64(q.Until), Period: int64(q.Period), TTL: int64(q.TTL), Before: int64(q.Before), Server: q.Server, Again: int64(q.Again)},
	}
	for gateway, seen := range g.Seen {
		h.Seen[string(gateway)] = int64(seen)
	}
	if s.Rules > 1 {
		h.Version, h.Rules = headWithRules, s.Rules
	}
	return h
}

// headWithRules is the version of a head that has Rules: what does not know of them is not to pass over them.
const headWithRules = 100 + Format

func (h *stateHead) now() fencing.Instant { return fencing.Instant(h.Now) }

// state returns a state without records and tombstones.
func (h *stateHead) state() *fencing.State {
	s := fencing.NewState()
	s.Counter, s.Rules = fencing.Token(h.Counter), max(1, h.Rules)
	g, q := &s.Gateways, &h.Quarantine
	g.Heard, g.Stopped, g.Serving = fencing.Instant(h.Heard), fencing.Instant(h.Stopped), fencing.Instant(h.Serving)
	for gateway, seen := range h.Seen {
		g.Seen[fencing.Gateway(gateway)] = fencing.Instant(seen)
	}
	s.Quarantine = fencing.Quarantine{
		Until: fencing.Instant(q.Until), Period: fencing.Instant(q.Period),
		TTL: time.Duration(q.TTL), Before: time.Duration(q.Before), Server: q.Server, Again: time.Duration(q.Again),
	}
	return s
}

// reset makes a record that was used an empty one. What has room for holders stays.
func (s *stateRecord) reset() {
	holders := s.Holders[:cap(s.Holders)]
	clear(holders)
	*s = stateRecord{Holders: holders[:0]}
}

// set has an empty record be that of a name.
func (s *stateRecord) set(name fencing.Name, r *fencing.Record) {
	*s = stateRecord{
		Holders: s.Holders,
		Name:    string(name), LastToken: int64(r.LastToken), EndedToken: int64(r.EndedToken),
		IntentLease: string(r.Intent.Lease), IntentUntil: int64(r.Intent.Until), LastClaimed: int64(r.LastClaimed),
		Mark: int64(r.Mark), HighestAdmitted: int64(r.HighestAdmitted), RetryAt: int64(r.RetryAt), ForgetAt: int64(r.ForgetAt),
		LastSeq: int64(r.Queue.LastSeq()), DelayedUntil: int64(r.DelayedUntil),
		DelaySetAt: int64(r.DelaySetAt), DelaySentAt: int64(r.DelaySentAt), DelayedOther: int64(r.DelayedOther),
	}
	if len(r.SlotMarks) > 0 {
		s.SlotMarks = make(map[int]int64, len(r.SlotMarks))
		for slot, token := range r.SlotMarks {
			s.SlotMarks[slot] = int64(token)
		}
	}
	for _, token := range r.Broken {
		s.Broken = append(s.Broken, int64(token))
	}
	for h := range r.Holders.All() {
		s.Holders = append(s.Holders, holdingOf(&h))
	}
	for i := range r.History {
		s.History = append(s.History, endedOf(&r.History[i]))
	}
	for _, p := range r.Queue.Waiting() {
		s.Waiting = append(s.Waiting, placeOf(&p))
	}
	for _, p := range r.Queue.Resting() {
		s.Resting = append(s.Resting, placeOf(&p))
	}
}

func (s *stateRecord) record() (*fencing.Record, error) {
	r := &fencing.Record{
		LastToken: fencing.Token(s.LastToken), EndedToken: fencing.Token(s.EndedToken),
		Intent:      fencing.Intent{Lease: fencing.LeasePublic(s.IntentLease), Until: fencing.Instant(s.IntentUntil)},
		LastClaimed: fencing.Token(s.LastClaimed), Mark: fencing.Token(s.Mark), HighestAdmitted: fencing.Token(s.HighestAdmitted),
		RetryAt: fencing.Instant(s.RetryAt), ForgetAt: fencing.Instant(s.ForgetAt), DelayedUntil: fencing.Instant(s.DelayedUntil),
		DelaySetAt: fencing.Instant(s.DelaySetAt), DelaySentAt: fencing.Instant(s.DelaySentAt), DelayedOther: fencing.Instant(s.DelayedOther),
	}
	if len(s.SlotMarks) > 0 {
		r.SlotMarks = make(map[int]fencing.Token, len(s.SlotMarks))
		for slot, token := range s.SlotMarks {
			r.SlotMarks[slot] = fencing.Token(token)
		}
	}
	for _, token := range s.Broken {
		r.Broken = append(r.Broken, fencing.Token(token))
	}
	for i := range s.Holders {
		r.Holders.Put(s.Holders[i].holding())
	}
	for i := range s.History {
		r.History = append(r.History, s.History[i].ended(fencing.Name(s.Name)))
	}
	places := func(all []statePlace) ([]fencing.Place, error) {
		list := make([]fencing.Place, len(all))
		for i := range all {
			var err error
			if list[i], err = all[i].place(); err != nil {
				return nil, err
			}
		}
		return list, nil
	}
	waiting, err := places(s.Waiting)
	if err != nil {
		return nil, err
	}
	resting, err := places(s.Resting)
	if err != nil {
		return nil, err
	}
	r.Queue = fencing.RestoredQueue(waiting, resting, fencing.Instant(s.LastSeq))
	return r, nil
}

func holderOf(h *fencing.Holder) stateHolder {
	return stateHolder{
		Lease: string(h.Lease), Owner: h.Owner, Metadata: h.Metadata, Mode: string(h.Mode), Limit: h.Limit, Slot: h.Slot, Hold: h.Hold, Token: int64(h.Token),
		TTL: int64(h.TTL), GrantTTL: int64(h.GrantTTL), MaxHold: int64(h.MaxHold),
		AcquiredAt: int64(h.AcquiredAt), ExpiresAt: int64(h.ExpiresAt), Waited: int64(h.Waited), Provisional: h.Provisional, Claimed: h.Claimed,
		Attached: string(h.Attached), BreakAt: int64(h.BreakAt), BreakReason: h.BreakReason,
		MorePermits: h.Permits - 1, Slots: string(h.Slots), LockDelay: int64(h.LockDelay), Epoch: h.Epoch,
	}
}

func (s *stateHolder) holder() fencing.Holder {
	return fencing.Holder{
		Lease: fencing.LeasePublic(s.Lease), Owner: s.Owner, Metadata: s.Metadata, Mode: fencing.Mode(s.Mode),
		Limit: s.Limit, Slot: s.Slot, Hold: s.Hold, Token: fencing.Token(s.Token),
		TTL: time.Duration(s.TTL), GrantTTL: time.Duration(s.GrantTTL), MaxHold: time.Duration(s.MaxHold),
		AcquiredAt: fencing.Instant(s.AcquiredAt), ExpiresAt: fencing.Instant(s.ExpiresAt), Waited: time.Duration(s.Waited),
		Provisional: s.Provisional, Claimed: s.Claimed, Attached: fencing.Stamp(s.Attached),
		BreakAt: fencing.Instant(s.BreakAt), BreakReason: s.BreakReason, Permits: 1 + s.MorePermits, Slots: fencing.Slots(s.Slots),
		LockDelay: time.Duration(s.LockDelay), Epoch: s.Epoch,
	}
}

func holdingOf(h *fencing.Holding) stateHolding {
	return stateHolding{
		Holder: holderOf(&h.Holder), Secret: h.Secret, Stamp: string(h.Stamp), Told: h.Told, Gateway: string(h.Gateway), Set: h.Set,
		Keep: h.Keep, Seq: int64(h.Seq), JoinedAt: int64(h.JoinedAt), SetAt: int64(h.SetAt), SentAt: int64(h.SentAt),
	}
}

func (s *stateHolding) holding() fencing.Holding {
	return fencing.Holding{
		Holder: s.Holder.holder(), Secret: s.Secret, Stamp: fencing.Stamp(s.Stamp), Told: s.Told, Gateway: fencing.Gateway(s.Gateway), Set: s.Set,
		Keep: s.Keep, Seq: fencing.Instant(s.Seq), JoinedAt: fencing.Instant(s.JoinedAt),
		SetAt: fencing.Instant(s.SetAt), SentAt: fencing.Instant(s.SentAt),
	}
}

func endedOf(e *fencing.Ended) stateEnded {
	s := stateEnded{Holder: holderOf(&e.Holder), Reason: string(e.Reason), At: int64(e.At), BreakReason: e.BreakReason}
	s.Holder.Metadata = ""
	return s
}

func (s *stateEnded) ended(name fencing.Name) fencing.Ended {
	return fencing.Ended{
		Name: name, Holder: s.Holder.holder(), Reason: fencing.Reason(s.Reason), At: fencing.Instant(s.At), BreakReason: s.BreakReason,
	}
}

func placeOf(p *fencing.Place) statePlace {
	s := statePlace{
		Ask: operationOf(p.Ask), Secret: p.Secret[:], Stamp: string(p.Stamp), Gateway: string(p.Gateway),
		Seq: int64(p.Seq), JoinedAt: int64(p.JoinedAt), RestTill: int64(p.RestTill), SetAt: int64(p.SetAt), SentAt: int64(p.SentAt),
	}
	s.Ask.Secret = nil // Ask has the public part only
	return s
}

func (s *statePlace) place() (fencing.Place, error) {
	op, err := s.Ask.op()
	ask, _ := op.(fencing.AcquireRequest)
	p := fencing.Place{
		Ask: ask, Stamp: fencing.Stamp(s.Stamp), Gateway: fencing.Gateway(s.Gateway),
		Seq: fencing.Instant(s.Seq), JoinedAt: fencing.Instant(s.JoinedAt), RestTill: fencing.Instant(s.RestTill),
		SetAt: fencing.Instant(s.SetAt), SentAt: fencing.Instant(s.SentAt),
	}
	copy(p.Secret[:], s.Secret)
	return p, err
}

func tombstoneOf(key fencing.EndedLease, t fencing.Tombstone) stateTombstone {
	return stateTombstone{
		Name: string(key.Name), Lease: string(key.Lease), Secret: t.Secret[:], Token: int64(t.Token),
		Reason: string(t.Reason), At: int64(t.At), Until: int64(t.Until), BreakReason: t.BreakReason,
	}
}

func (s *stateTombstone) tombstone() (fencing.EndedLease, fencing.Tombstone) {
	t := fencing.Tombstone{
		Token: fencing.Token(s.Token), Reason: fencing.Reason(s.Reason),
		At: fencing.Instant(s.At), Until: fencing.Instant(s.Until), BreakReason: s.BreakReason,
	}
	copy(t.Secret[:], s.Secret)
	return fencing.EndedLease{Name: fencing.Name(s.Name), Lease: fencing.LeasePublic(s.Lease)}, t
}
