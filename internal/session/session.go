// Package session is what a request for leases is, from before the store is asked to the last byte of
// the answer: for one name, or for several under one lease id; told at once, or hanging on a stream that
// keeps the leases alive. Whatever a request has got and its client was not told of is undone when it
// closes, and what hangs on its stream is released then: see docs/architecture.md.
package session

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/watchdog"
)

// callTimeout bounds one call to the store.
const callTimeout = 3 * time.Second

// Options says how to run Sessions.
type Options struct {
	Logger *slog.Logger // nil discards

	TakeBack func(fencing.TakeBackRequest) // for tests; nil is the watchdog's TakeBackLater
}

// Sessions are the requests for leases of a gateway. Those that leases are to hang on are known by their
// names: a message that overtakes the store's answer finds them.
type Sessions struct {
	dog      *watchdog.Watchdog
	log      *slog.Logger
	takeBack func(fencing.TakeBackRequest)
	turns    turns // of streams that attach several names

	mu        sync.Mutex                                          // guards what follows, and what a Session says it does; held for moments only, and never across a call to the store
	byRequest map[request]*Session                                // streams
	byName    map[fencing.Name]map[fencing.LeasePublic][]*Session // the same
}

// New returns the Sessions of a gateway, which are its watchdog's Keeper.
func New(dog *watchdog.Watchdog, o Options) *Sessions {
	all := &Sessions{dog: dog, log: o.Logger, takeBack: o.TakeBack, byRequest: map[request]*Session{}, byName: map[fencing.Name]map[fencing.LeasePublic][]*Session{}}
	all.turns.of = map[fencing.LeasePublic]*turn{}
	if all.log == nil {
		all.log = slog.New(slog.DiscardHandler)
	}
	if all.takeBack == nil {
		all.takeBack = dog.TakeBackLater
	}
	dog.KeepWith(hearer{all})
	return all
}

// Request asks for leases.
type Request struct {
	fencing.AcquireRequest // with Attach they are to hang on the request. Set is not looked at, and Name only without Names

	// Names are several under the lease id, all or nothing; nil: Name alone. They are taken in the order
	// of names, so that two requests can't block each other. Wait bounds the whole.
	Names []fencing.Name

	Linger time.Duration // with Attach: for how long the leases live on when the stream closes
}

// Lease is a lease of a request: what it was granted with, or its last renewal came to, with
// Outcome.Asked.
type Lease struct {
	Name    fencing.Name
	Outcome fencing.Outcome
}

// Session is one request. Its methods are called by one goroutine; Close is to be the last.
type Session struct {
	of       *Sessions
	ask      *Request
	names    []fencing.Name    // in order; one for a request without Request.Names
	outs     []fencing.Outcome // of those that it has
	deadline time.Time         // when its patience ends

	name [1]fencing.Name // room for one: most requests are for one

	// owed is what is taken back of each name, with owes, when the request closes before its client was
	// told that it has the leases.
	owed    fencing.TakeBackRequest
	owes    bool
	unknown bool // the client is told that nothing is known, and what there may be is left to it

	attaching bool // several names: all are there, and are being attached to the request

	deaf func()        // ends that messages and events are heard; nil of one that no leases are to hang on
	wake chan struct{} // holds one when news has become more

	// Sessions.mu guards these.
	news  news
	known map[fencing.Name]time.Time // the leases that it has: when the store was last known to have them hang on it

	keeping // from Keep on
}

// Begin makes a request known, before the store is asked for it. The Session, whose the request is from then on,
// is to be closed.
//
// CodeInvalidRequest: a name is given twice. CodeDraining: the gateway is shutting down.
func (o *Sessions) Begin(r *Request) (*Session, error) {
	s := &Session{of: o, ask: r}
	r.Set, s.name[0] = "", r.Name
	s.names = s.name[:]
	if s.several() {
		s.names = slices.Sorted(slices.Values(r.Names))
		for i := 1; i < len(s.names); i++ {
			if s.names[i] == s.names[i-1] {
				return nil, &fencing.Error{Code: fencing.CodeInvalidRequest, Field: "names", Detail: fmt.Sprintf("names has %q twice", s.names[i])}
			}
		}
	}
	if !r.Attach {
		return s, nil
	}
	select {
	case <-o.dog.Drained():
		return nil, fencing.DrainingError()
	default:
	}
	s.wake = make(chan struct{}, 1)
	o.register(s)
	s.deaf = o.dog.Hear()
	return s, nil
}

// several reports whether the request is for several names, be it for one of them.
func (s *Session) several() bool { return s.ask.Names != nil }

// Parks is called when a request begins to wait for a name, with where it stands and with the lock as it
// was then; nil if it had been handed the lock by then. It returns the context of what follows.
type Parks func(name fencing.Name, at fencing.Waiter, lock *fencing.Lock) context.Context

// Acquire takes the leases, in the order of names, and waits for them as Request.Wait says. Codes are
// those of Watchdog.Join and Waiter.Wait; of several names one that refused is Error.Lock.Name, and one
// that was lost before all were there is CodeUnavailable. CodeReplaced: another request of the lease id
// has them.
//
// While several names are incomplete no TTL runs; at the end all begin together. A lease id may have
// other names already, of a stream, which goes on to have those that are asked for until all are there;
// then they hang on this one.
//
// What was granted to a request that fails is taken back, as it is when ctx ends. What its lease id held
// before stays; if it hangs on this request by then, it lingers for takeOverLinger at least, unless the
// client is told that nothing is known: then it is left to the client, which asks again, or to its TTL.
// What was granted is the caller's to tell (Told, Keep).
func (s *Session) Acquire(ctx context.Context, parks Parks) (outs []fencing.Outcome, err error) {
	s.deadline = time.Now().Add(s.ask.Wait)
	if s.several() {
		defer func() {
			if outs == nil { // also after a panic
				s.undo(ctx, err)
			}
		}()
	} else {
		s.owe(false) // also after a panic
	}
	for len(s.outs) < len(s.names) && err == nil {
		ctx, err = s.next(ctx, parks)
	}
	if err == nil && s.several() {
		err = s.complete(ctx)
	}
	if err == nil {
		err = s.checkNewest(ctx)
	}
	if err == nil {
		if err = s.asGranted(ctx); err != nil && !s.several() {
			err = s.refused(ctx, err, false)
			s.unknown = s.unknown || fencing.Uncertain(err) // it hangs on this request
		}
	}
	if err != nil {
		return nil, err
	}
	s.granted()
	return s.outs, nil
}

// granted notes that the request has its leases, of which its client was not told yet.
func (s *Session) granted() {
	if s.owes = false; s.ask.Attach || slices.ContainsFunc(s.outs, func(out fencing.Outcome) bool { return out.Fresh }) {
		s.owe(s.ask.Attach)
	}
}

// Leases returns the leases that the request was granted, with their names.
func (s *Session) Leases() []Lease {
	leases := make([]Lease, len(s.outs))
	for i := range s.outs {
		leases[i] = Lease{s.names[i], s.outs[i]}
	}
	return leases
}

// owe notes what is taken back unless the client is told: what was granted to this request and, with
// left, whatever hangs on it. A newer request may be about to take that, of several names.
func (s *Session) owe(left bool) {
	r := fencing.TakeBackRequest{Left: left}
	if left {
		if r.Linger = s.ask.Linger; s.several() {
			r.Linger = max(r.Linger, takeOverLinger)
		}
	}
	s.owed, s.owes = r, true
}

// takeBackOf is what a take-back says of the name at i: with Left by the epoch that the request was told of it, if it was.
func (s *Session) takeBackOf(i int, r fencing.TakeBackRequest) fencing.TakeBackRequest {
	r.Name, r.Lease, r.Stamp = s.names[i], s.ask.Lease, s.ask.Stamp
	if r.Left && i < len(s.outs) && s.outs[i].Holder.Attached == r.Stamp {
		r.Epoch = s.outs[i].Holder.Epoch
	}
	return r
}

// request is the acquire of the name at i.
func (s *Session) request(i int) fencing.AcquireRequest {
	r := s.ask.AcquireRequest
	r.Name = s.names[i]
	if s.several() {
		if r.Set, r.Attach = fencing.AnyNames, s.attaching; !s.ask.Attach {
			r.Set = digest(s.names)
		}
	}
	return r
}

// next takes the next name, and waits for it. A request that waits does so in small frames: there are many.
func (s *Session) next(ctx context.Context, parks Parks) (context.Context, error) {
	waiter, lock, err := s.join(ctx)
	if waiter != nil {
		ctx = parks(s.names[len(s.outs)], waiter.Place(), lock)
		var out *fencing.Outcome
		if out, err = waiter.Wait(ctx); err == nil {
			s.got(out)
		}
	}
	if err != nil {
		err = s.refused(ctx, err, waiter != nil)
	}
	return ctx, err
}

// got notes that the request has the next name.
//
//go:noinline
func (s *Session) got(out *fencing.Outcome) { s.outs = append(s.outs, *out) }

// refused notes what is owed of a name that was not granted, and returns what to tell: the watchdog undoes
// by itself what waited, or would have.
func (s *Session) refused(ctx context.Context, err error, waited bool) error {
	switch {
	case s.several():
		return named(err, s.names[len(s.outs)])
	case ctx.Err() != nil && !waited && s.ask.Attach && fencing.CodeOf(err) == fencing.CodeUnavailable: // nobody will ask again
		s.owe(true)
	case fencing.NotReplicated(err) && s.ask.Attach: // an older stream of the lease is told that this one has it
		s.owe(true)
		s.owed.Linger = max(s.owed.Linger, takeOverLinger)
	case s.ask.Wait > 0 || !s.mayHaveGrant(ctx, err):
		s.owes, s.unknown = false, fencing.Uncertain(err)
	}
	return err
}

// Unknown reports whether the client is to be told that nothing is known, and asks again: see Unheard.
func (s *Session) Unknown() bool { return s.unknown }

// Unheard notes that the client did not hear why it was refused. One that was to be told that nothing is known will not ask
// again, so what there may be is taken back.
func (s *Session) Unheard() {
	if s.unknown {
		s.owe(s.ask.Attach)
	}
}

// join asks for the next name; there is a waiter if it has to be waited for, with the lock as it was then.
func (s *Session) join(ctx context.Context) (*watchdog.Waiter, *fencing.Lock, error) {
	r := s.request(len(s.outs))
	if r.Wait > 0 && len(s.outs) > 0 {
		r.Wait = max(time.Until(s.deadline), 1)
	}
	out, waiter, err := s.of.dog.Join(ctx, r)
	if waiter == nil && err == nil {
		s.got(&out)
	}
	return waiter, out.Lock, err
}

// mayHaveGrant reports whether an acquire that failed without a wait has to be taken back, for the store
// may have granted it all the same. It is not if its client has a lease id of its own and is
// still there: it asks again, and gets the same lease (P7). It always is if an earlier
// attempt has had no answer and may yet be carried out. What was refused because too few
// replicas had it, the watchdog has taken back.
func (s *Session) mayHaveGrant(ctx context.Context, err error) bool {
	switch e := fencing.AsError(err); {
	case e.Unanswered:
		return true
	case e.Code == fencing.CodeUnavailable, e.Code == fencing.CodeClockSkew:
		return !s.ask.Keep || ctx.Err() != nil
	}
	return false
}

// checkNewest has the store say whose the leases are of which a message says that another request has
// them: it may be late, and this request may have taken them back since. Where the store does not
// answer, that is asked again by who keeps them.
func (s *Session) checkNewest(ctx context.Context) error {
	if !s.ask.Attach {
		return nil
	}
	for {
		replaced := s.takeReplaced()
		for i, name := range replaced {
			err := s.stillNewest(ctx, slices.Index(s.names, name))
			switch {
			case err == nil:
			case fencing.Uncertain(err):
				s.keepReplaced(replaced[i:])
				return nil
			default:
				return err
			}
		}
		if len(replaced) == 0 {
			return nil
		}
	}
}

// stillNewest has the store say that the name at i hangs on this request, and notes for how long: it is renewed by that, with the
// TTL of its grant. CodeReplaced: it hangs on a newer one.
func (s *Session) stillNewest(ctx context.Context, i int) error {
	out, err := s.renew(ctx, s.names[i], 0, s.outs[i].Holder.Epoch)
	if err == nil {
		out.Fresh = s.outs[i].Fresh
		s.outs[i] = out
	}
	return err
}

// asGranted renews leases that a stream has found, and that have another TTL than that of their grant, of a renewal or for they have
// lingered. This gateway goes on with that of the grant, so they have it before their client is told.
func (s *Session) asGranted(ctx context.Context) error {
	if !s.ask.Attach {
		return nil
	}
	patience, errs := time.Now().Add(callTimeout), make([]error, len(s.outs))
	eachOf(len(s.outs), func(i int) {
		if h := &s.outs[i].Holder; h.TTL != h.GrantTTL {
			errs[i] = s.of.dog.Insist(ctx, patience, func(ctx context.Context) error { return s.stillNewest(ctx, i) })
		}
	})
	for i, err := range errs {
		if err != nil {
			return named(err, s.names[i])
		}
	}
	return nil
}

// LeaveOlder has what the lease id held before not be let go of: the client is told that nothing is known, and asks
// again. Several names are: of others of them more may be left.
func (s *Session) LeaveOlder() {
	if !s.several() {
		s.owes = s.outs[0].Fresh
		s.owed.Left = false
	}
}

// Owes reports whether anything is taken back unless the client is told that it has the leases.
func (s *Session) Owes() bool { return s.owes }

// Told notes that the client was told that it has the leases: they are not taken back any more.
func (s *Session) Told() { s.owes = false }

// Close ends the request, once. It takes back what its client was not told of, and reports whether there
// was anything. What hangs on the request it releases, or has linger, when the client has left; that
// may take until the end of the leases. What a newer request has is not touched.
func (s *Session) Close() (takenBack bool) {
	s.release()
	if s.deaf != nil {
		s.of.forget(s, s.names...)
		s.deaf()
	}
	if s.owes {
		for i := range s.names {
			s.of.takeBack(s.takeBackOf(i, s.owed))
		}
	}
	return s.owes
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
