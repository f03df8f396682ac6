package client

import (
	"context"
	"net/http"
	"strconv"
)

// Verdict is what a gateway knows of a token.
type Verdict string

// The verdicts: a live lease has it; none has, and a newer one was issued; none has, and it
// is the last one issued; it is above all that is known to have been issued.
const (
	VerdictLive       Verdict = "live"
	VerdictSuperseded Verdict = "superseded"
	VerdictEnded      Verdict = "ended"
	VerdictUnissued   Verdict = "unissued"
)

// Judged is what has become of a token.
type Judged struct {
	Name    string  `json:"name"`
	Token   int64   `json:"fencing_token"`
	Verdict Verdict `json:"verdict"`
	Fence
}

// Judge asks what has become of a token. It is advice and guards nothing: by the time of
// the answer it may be otherwise.
func (c *Client) Judge(ctx context.Context, name string, token int64) (j Judged, err error) {
	path, err := pathOf("/fences/", name)
	if err != nil {
		return j, err
	}
	return look(ctx, c, path+"?token="+strconv.FormatInt(token, 10), func(j *Judged) bool { return j.Name == name && j.Verdict != "" })
}

// Admit lets a token pass at the gateway's fence, before storage is written that can't
// compare tokens itself, and returns the highest one that keeps others out. slot is that
// of a permit, or NoSlot. A token that is too old, or was never issued, is an *Error with
// CodeStaleToken. A check before a write can't know when the write is done: storage that
// can compare should do that itself, in one step with the write.
func (c *Client) Admit(ctx context.Context, name string, token int64, slot int) (highest int64, err error) {
	path, err := pathOf("/fences/", name)
	if err != nil {
		return 0, err
	}
	body := struct {
		Token int64 `json:"fencing_token"`
		Slot  *int  `json:"slot,omitempty"`
	}{Token: token}
	if slot != NoSlot {
		body.Slot = &slot
	}
	type answer struct {
		Name     string `json:"name"`
		Admitted bool   `json:"admitted"`
		Highest  *int64 `json:"highest_admitted"` // 0 as long as only readers without a limit were admitted
	}
	var admitted answer
	right := func(a *answer) bool { return a.Name == name && a.Admitted && a.Highest != nil }
	if _, err = c.insist(ctx, call{method: http.MethodPost, path: path, body: body, read: into(&admitted, right)}); err != nil {
		return 0, err
	}
	return *admitted.Highest, nil
}
