package client

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// retry says how long an answer may take, when to ask again, and whether.
type retry struct {
	c        *Client
	patience time.Duration
	asked    instant // when the last request was sent
	failed   int     // attempts in a row that were not answered
	failing  instant // since when, if there are any: when the first was sent
	backoff  time.Duration

	untrusted map[int]bool // the gateways of the attempts in a row whose certificates are not trusted
}

func (c *Client) newRetry() *retry {
	return &retry{c: c, patience: c.options.Patience, backoff: minBackoff}
}

// begin notes that a request is sent now, and returns how long its answer may take: a share of
// the patience, so that each gateway can be asked before it is over.
func (r *retry) begin() (within time.Duration) {
	r.asked = r.c.now()
	return min(answerTimeout, r.left()/time.Duration(max(1, len(r.c.options.Addresses)-r.failed)))
}

// beginWait is begin for an acquire. It also returns how long the request may wait in the queue:
// after a failure as little as possible, to find out which gateway answers.
func (r *retry) beginWait(waits bool) (wait, within time.Duration) {
	if within = r.begin(); !waits {
		return 0, within
	}
	if r.failed > 0 {
		wait = min(time.Millisecond, within)
		return wait, within - wait
	}
	gateways := time.Duration(len(r.c.options.Addresses))
	within = min(answerTimeout, r.patience/(gateways+1))
	return min(waitPerRequest, r.patience-gateways*within), within
}

// after returns how long to wait after an error before the next attempt. What could not
// be answered is asked of the next gateway at once, until each has been asked in vain;
// after that the pauses grow. A gateway's Retry-After is obeyed; that of one that can't answer
// as far as it is no longer than the longest pause, for it may be a proxy's, and others may be
// back sooner.
func (r *retry) after(err error) time.Duration {
	if r.noteTrust(err); r.hopeless() {
		return 0
	}
	if !unanswered(err) {
		r.failed = 0
	} else {
		if r.failed == 0 {
			r.failing = r.asked
		}
		if r.failed++; r.failed%len(r.c.options.Addresses) != 0 {
			return 0
		}
	}
	pause := jitter(r.backoff)
	r.backoff = min(2*r.backoff, maxBackoff)
	if e := refusal(err); e != nil {
		told := e.RetryAfter
		if unanswered(err) {
			told = min(told, maxBackoff)
		}
		pause = max(pause, told+jitter(minBackoff))
	}
	return pause
}

// noteTrust notes whether an attempt failed for the gateway's certificate.
func (r *retry) noteTrust(err error) {
	bad := new(untrusted)
	if !errors.As(err, &bad) {
		r.untrusted = nil
		return
	}
	if r.untrusted == nil {
		r.untrusted = map[int]bool{}
	}
	r.untrusted[bad.gateway] = true
}

// hopeless reports whether no gateway will be trusted: none is, and this client was never answered.
func (r *retry) hopeless() bool {
	return len(r.untrusted) == len(r.c.options.Addresses) && !r.c.heard.Load()
}

// rest waits after a request that was not answered, until the next one. It returns an error if
// there is to be none.
func (r *retry) rest(ctx context.Context, err error) error {
	sleep(ctx, min(r.after(err), r.left()))
	return r.over(ctx, err)
}

// over returns an error if there is to be no request after one that was not answered.
func (r *retry) over(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ended(ctx, err)
	}
	return r.exhausted(err)
}

// answered notes that a gateway has answered as it should.
func (r *retry) answered() { r.failed, r.backoff = 0, minBackoff }

// broken notes that a stream has ended which had begun: it fails from now on, and not since it
// was asked for. The pauses begin anew only after one that has lasted: who is given streams that
// end at once rests in between.
func (r *retry) broken() {
	if r.c.now().since(r.asked) >= maxBackoff {
		r.answered()
	}
	r.begin()
	r.failing = r.asked
}

// left returns how much is left of the patience.
func (r *retry) left() time.Duration {
	if r.failed == 0 {
		return r.patience
	}
	return max(0, r.patience-r.c.now().since(r.failing))
}

// exhausted returns an error once attempts have failed for as long as the patience lasts, or are hopeless.
func (r *retry) exhausted(err error) error {
	if r.left() > 0 && !r.hopeless() {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}

// insist asks until a gateway answers, or the context ends, or the patience does.
func (c *Client) insist(ctx context.Context, r call) (answer, error) {
	if err := c.made(); err != nil {
		return answer{}, err
	}
	retry := c.newRetry()
	if r.patience > 0 {
		retry.patience = r.patience
	}
	t := c.attempts(ctx, func(one *attempt) bool { return one.err == nil || !unanswered(one.err) })
	defer t.close()
	for {
		within := retry.begin()
		t.start(&attempt{call: r}, nil)
		one, err := t.next(within, nil)
		if one == nil {
			if one, _ = t.next(min(retry.after(err), retry.left()), nil); one == nil {
				if err := retry.over(ctx, err); err != nil {
					return answer{}, err
				}
				continue
			}
		}
		return one.answer, one.err
	}
}
