package watchdog

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

// AcquireAll takes several names under one lease id, all or nothing, in name order
// so that two such calls can't block each other; r.Wait bounds the whole, and
// r.Name and r.Set are of no meaning. The outcomes are in name order. While the set
// is incomplete no TTL runs; at the end all begin together. Codes are those of Join
// and Wait: a name that refused is Error.Lock.Name, and what the others had is
// taken back, as it is when ctx ends. A name lost before all were there is
// CodeUnavailable. CodeInvalidRequest: a name is given twice.
//
// With stream, unless nil, the request is that stream, and a lease id may have other names already. Of those
// it asks for that are held the older stream goes on to have the leases until all are there;
// then they hang on this one. What was held before is never taken back; if it hangs already on
// a stream that is refused, it lingers for TakeOverLinger at least, unless nothing is known: then it
// is left to the client, which asks again, or to its TTL.
//
// waits, unless nil, is called when the request begins to wait for a name, with lock as it
// was then; nil if it had been handed the lock by then.
//
// What it returned is the caller's to deliver, or to give to TakeBackAll.
func (w *Watchdog) AcquireAll(ctx context.Context, names []fencing.Name, r fencing.AcquireRequest, stream *Stream, waits func(name fencing.Name, at fencing.Waiter, lock *fencing.Lock)) ([]fencing.Outcome, error) {
	names = slices.Sorted(slices.Values(names))
	for i := 1; i < len(names); i++ {
		if names[i] == names[i-1] {
			return nil, &fencing.Error{Code: fencing.CodeInvalidRequest, Field: "names", Detail: fmt.Sprintf("names has %q twice", names[i])}
		}
	}
	s := &set{dog: w, names: names, ask: r, stream: stream, deadline: time.Now().Add(r.Wait), waits: waits}
	if s.ask.Set, s.ask.Attach = digest(names), false; stream != nil {
		s.ask.Set = fencing.AnyNames
	}
	complete, err := false, error(nil)
	defer func() {
		if !complete { // also after a panic
			s.undo(err)
		}
	}()
	for range names {
		if err = s.acquireNext(ctx); err != nil {
			return nil, err
		}
	}
	if err = s.confirm(ctx); err != nil {
		return nil, err
	}
	if stream != nil {
		if err = s.attach(ctx); err != nil {
			return nil, err
		}
	}
	complete = true
	return s.outs, nil
}

// digest names a set of names.
func digest(names []fencing.Name) string {
	h := sha256.New()
	for _, name := range names {
		h.Write([]byte(name))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// set is several names under one lease id, on their way to one request.
type set struct {
	dog      *Watchdog
	names    []fencing.Name
	ask      fencing.AcquireRequest // with Attach once the names are to hang on stream
	stream   *Stream                // nil: the request is none
	deadline time.Time
	outs     []fencing.Outcome // of the names that are there
	waits    func(fencing.Name, fencing.Waiter, *fencing.Lock)
}

func (s *set) request(i int) fencing.AcquireRequest {
	r := s.ask
	r.Name = s.names[i]
	return r
}

// acquireNext takes the next name, and waits for it.
func (s *set) acquireNext(ctx context.Context) error {
	w, r := s.dog, s.request(len(s.outs))
	var out fencing.Outcome
	var t *Waiter
	var err error
	if r.Wait > 0 {
		out, t, err = w.join(ctx, r, s.deadline)
	} else {
		out, err = w.acquireHeld(ctx, r)
	}
	granted := &out
	if t != nil {
		if s.waits != nil {
			s.waits(r.Name, t.Place(), out.Lock)
		}
		granted, err = t.Wait(ctx)
	}
	if err != nil {
		return named(err, r.Name)
	}
	s.outs = append(s.outs, *granted)
	return nil
}

// acquireHeld is Join for a name of a set without a wait: it too hangs on the
// heartbeat until the set is complete.
func (w *Watchdog) acquireHeld(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
	w.listen()
	l, k := &w.requests, key{r.Name, r.Stamp}
	l.mu.Lock()
	if l.draining {
		l.mu.Unlock()
		return fencing.Outcome{}, fencing.DrainingError()
	}
	l.held[k] = struct{}{}
	l.addMember(r.Name)
	w.beat()
	l.mu.Unlock()
	out, err := w.Store.Acquire(ctx, r)
	if err == nil && out.Holder.Provisional {
		return out, nil
	}
	w.release(k)
	switch {
	case err == nil:
		w.dueIn(out.Holder.ExpiresAt.Sub(out.Now))
	case fencing.Unsettled(err):
		w.takeBack(takeBackOf(&r), err, true)
	}
	return out, err
}

// confirm makes the whole set firm, all names at once, and checks what came of it.
func (s *set) confirm(ctx context.Context) error {
	w := s.dog
	patience := time.Now().Add(callTimeout) // no longer: the TTLs of the others run
	errs := make([]error, len(s.names))
	lead := slices.IndexFunc(s.outs, func(out fencing.Outcome) bool { return out.Holder.Provisional })
	var calls sync.WaitGroup
	for i := range s.names {
		if out := &s.outs[i]; !out.Holder.Provisional { // an earlier request has confirmed it, and may have renewed it meanwhile
			if s.stream != nil || w.mayBeForgotten(out.Asked) || out.Remaining(time.Now()) <= 0 {
				calls.Go(func() { s.outs[i], errs[i] = s.stillHeld(ctx, i) })
			}
			continue
		}
		calls.Go(func() { s.outs[i], errs[i] = w.confirm(ctx, s.request(i), patience) })
	}
	calls.Wait()
	s.retake(ctx, patience, lead, errs)
	for i, err := range errs {
		switch {
		case err == nil && s.outs[i].Remaining(time.Now()) <= 0:
			return &fencing.Error{Code: fencing.CodeUnavailable, Detail: fmt.Sprintf("the lease of %s had expired before the set was complete; ask again", s.names[i])}
		case err == nil:
		case fencing.TakenForDead(err):
			return &fencing.Error{Code: fencing.CodeUnavailable, Detail: fmt.Sprintf("%s was lost before the set was complete; ask again", s.names[i]), Err: err}
		default:
			return named(err, s.names[i])
		}
	}
	if ctx.Err() != nil {
		return fencing.Unavailable(ctx.Err())
	}
	for i := range s.names {
		w.release(key{s.names[i], s.ask.Stamp})
		w.dueIn(s.outs[i].Holder.ExpiresAt.Sub(s.outs[i].Now))
	}
	return nil
}

// maxRetakes is how often a set takes names back that another request of its lease id has taken from it.
const maxRetakes = 8

// retake takes back names that another request of the lease id has taken from this set before it
// could confirm them, and may have given back since: of requests that are sent together, each may
// be the last for some of the names, and then none would have all. The newest is the one that has
// the first name that was granted, lead. Each of the others may take a name from it once more.
func (s *set) retake(ctx context.Context, patience time.Time, lead int, errs []error) {
	for i := range errs {
		for tries := 0; tries < maxRetakes && takenFrom(errs[i]); tries++ {
			if lead < 0 || errs[lead] != nil {
				break
			}
			r := s.request(lead)
			r.Wait, r.Again = 0, true
			if _, err := s.dog.Store.Acquire(ctx, r); err != nil {
				return // it is not this one, or nobody can say
			}
			r = s.request(i)
			r.Wait = 0
			if s.outs[i], errs[i] = s.dog.Store.Acquire(ctx, r); errs[i] == nil && s.outs[i].Holder.Provisional {
				s.outs[i], errs[i] = s.dog.confirm(ctx, r, patience)
			}
		}
	}
}

// takenFrom reports whether an error says that another request has, or had, what was asked about.
func takenFrom(err error) bool {
	return err != nil && (fencing.CodeOf(err) == fencing.CodeReplaced || fencing.TakenForDead(err))
}

// attach has the whole set hang on its stream. At one gateway the streams of a lease id attach their names one stream after
// the other, so the last one has all of them. Of streams at several gateways that are sent together the one that has the
// first name is the newest: it takes the others back from one that was late there.
func (s *set) attach(ctx context.Context) error {
	done, err := s.dog.turns.take(ctx, s.dog.drained, s.ask.Lease.Public())
	if err != nil {
		return err
	}
	defer done()
	s.ask.Attach = true
	patience := time.Now().Add(callTimeout)
	// A stream that has taken some of the names takes all, also when its client leaves meanwhile: the one that they were taken
	// from releases none, and the rest would hang on nobody until their TTL.
	asking, cancel := context.WithDeadline(context.WithoutCancel(ctx), patience.Add(callTimeout))
	defer cancel()
	err = s.attachNames(asking, patience, s.names[:1])
	rest, lost := s.names[1:], s.stream.replacedOn(s.names[0])
	for tries := 0; err == nil && !lost && len(rest) > 0; tries++ {
		if lost = tries > maxRetakes; !lost {
			err = s.attachNames(asking, patience, rest)
			if rest, lost = s.stream.takeReplaced(s.names[0]); len(rest) > 0 && err == nil {
				_, err = s.dog.Renew(asking, fencing.RenewRequest{
					Name: s.names[0], Lease: s.ask.Lease, Stamp: s.ask.Stamp, Epoch: s.outs[0].Holder.Epoch,
				}) // the message about the first name may come later
			}
		}
	}
	switch {
	case err != nil:
		return err
	case lost:
		return fencing.ReplacedError()
	case ctx.Err() != nil:
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

// attachNames has names of the set hang on its stream, all at once. Those of which the store does
// not say it asks for again, for they have no other stream any more.
func (s *set) attachNames(ctx context.Context, patience time.Time, names []fencing.Name) error {
	errs := make([]error, len(names))
	eachOf(len(names), func(n int) {
		i := slices.Index(s.names, names[n])
		errs[n] = s.dog.insist(ctx, patience, func(ctx context.Context) error {
			out, err := s.stillHeld(ctx, i)
			if err == nil {
				s.outs[i] = out
			}
			return err
		})
	})
	for n, err := range errs {
		if err != nil {
			return named(err, names[n])
		}
	}
	return nil
}

// stillHeld asks again for a name that was held before, while others were waited for.
func (s *set) stillHeld(ctx context.Context, i int) (fencing.Outcome, error) {
	r := s.request(i)
	r.Wait = 0
	out, err := s.dog.Store.Acquire(ctx, r)
	if err == nil && out.Holder.Token != s.outs[i].Holder.Token {
		err = &fencing.Error{Code: fencing.CodeUnavailable, Detail: fmt.Sprintf("%s was lost before the set was complete; ask again", r.Name)}
	}
	return out, err
}

// undo takes back all that this request has got, which has failed with err. Of a refusal the
// store has answered to that, once, when it returns, or can't be asked: who is refused finds
// nothing held by its own set.
func (s *set) undo(err error) {
	if len(s.outs) == 0 {
		return
	}
	w, names := s.dog, s.names[:len(s.outs)]
	for _, name := range names {
		k := key{name, s.ask.Stamp}
		w.release(k)
	}
	late, unknown := fencing.NotReplicated(err), isUnknown(err)
	var calls sync.WaitGroup
	for i := range names { // all at once: each may wait for replicas
		r := s.takeBackOf(i, err)
		if r.Refused = late; unknown { // the store may answer nothing at all
			w.TakeBackLater(r)
			continue
		}
		calls.Go(func() { w.undo(r, true, late) })
	}
	calls.Wait()
}

// isUnknown reports whether a client that is told err is told that nothing is known.
func isUnknown(err error) bool {
	return err == nil || fencing.Unsettled(err) && !fencing.NotReplicated(err)
}

// TakeOverLinger is how long a lease lives on at least that hung on a stream which was refused, where an older stream had it, for
// who has that has to hear of it; or where a newer one has another name of the set, for it is about to take this one too.
const TakeOverLinger = 3 * time.Second

// takeBackOf takes back what the request, which has failed with err, has got of a name, and lets go of it if it hangs on
// its stream by now. What was held before is left to the client where it is told that nothing is known:
// it asks again.
func (s *set) takeBackOf(i int, err error) fencing.TakeBackRequest {
	request := s.request(i)
	r := takeBackOf(&request)
	switch {
	case !s.ask.Attach:
	case s.outs[i].Fresh && (err == nil || fencing.CodeOf(err) != fencing.CodeReplaced):
		r.Left, r.Linger = true, s.stream.linger
	case !isUnknown(err):
		r.Left, r.Linger = true, max(s.stream.linger, TakeOverLinger)
	}
	return r
}

// release forgets a held lease.
func (w *Watchdog) release(k key) {
	l := &w.requests
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, held := l.held[k]; held {
		delete(l.held, k)
		l.drop(k.name)
	}
}

// named has a refusal say which of the names refused.
func named(err error, name fencing.Name) error {
	e := fencing.AsError(err)
	if fencing.Uncertain(err) || e.Lock != nil {
		return err
	}
	c := *e
	c.Lock = &fencing.Lock{Name: name}
	return &c
}
