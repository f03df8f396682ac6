package client

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"time"
)

// retry says how long an answer may take, when to ask again, and whether.
type retry struct {
	c        *Client
	patience time.Duration
	turn     uint32  // to which gateway the last request was sent
	asked    instant // when
	failed   int     // attempts in a row that were not served
	failing  instant // since when, as far as the patience bounds them: when the first was sent
	backoff  time.Duration

	best    error        // what says most of those in a row that the patience bounds
	waited  error        // the last refusal that the call has waited after
	served  bool         // a gateway has served the call, or began to
	refused map[int]bool // the gateways that refuse what will not come while it is asked again
	present uint64       // credentialOf the key that they were asked with, of KeyFunc
}

func (c *Client) newRetry() *retry {
	return &retry{c: c, patience: c.options.Patience, backoff: minBackoff}
}

// begin notes that a request is sent now, to the gateway of r.turn, and returns how long its answer may take: a share of
// the patience, so that each gateway can be asked before it is over.
func (r *retry) begin() (within time.Duration) {
	r.asked, r.turn = r.c.now(), r.c.current.Load()
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

// after returns how long to wait after an error of a call before the next attempt. What another gateway may not
// say is asked of the next one at once, until each has been asked in vain; after that the pauses grow. A
// Retry-After is obeyed; where the patience bounds the call, as far as it is no longer than the longest pause, for it
// may be a proxy's, and others may be back sooner, and so that there is another attempt.
func (r *retry) after(k kind, err error) time.Duration {
	f := k.fate(err)
	if r.note(f, err); r.hopeless() {
		return 0
	}
	if f == final || f == stay {
		r.failed = 0
	} else if r.failed++; r.failed%len(r.c.options.Addresses) != 0 {
		return 0
	}
	pause := jitter(r.backoff)
	r.backoff = min(2*r.backoff, maxBackoff)
	if e := refusal(err); e != nil && f.patient() {
		pause = max(pause, min(e.RetryAfter, maxBackoff)+jitter(minBackoff))
	} else if e != nil {
		return max(pause, e.RetryAfter+jitter(minBackoff))
	}
	return min(pause, max(r.left()/2, minBackoff))
}

// note notes what an attempt came to.
func (r *retry) note(f fate, err error) {
	if !f.patient() {
		r.failing, r.best, r.refused = instant{}, nil, nil
		r.served = r.served || f == stay
		if refusal(err) != nil {
			r.waited = err
		}
		return
	}
	if r.failing == (instant{}) {
		r.failing = r.asked
	}
	if r.best == nil || worth(err) >= worth(r.best) {
		r.best = err
	}
	old := r.ofOldKey(err)
	if f == others && !r.served && !old || errors.As(err, new(*untrusted)) && !r.c.heard.Load() {
		if r.refused == nil {
			r.refused = map[int]bool{}
		}
		r.refused[r.c.gateway(r.turn)] = true
	} else {
		delete(r.refused, r.c.gateway(r.turn))
	}
}

// ofOldKey reports whether an error is a refusal of a key that KeyFunc has replaced by now: it says nothing of the
// present one, which is asked with next. What refused one before counts no more.
func (r *retry) ofOldKey(err error) bool {
	e := refusal(err)
	if r.c.options.KeyFunc == nil || e == nil || e.credential == 0 {
		return false
	}
	key, failed := r.c.options.KeyFunc()
	if failed != nil {
		return false
	}
	if present := credentialOf(key); present != r.present {
		r.present, r.refused = present, nil
	}
	return e.credential != r.present
}

var hashSeed = maphash.MakeSeed()

// credentialOf tells keys apart, so that errors needn't have them. It is not 0.
func credentialOf(key string) uint64 { return max(1, maphash.String(hashSeed, key)) }

// hopeless reports whether no gateway will serve the call: all refuse it, or can't be trusted and have never been heard.
func (r *retry) hopeless() bool { return len(r.refused) == len(r.c.options.Addresses) }

// told returns what says most of why a call was not served.
func (r *retry) told(err error) error {
	if r.best != nil {
		return r.best
	}
	return err
}

// ended is ended, with what the call was told before.
func (r *retry) ended(ctx context.Context, err error) error {
	if r.best == nil && r.waited != nil && refusal(err) == nil {
		err = r.waited
	}
	return ended(ctx, r.told(err))
}

// rest waits after a request that was not served, until the next one. It returns an error if
// there is to be none.
func (r *retry) rest(ctx context.Context, k kind, err error) error {
	sleep(ctx, min(r.after(k, err), r.left()))
	return r.over(ctx, err)
}

// over returns an error if there is to be no request after one that was not served.
func (r *retry) over(ctx context.Context, err error) error {
	if given := r.exhausted(err); given != nil || ctx.Err() == nil {
		return given
	}
	return r.ended(ctx, err)
}

// answered notes that a gateway has answered as it should.
func (r *retry) answered() {
	r.failed, r.failing, r.backoff, r.best, r.refused, r.served = 0, instant{}, minBackoff, nil, nil, true
}

// broken notes that a stream has ended which had begun: it fails from now on, and not since it
// was asked for. The pauses begin anew only after one that has lasted: who is given streams that
// end at once rests in between. One that has not lasted, and says what no gateway does, has served nobody: it fails on.
func (r *retry) broken(err error) {
	switch {
	case r.c.now().since(r.asked) >= maxBackoff:
		r.answered()
	case errors.Is(err, errNoGateway) && r.failing != (instant{}):
		return
	}
	r.served = true
	turn := r.turn
	r.begin()
	r.failing, r.turn = r.asked, turn
}

// left returns how much is left of the patience.
func (r *retry) left() time.Duration {
	if r.failing == (instant{}) {
		return r.patience
	}
	return max(0, r.patience-r.c.now().since(r.failing))
}

// exhausted returns an error once attempts have failed for as long as the patience lasts, or are hopeless.
func (r *retry) exhausted(err error) error {
	if r.left() > 0 && !r.hopeless() {
		return nil
	}
	return r.givenUp(err)
}

// givenUp returns what is told of a call that no gateway has served: a refusal as it is.
func (r *retry) givenUp(err error) error {
	err = r.told(err)
	switch outcomeOf(err) {
	case tooMany, notAllowed:
		return err
	case proxyPage, redirected:
		if r.hopeless() {
			return err
		}
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
	t := c.attempts(ctx, nil)
	defer t.close()
	for {
		within := retry.begin()
		sent := &attempt{call: r}
		t.start(sent, nil)
		retry.turn = sent.turn
		one, err := t.next(within, nil)
		if one == nil {
			if one, _ = t.next(min(retry.after(r.kind, err), retry.left()), nil); one == nil {
				if err := retry.over(ctx, err); err != nil {
					return answer{}, err
				}
				continue
			}
		}
		return one.answer, one.err
	}
}
