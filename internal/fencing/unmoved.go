package fencing

import "maps"

// Unmoved answers an admission that changes nothing, as of a token that was admitted before or is refused. known is false where
// it may change something: then Step is to answer. No sign of life of the gateway is noted.
func Unmoved(s *State, now Instant, guard Guard, op AdmitRequest) (out Outcome, known bool) {
	r := s.Records[op.Name]
	if r == nil || guard.skewed(now) || r.Doubtful() || s.Due(op.Name) <= now {
		return out, false
	}
	is := *r
	is.SlotMarks = maps.Clone(r.SlotMarks)
	t := step{State: s, now: now, guard: guard, name: op.Name, record: &is}
	t.out.Now = now
	t.out.Err = t.admit(op)
	return t.out, is.Mark == r.Mark && is.HighestAdmitted == r.HighestAdmitted && maps.Equal(is.SlotMarks, r.SlotMarks)
}
