package session

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"time"

	"fencepost/internal/fencing"
)

// digest names a set of names.
func digest(names []fencing.Name) string {
	h := sha256.New()
	for _, name := range names {
		h.Write([]byte(name))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// complete makes several names firm once all are there, and has them hang on the request if it is a stream.
func (s *Session) complete(ctx context.Context) error {
	if err := s.confirm(ctx); err != nil || !s.ask.Attach {
		return err
	}
	return s.attach(ctx)
}

// confirm makes all names firm, at once, and checks what came of it.
func (s *Session) confirm(ctx context.Context) error {
	dog := s.of.dog
	patience := time.Now().Add(callTimeout) // no longer: the TTLs of the others run
	errs := make([]error, len(s.names))
	lead := slices.IndexFunc(s.outs, func(out fencing.Outcome) bool { return out.Holder.Provisional })
	var calls sync.WaitGroup
	for i := range s.names {
		if out := &s.outs[i]; !out.Holder.Provisional { // an earlier request has confirmed it, and may have renewed it meanwhile
			if s.ask.Attach || dog.Doubts(out.Asked) || out.Remaining(time.Now()) <= 0 {
				calls.Go(func() { s.outs[i], errs[i] = s.stillHeld(ctx, i, true) })
			}
			continue
		}
		calls.Go(func() { s.outs[i], errs[i] = dog.ConfirmGrant(ctx, s.request(i), patience) })
	}
	calls.Wait()
	s.retake(ctx, patience, lead, errs)
	for i, err := range errs {
		switch {
		case err == nil && s.outs[i].Remaining(time.Now()) <= 0:
			return &fencing.Error{Code: fencing.CodeUnavailable, Detail: fmt.Sprintf("the lease of %s expired before the set was complete; repeat the request", s.names[i])}
		case err == nil:
		case fencing.TakenForDead(err):
			return &fencing.Error{Code: fencing.CodeUnavailable, Detail: fmt.Sprintf("%s was lost before the set was complete; repeat the request", s.names[i]), Err: err}
		default:
			return named(err, s.names[i])
		}
	}
	if ctx.Err() != nil {
		return fencing.Unavailable(ctx.Err())
	}
	for i := range s.names {
		dog.Settle(s.names[i], s.ask.Stamp)
		dog.DueIn(s.outs[i].Holder.ExpiresAt.Sub(s.outs[i].Now))
	}
	return nil
}

// maxRetakes is how often a set takes names back that another request of its lease id has taken from it.
const maxRetakes = 8

// retake takes back names that another request of the lease id has taken from this set before it
// could confirm them, and may have given back since: of requests that are sent together, each may
// be the last for some of the names, and then none would have all. The newest is the one that has
// the first name that was granted, lead. Each of the others may take a name from it once more.
func (s *Session) retake(ctx context.Context, patience time.Time, lead int, errs []error) {
	for i := range errs {
		for tries := 0; tries < maxRetakes && takenFrom(errs[i]); tries++ {
			if lead < 0 || errs[lead] != nil {
				break
			}
			r := s.request(lead)
			r.Wait, r.Again = 0, true
			if _, err := s.of.dog.Store.Do(ctx, r); fencing.Uncertain(err) {
				errs[i] = err
				return // nobody can say which one is the newest
			} else if err != nil {
				return // it is not this one
			}
			r = s.request(i)
			r.Wait = 0
			if s.outs[i], errs[i] = s.of.dog.Store.Do(ctx, r); errs[i] == nil && s.outs[i].Holder.Provisional {
				s.outs[i], errs[i] = s.of.dog.ConfirmGrant(ctx, r, patience)
			}
		}
	}
}

// takenFrom reports whether an error says that another request has, or had, what was asked about.
func takenFrom(err error) bool {
	return err != nil && (fencing.CodeOf(err) == fencing.CodeReplaced || fencing.TakenForDead(err))
}

// attach has all names hang on the request, the first one before the others. At one gateway the streams of a lease id attach
// their names one stream after the other, so the last one has all of them. Of streams at several gateways that are sent
// together the one that has the first name is the newest: it takes the others from one that was there before, and one that
// comes late to them gives up.
func (s *Session) attach(ctx context.Context) error {
	done, err := s.of.turns.take(ctx, s.of.dog.Drained(), s.ask.Lease.Public())
	if err != nil {
		return err
	}
	defer done()
	s.attaching = true
	patience := time.Now().Add(callTimeout)
	// A stream that has taken some of the names takes all, also when its client leaves meanwhile: the one that they were taken
	// from releases none, and the rest would hang on nobody until their TTL.
	asking, cancel := context.WithDeadline(context.WithoutCancel(ctx), patience.Add(callTimeout))
	defer cancel()
	errs := make([]error, len(s.names))
	if errs[0] = s.attachName(asking, patience, 0); errs[0] == nil {
		eachOf(len(s.names)-1, func(n int) { errs[n+1] = s.attachName(asking, patience, n+1) })
	}
	for i, err := range errs {
		if err != nil {
			return named(err, s.names[i])
		}
	}
	if ctx.Err() != nil {
		return fencing.Unavailable(ctx.Err())
	}
	return nil
}

// turns has what is done for one lease id done one after the other.
type turns struct {
	mu sync.Mutex
	of map[fencing.LeasePublic]*turn // while anybody has it or waits for it
}

type turn struct {
	taken chan struct{} // holds one while somebody has it
	users int
}

// take waits for the turn; done ends it. The error is that ctx has ended, or CodeDraining.
func (t *turns) take(ctx context.Context, drained <-chan struct{}, lease fencing.LeasePublic) (done func(), err error) {
	t.mu.Lock()
	its := t.of[lease]
	if its == nil {
		its = &turn{taken: make(chan struct{}, 1)}
		t.of[lease] = its
	}
	its.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if its.users--; its.users == 0 {
			delete(t.of, lease)
		}
	}
	select {
	case its.taken <- struct{}{}:
		done = func() { <-its.taken; leave() }
	case <-ctx.Done():
		done = leave
	case <-drained:
		leave()
		return nil, fencing.DrainingError()
	}
	if ctx.Err() != nil { // also where both were there
		done()
		return nil, fencing.Unavailable(ctx.Err())
	}
	return done, nil
}

// attachName has the name at i hang on the request. The store refuses that where the name was taken over since this one saw
// it last, or was left to linger; then it looks again. For the first name that is all, for the newest request is to have it.
// Another name it may only have as the newest. So it has the store say that the first name still hangs on it, after it has
// looked and before it tries again: who takes the first name after that takes this one later still, and who took it before is
// found to have it.
func (s *Session) attachName(ctx context.Context, patience time.Time, i int) error {
	dog := s.of.dog
	ask := func(looks bool) error {
		return dog.Insist(ctx, patience, func(ctx context.Context) error {
			out, err := s.stillHeld(ctx, i, looks)
			if err == nil {
				s.outs[i] = out
			}
			return err
		})
	}
	for tries := 0; ; tries++ {
		err := ask(false)
		if fencing.CodeOf(err) != fencing.CodeReplaced || tries == maxRetakes {
			return err
		}
		if err = ask(true); err != nil {
			return err
		}
		if i == 0 {
			continue
		}
		err = dog.Insist(ctx, patience, func(ctx context.Context) error { // what that makes of the lease asGranted asks for: others do the same now
			_, err := s.renew(ctx, s.names[0], 0, s.outs[0].Holder.Epoch)
			return err
		})
		if err != nil {
			return named(err, s.names[0])
		}
	}
}

// stillHeld asks again for a name that was held before, while others were waited for, and tells what this request has seen of
// it. Where it only looks, nothing is taken over.
func (s *Session) stillHeld(ctx context.Context, i int, looks bool) (fencing.Outcome, error) {
	r := s.request(i)
	r.Wait, r.Attach, r.Epoch = 0, r.Attach && !looks, s.outs[i].Holder.Epoch
	out, err := s.of.dog.Store.Do(ctx, r)
	if err == nil && out.Holder.Token != s.outs[i].Holder.Token {
		err = &fencing.Error{Code: fencing.CodeUnavailable, Detail: fmt.Sprintf("%s was lost before the set was complete; repeat the request", r.Name)}
	}
	return out, err
}

// takeOverLinger is how long a lease lives on at least that hung on a stream which was refused, where an older stream had it, for
// who has that has to hear of it; or where a newer one has another name of the request, for it is about to take this one too.
const takeOverLinger = 3 * time.Second

// undo takes back all that a request for several names has got which has failed with err, nil after a panic, and lets go of
// what hangs on it by now. Of a refusal the store has answered to that, once, when it returns, or can't be asked: who is refused
// finds nothing held by its own request. What was held before is left to a client that is there and is told that nothing is
// known: it asks again.
func (s *Session) undo(ctx context.Context, err error) {
	dog, gone := s.of.dog, ctx.Err() != nil
	s.unknown = err == nil || fencing.Uncertain(err) && !fencing.NotReplicated(err)
	names := s.names[:len(s.outs)]
	if err == nil { // nobody has undone what was under way
		names = s.names
	}
	var calls sync.WaitGroup
	for i, name := range names { // all at once: each may wait for replicas
		dog.Settle(name, s.ask.Stamp)
		r := fencing.TakeBackRequest{Refused: fencing.NotReplicated(err)}
		switch {
		case !s.attaching:
		case i < len(s.outs) && s.outs[i].Fresh && fencing.CodeOf(err) != fencing.CodeReplaced:
			r.Left, r.Linger = true, s.ask.Linger
		case gone || !s.unknown:
			r.Left, r.Linger = true, max(s.ask.Linger, takeOverLinger)
		}
		r = s.takeBackOf(i, r)
		if s.unknown || fencing.Unsettled(err) && !fencing.NotReplicated(err) { // the store may answer nothing at all
			dog.TakeBackLater(r)
			continue
		}
		calls.Go(func() { dog.TakeBackNow(r) })
	}
	calls.Wait()
}
