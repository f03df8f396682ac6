package fencing

import "fmt"

// Fence is the fence of a name, as a step has found or left it.
type Fence struct {
	Verdict         Verdict // Judge: of the token that was asked about
	HighestIssued   Token   // 0 if nothing is known of the name
	HighestAdmitted Token   // the highest token that has moved a mark; 0 if none has
}

// VerdictOf returns the verdict on a token that no live lease has.
func (f *Fence) VerdictOf(token Token) Verdict {
	switch {
	case token > f.HighestIssued:
		return VerdictUnissued
	case token == f.HighestIssued:
		return VerdictEnded
	}
	return VerdictSuperseded
}

// admit lets a token pass, if none that was admitted before is above it, and moves the
// mark up to it. The token of a live lease that tolerates any number moves it no higher than
// to the lowest token that is held, for such holders have no order among each other. A token
// whose lease is over passes if its mark is there already, or nobody holds a lower one: it
// would keep that holder out, or pass without a mark. For the whole name, that it was admitted
// for a slot is no such mark.
func (t *step) admit(op AdmitRequest) *Error {
	known := t.record != nil && !t.record.forgotten(t.now)
	if t.skewed && !known { // by the right clock it might be remembered
		return t.clockSkew()
	}
	r := t.record
	if !known {
		r = &Record{}
	}
	t.out.Fence = r.fence(op.Claimed)
	mark, raised := r.mark(op.Slot), r.raised(op.Slot)
	if op.Token < mark {
		return NotAdmittedError(op.Token, t.out.Fence)
	}
	h, live := t.bearer(r, op.Token, op.Claimed)
	if live && op.Slot != NoSlot && !h.hasSlot(op.Slot) {
		return SlotError(op.Slot)
	}
	if !live || t.skewed {
		if err := t.quarantined(); err != nil { // a newer token may be among what was forgotten
			if live {
				err = t.clockSkew()
			}
			return err
		}
	}
	to := op.Token
	if r.Holders.Len() > 0 && (!live || tolerates(h.Mode, h.Limit) == AnyNumber) {
		to = min(to, r.Holders.First().Token)
	}
	if !live && (op.Token > t.out.Fence.HighestIssued || op.Token > raised && to < op.Token) {
		return NotAdmittedError(op.Token, t.out.Fence)
	}
	if to >= mark {
		r.raise(to, op.Slot)
		t.out.Fence.HighestAdmitted = r.HighestAdmitted
	}
	return nil
}

// bearer returns the holder that has a token, and whether it is live; of claimed tokens
// alone if only they count.
func (t *step) bearer(r *Record, token Token, claimed bool) (h Holding, live bool) {
	h, found := r.Holders.WithToken(token)
	return h, found && !t.due(&h) && (h.Claimed || !claimed)
}

// judge says what has become of a token. It is advice, and while the clocks differ as good
// as the store's.
func (t *step) judge(op JudgeRequest) {
	r := t.record
	if r == nil || r.forgotten(t.now) {
		r = &Record{}
	}
	t.out.Fence = r.fence(op.Claimed)
	f := t.out.Fence
	h, live := t.bearer(r, op.Token, op.Claimed)
	if f.Verdict = f.VerdictOf(op.Token); live && (h.Provisional && t.alive(h.Gateway) || !h.Provisional && h.Live(t.now)) {
		f.Verdict = VerdictLive
	}
}

// NotAdmittedError refuses a token at a fence, whose token it was or was not.
func NotAdmittedError(token Token, f *Fence) *Error {
	detail := "a higher token has been admitted, or its lease is over and somebody holds a lower one, or the name has been forgotten since"
	switch {
	case f.HighestIssued == 0:
		detail = "no token is known to have been issued for this name lately"
	case token > f.HighestIssued:
		detail = "it is above the highest token that was issued for this name"
	}
	return &Error{Code: CodeStaleToken, Detail: fmt.Sprintf("the token %d is not admitted: %s", token, detail), Fence: f}
}

// fence returns the fence of a record; where only claimed tokens count, these are what
// was issued.
func (r *Record) fence(claimed bool) *Fence {
	f := &Fence{HighestIssued: r.LastToken, HighestAdmitted: r.HighestAdmitted}
	if claimed {
		f.HighestIssued = r.LastClaimed
	}
	return f
}

// mark returns the lowest token that is not refused for those before it.
func (r *Record) mark(slot int) Token {
	if slot == NoSlot {
		return max(r.Mark, r.HighestAdmitted)
	}
	return r.raised(slot)
}

// raised returns up to where every token below is refused from now on, for a slot or for the
// whole name.
func (r *Record) raised(slot int) Token { return max(r.Mark, r.SlotMarks[slot]) }

// raise moves the mark of a slot, or that of the name, up to a token that is not below
// it. The marks of slots are of no use below that of the name.
func (r *Record) raise(token Token, slot int) {
	switch {
	case token == r.Mark && slot != NoSlot: // as good as a mark of the slot
	case slot == NoSlot:
		r.Mark, r.SlotMarks = token, nil
	default:
		if r.SlotMarks == nil {
			r.SlotMarks = map[int]Token{}
		}
		r.SlotMarks[slot] = token
	}
	r.HighestAdmitted = max(r.HighestAdmitted, token)
}

// issued notes the token of a grant. The first one that is remembered is the first that
// can be admitted: whatever was issued before the name was forgotten is lower.
func (r *Record) issued(h *Holding) {
	if r.LastToken == 0 {
		r.Mark = h.Token
	}
	r.LastToken = max(r.LastToken, h.Token)
	if h.Claimed { // where only claims count, this may be below what the node had issued
		r.LastClaimed = max(r.LastClaimed, h.Token)
		if r.HighestAdmitted == 0 {
			r.Mark = min(r.Mark, h.Token)
		}
	}
}
