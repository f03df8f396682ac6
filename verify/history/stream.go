package history

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"strings"
	"time"
)

// attach opens a stream and follows it for so long, then closes it. It records the
// grant as an Acquire, every renewal as a Renew, and the end.
func (c *client) attach(ctx context.Context, op Op, follow time.Duration) {
	op.ID = c.run.number()
	op.Call, op.Client, op.Attached = op.ID, c.n, true
	bounded, cancel := context.WithTimeout(ctx, op.Wait+longestAnswer)
	defer cancel()
	op.Sent = c.run.now()
	leaves := time.AfterFunc(follow, cancel)
	defer leaves.Stop()
	response, err := c.roundTrip(bounded, &op)
	verdict := func() Verdict {
		if bounded.Err() != nil && ctx.Err() == nil {
			return Left
		}
		return Unknown
	}
	if err != nil {
		op.Done, op.Verdict = c.run.now(), verdict()
		c.run.record(op)
		return
	}
	defer response.Body.Close()
	op.Status = response.StatusCode
	if !strings.HasPrefix(response.Header.Get("Content-Type"), "text/event-stream") {
		text, err := io.ReadAll(response.Body)
		if op.Done = c.run.now(); err != nil {
			op.Verdict = verdict()
		} else {
			op.judge(text)
		}
		c.run.record(op)
		return
	}
	c.follow(&op, op.Sent+follow, response.Body, verdict)
}

// follow reads the events of a stream, which the client closes at leaves, not sooner.
func (c *client) follow(op *Op, leaves Time, stream io.Reader, verdict func() Verdict) {
	acquired := false
	last := op.Sent // not before this was the latest renewal
	event := ""
	for lines := bufio.NewScanner(stream); lines.Scan(); {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		if field == "event" {
			event = value
		}
		if field != "data" {
			continue
		}
		var a answer
		if json.Unmarshal([]byte(value), &a) != nil {
			break
		}
		next := *op
		next.Done = c.run.now()
		a.Waited = a.Elapsed
		switch event {
		case "granted":
			next.grants(&a)
			next.Verdict, next.Lease, acquired = Granted, a.LeaseID, true
			c.run.record(next)
			last = op.Sent + time.Duration(a.Elapsed)*time.Millisecond
			*op = next
		case "renewed":
			next.ID = c.run.number()
			next.Call, next.Verb, next.Mode = next.ID, Renew, ""
			if a.Hold == 0 {
				a.Hold = 1
			}
			next.grants(&a)
			next.Sent, next.Verdict = last, Granted
			c.run.record(next)
			last = op.Sent + time.Duration(a.Elapsed)*time.Millisecond
		case "refused", "lost", "draining":
			next.Code, next.Reason, next.Grants = a.Code, a.Reason, nil
			switch {
			case !acquired && event == "refused":
				next.Verdict = Refused
			case !acquired, event == "draining", a.Code != "lease_lost":
				next.Verdict = Unknown
			default:
				next.Verdict = Lost
			}
			if acquired {
				next.ID = c.run.number()
				next.Call, next.Verb, next.Sent, next.Mode = next.ID, Renew, last, ""
				if next.Verdict == Unknown { // nobody counts on the lease any more, so the gateway may let it go
					next.Verb, next.Hold = Release, 0
				}
			}
			c.run.record(next)
			return
		}
	}
	end := *op
	end.Done = c.run.now()
	end.Verdict, end.Grants = verdict(), nil
	if acquired { // it lets go by closing
		end.ID = c.run.number()
		end.Call, end.Verb, end.Sent, end.Mode, end.Hold = end.ID, Release, min(leaves, end.Done), "", 0
	}
	c.run.record(end)
}
