package http

import (
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/session"
)

// noticeSlack is how much sooner a lease has to be broken than was told for that to be another
// notice: a store of several clocks tells the end of one a little differently each time, and of
// none while those are silent that know of it.
const noticeSlack = time.Second

// givesNotice reports whether a lease has a notice that differs from what was told.
func givesNotice(is, told *fencing.Holder) bool {
	if is.BreakAt == 0 {
		return false
	}
	return told.BreakAt == 0 || is.BreakAt < told.BreakAt.Add(-noticeSlack) || is.BreakReason != told.BreakReason
}

// noticed tells that a lease is to be broken, unless that was told.
func (a *attachment) noticed(l *session.Lease) error {
	h := &l.Outcome.Holder
	if told := a.notices[l.Name]; !givesNotice(h, &told) {
		return nil
	}
	a.noteNotice(l)
	now := a.s.now()
	left, elapsed := l.Outcome.Remaining(now), now.Sub(a.start)
	return a.event("notice", "", func(b []byte) []byte {
		b = append(b, `{"name":`...)
		b = appendString(b, string(l.Name))
		b = appendStringMember(b, "lease", string(h.Lease))
		b = appendIntMember(b, "fencing_token", int64(h.Token))
		b = appendBreak(b, h, left, a.s.wall)
		b = appendIntMember(b, "elapsed_ms", elapsed.Milliseconds())
		return append(b, '}')
	})
}

// noteNotice notes that the client is told of the notice of a lease.
func (a *attachment) noteNotice(l *session.Lease) {
	if a.notices == nil {
		a.notices = map[fencing.Name]fencing.Holder{}
	}
	a.notices[l.Name] = l.Outcome.Holder
}
