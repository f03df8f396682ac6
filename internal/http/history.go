package http

import (
	"cmp"
	"net/http"
	"slices"

	"fencepost/internal/fencing"
)

// decodeHistory reads GET /history/{name}.
func decodeHistory(c *call) (fencing.HistoryRequest, error) {
	name, err := c.lockName()
	if err == nil {
		_, err = c.leaseID()
	}
	return fencing.HistoryRequest{Name: name}, err
}

func getHistory(c *call, req fencing.HistoryRequest) (*history, error) {
	out, err := c.s.dog.Do(c.r.Context(), req)
	if err != nil {
		return nil, err
	}
	h := &history{name: req.Name}
	for i := range out.Lock.Holders {
		h.grants = append(h.grants, pastGrant{Holder: &out.Lock.Holders[i], until: out.Lock.Now, outcome: "held"})
	}
	for i := range out.Past {
		past := &out.Past[i]
		h.grants = append(h.grants, pastGrant{Holder: &past.Holder, until: past.At, outcome: string(past.Reason), breakReason: past.BreakReason})
	}
	slices.SortFunc(h.grants, func(a, b pastGrant) int { return cmp.Compare(b.Token, a.Token) })
	return h, nil
}

// history answers GET /history/{name}: the newest grant first.
type history struct {
	name   fencing.Name
	grants []pastGrant
}

type pastGrant struct {
	*fencing.Holder
	until   fencing.Instant // when it ended, or now
	outcome string

	breakReason string
}

func (a *history) status() int           { return http.StatusOK }
func (a *history) setHeader(http.Header) {}

func (a *history) appendJSON(b []byte, wall wallClock) []byte {
	b = append(b, `{"name":`...)
	b = appendString(b, string(a.name))
	b = append(b, `,"grants":[`...)
	for i := range a.grants {
		g := &a.grants[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"lease":"`...)
		b = append(b, g.Lease...)
		b = append(b, '"')
		b = appendStringMember(b, "owner", g.Owner)
		b = appendStringMember(b, "mode", string(g.Mode))
		b = appendIntMember(b, "fencing_token", int64(g.Token))
		b = appendTimeMember(b, "acquired_at", wall(g.AcquiredAt))
		if g.outcome != "held" {
			b = appendTimeMember(b, "ended_at", wall(g.until))
		}
		b = appendIntMember(b, "held_ms", wall.between(g.AcquiredAt, g.until).Milliseconds())
		b = appendIntMember(b, "waited_ms", max(0, g.Waited.Milliseconds()))
		b = appendStringMember(b, "outcome", g.outcome)
		if g.breakReason != "" {
			b = appendStringMember(b, "break_reason", g.breakReason)
		}
		b = append(b, '}')
	}
	return append(b, ']', '}')
}
