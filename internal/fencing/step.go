package fencing

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Step decides an operation: it is the specification of a lock. It depends on
// its arguments alone, and changes s in place (Clone gives a copy to keep). A
// refused operation leaves nothing behind but what time has brought about by
// itself: ended leases, dropped places, and the hand-offs that follow from them.
// The library in internal/redis is its twin.
//
// While the clocks differ nothing is judged by the time and nothing is handed on.
func Step(s *State, now Instant, guard Guard, op Op) Outcome {
	t := step{State: s, now: now, guard: guard, skewed: guard.skewed(now), name: op.LockName()}
	t.out.Now = now
	t.record = s.Records[t.name]
	t.left = cmp.Or(guard.StepLimit, StepLimit)
	if _, attends := op.(ExpireRequest); t.record != nil && t.record.RetryAt == AtOnce && !attends {
		t.left = 0 // an Expire goes on with it: many other operations at once are not to do so as well
	}
	if OnlyLooks(op) {
		t.look(op)
		return t.out
	}
	t.settle()
	t.out.Err = t.decide(op)
	t.handOff()
	if t.record != nil && t.record.idle() && (t.record.LastToken == 0 || !t.skewed && t.record.forgotten(t.now)) { // somebody waited in quarantine, and left
		delete(t.Records, t.name)
	}
	if t.record != nil && t.record.idle() {
		t.record.RetryAt = 0
	}
	t.out.More = t.record != nil && t.record.RetryAt == AtOnce && !t.skewed
	return t.out
}

// look answers an operation that OnlyLooks.
func (t *step) look(op Op) {
	if t.record != nil && t.record.Doubtful() && !t.skewed {
		t.putRight()
	}
	switch op := op.(type) {
	case InspectRequest:
		t.history(true, cmp.Or(op.Holders, MaxHoldersShown))
	case HistoryRequest:
		t.history(false, cmp.Or(op.Holders, MaxHoldersShown))
	case JudgeRequest:
		t.judge(op)
	default:
		panic(fmt.Sprintf("fencing: no look for %T", op))
	}
}

// decide applies the rule of an operation that may change something.
func (t *step) decide(op Op) *Error {
	switch op := op.(type) {
	case AcquireRequest:
		return t.acquire(op)
	case RenewRequest:
		return t.renew(op)
	case ReleaseRequest:
		return t.release(op)
	case ConfirmRequest:
		return t.confirm(op)
	case LeaveRequest:
		return t.leave(op)
	case TakeBackRequest:
		return t.takeBack(op)
	case BreakRequest:
		return t.break_(op)
	case EvictRequest:
		return t.evict(op)
	case ClaimRequest:
		return t.claim(op)
	case AdmitRequest:
		return t.admit(op)
	case ExpireRequest:
		return nil // settle did it
	}
	panic(fmt.Sprintf("fencing: no rule for %T", op))
}

// step is the operation under way.
type step struct {
	*State
	now    Instant
	guard  Guard
	skewed bool
	name   Name
	record *Record // nil if nothing is remembered of the name
	left   int     // of the step's limit
	more   bool    // something is due that is beyond the limit
	doubt  bool    // the step has set a time while the clocks differ: see clocks.go
	out    Outcome
}

func (t *step) renew(op RenewRequest) *Error {
	h, err := t.kept(op.Lease)
	if err != nil {
		return err
	}
	if op.Stamp != "" && !h.hangsOn(op.Stamp, op.Epoch) {
		return ReplacedError()
	}
	if err := t.unsure(h); err != nil {
		return err
	}
	if err := h.checkChange(op.Mode, op.Limit, op.Permits); err != nil {
		return err
	}
	if h.Provisional { // its holder knows: a retry was answered
		t.firm(h)
	}
	ttl := op.TTL
	if ttl == 0 {
		ttl = h.GrantTTL
	}
	e := t.endAfter(h, ttl)
	if e.sure <= 0 { // only when skewed, as in unsure
		return t.clockSkew()
	}
	t.out.Margin = h.ExpiresAt.Sub(t.now)
	t.prolong(h, ttl, e)
	h.Told = true
	if op.Stamp != "" {
		t.remind(h, op)
	}
	if op.Mode == ModeShared && h.Mode == ModeExclusive {
		h.Mode, h.Limit = ModeShared, op.Limit
		h.Slot, h.Slots = t.slots(ModeShared, op.Limit, 1)
	} else if op.Limit > 0 {
		h.Limit = op.Limit
	}
	if op.Permits > 0 && op.Permits < h.Permits {
		h.keep(op.Permits)
	}
	h.label(op.Owner, op.Metadata)
	t.record.Holders.Put(*h)
	t.tell(h, e.sure)
	return nil
}

// hangsOn reports whether a lease hangs on a stream that was told of so many takeovers: also where it
// was told of more than the store knows of, which has forgotten then that it does. One that its holder
// has left hangs on none.
func (h *Holding) hangsOn(stamp Stamp, epoch int64) bool {
	return !h.Left() && (stamp == h.Attached || epoch > h.Epoch)
}

// remind has a lease hang on the stream that renews it, also if the store has forgotten that it
// does; then nobody may take the grant back any more, as in again.
func (t *step) remind(h *Holding, op RenewRequest) {
	if h.Attached != op.Stamp {
		if h.Stamp != op.Stamp {
			h.Stamp = ""
		}
		t.hang(h, op.Stamp, true)
	}
	h.Epoch = max(h.Epoch, op.Epoch) // also of what hangs on it, at a node of a quorum that has seen less than others
}

// unsure refuses what goes on with a lease while the clocks differ, if that has run out by the
// store's clock, for an expiry is not judged then, or is provisional, for its time would begin.
func (t *step) unsure(h *Holding) *Error {
	if t.skewed && (h.Provisional || !h.Live(t.now)) {
		return t.clockSkew()
	}
	return nil
}

// label sets what people are told of the lease: see RenewRequest.
func (h *Holding) label(owner string, metadata map[string]string) {
	h.Owner = cmp.Or(owner, h.Owner)
	if metadata != nil {
		h.Metadata = LabelsOf(metadata)
	}
}

// checkChange refuses a change of mode other than a downgrade, a limit for what has none or none
// for what has one, and permits that the lease would have to take, or a limit below those it keeps.
func (h *Holding) checkChange(mode Mode, limit, permits int) *Error {
	kept := cmp.Or(permits, h.Permits)
	switch {
	case mode == ModeExclusive && h.Mode == ModeShared:
		return UpgradeError()
	case h.Mode == ModeShared && (limit > 0 && h.Limit == 0 || limit == 0 && h.Limit > 0 && mode == ModeShared),
		h.Mode == ModeExclusive && limit > 0 && mode != ModeShared:
		return LimitError(limit, h.Limit)
	case permits > h.Permits:
		return PermitsError(permits, h.Permits)
	case limit > 0 && limit < kept:
		return LowLimitError(limit, kept)
	}
	return nil
}

func (t *step) release(op ReleaseRequest) *Error {
	h, err := t.own(op.Lease)
	if err != nil {
		if err.Reason == ReasonReleased {
			return nil // a retry
		}
		return err
	}
	if op.Stamp != "" && !h.hangsOn(op.Stamp, op.Epoch) {
		return nil // a newer request has the lease
	}
	if op.Hold > 1 && h.Left() {
		return nil // as of a lease that was released
	}
	return t.letGo(h, op)
}

// letGo ends a lease, unwinds its hold or leaves it to linger. One that its holder has left is not to end
// later, whoever repeats that when.
func (t *step) letGo(h *Holding, op ReleaseRequest) *Error {
	if op.Hold < 2 && op.Linger == 0 {
		t.end(h, ReasonReleased, t.now, "")
		return nil
	}
	if err := t.unsure(h); err != nil {
		return err
	}
	if h.Provisional {
		t.firm(h)
	}
	e, lingers := end{sure: t.sure(h)}, false
	if op.Linger > 0 {
		after := t.endAfter(h, op.Linger)
		if lingers = !h.Left() || after.at < h.ExpiresAt; lingers {
			e = after
		}
	}
	if e.sure <= 0 { // as in renew
		return t.clockSkew()
	}
	if lingers {
		t.linger(h, op, e)
	} else if op.Hold > 1 {
		h.Hold = min(h.Hold, op.Hold-1)
	}
	h.Told = true
	t.record.Holders.Put(*h)
	t.tell(h, e.sure)
	return nil
}

// linger has a lease live on for so long without the stream that it was attached to. A renewal
// that was under way when that closed is not to come behind its end, whatever the stream was told of.
// Where it is the holder that asks for this, it has left.
func (t *step) linger(h *Holding, op ReleaseRequest, e end) {
	if op.Stamp == "" && t.Rules >= 2 {
		h.Hold = 0
	}
	h.Attached = ""
	h.Epoch = max(h.Epoch, op.Epoch) + 1
	t.prolong(h, op.Linger, e)
}

func (t *step) confirm(op ConfirmRequest) *Error {
	h, err := t.kept(op.Lease)
	switch {
	case err != nil:
		return err
	case h.Stamp != op.Stamp:
		return ReplacedError()
	case t.skewed:
		return t.clockSkew()
	case h.Provisional: // the lost writes may include a take-back, after which another was granted
		if err := t.quarantined(); err != nil {
			return err
		}
		t.firm(h)
		t.record.Holders.Put(*h)
	}
	t.out.Holder, t.out.Fresh = h.Holder, !h.Told
	return nil
}

func (t *step) history(waiters bool, holders int) {
	t.out.Lock = t.State.view(t.name, t.now, t.guard, waiters, holders)
	if t.record == nil || t.record.forgotten(t.now) {
		return
	}
	for _, h := range t.record.Holders.expired(t.now, MaxHistory) { // and nobody has noticed yet
		reason, breakReason := h.outOfTime()
		t.out.Past = append(t.out.Past, Ended{Name: t.name, Holder: h.Holder, Reason: reason, At: h.ExpiresAt, BreakReason: breakReason})
	}
	for _, ended := range slices.Backward(t.record.History) {
		t.out.Past = append(t.out.Past, ended)
	}
	if len(t.out.Past) > MaxHistory {
		t.out.Past = t.out.Past[:MaxHistory]
	}
}

func (t *step) view() *Lock { return t.View(t.name, t.now, t.guard, false) }

func (t *step) locked(code Code) *Error {
	return LockedError(code, t.view())
}

func (t *step) clockSkew() *Error {
	return SkewError(t.guard, t.now)
}

// SkewError says by how much the clocks differ: positive when the store is
// ahead of the gateway (or the operation was late), negative when it is behind.
func SkewError(g Guard, now Instant) *Error {
	return &Error{Code: CodeClockSkew, Detail: fmt.Sprintf(
		"the store's clock differs from the gateway's by %s; %s is allowed",
		now.Sub(g.Sent).Round(time.Millisecond), g.MaxSkew)}
}
