package raft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/hashicorp/raft"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// errand says what a message asks for.
type errand int

const (
	errandBatch     errand = iota + 1 // carry out Batch
	errandHeartbeat                   // the same of Names
	errandExpire                      // the same of up to Limit names
	errandLook                        // answer Op, which only looks
	errandList
	errandStats
	errandCheck
	errandTold  // hear of Told
	errandStill // say whether Term is still the current one

	errandDigest  errand = 20 // say what entry Index has come to
	errandDiffers errand = 21 // stop: it has come to something else than at most nodes
	errandRules   errand = 22 // say which rules are known; an earlier version does not do it
)

// message is what a node asks another one, of its leader but for errandTold and what comes behind it.
type message struct {
	Version int    `cbor:"1,keyasint"`
	Errand  errand `cbor:"2,keyasint"`
	Term    uint64 `cbor:"3,keyasint,omitempty"` // in which whoever is asked leads: in no other one it answers
	Address string `cbor:"4,keyasint,omitempty"` // of the gateway of Batch; empty: that of whoever is asked

	// Batch is what is asked for. Of its gateway's batches none below Floor, and none of
	// Gone, is to be carried out any more: they may be on their way still, and what undoes
	// them may be in this one.
	Batch machine.Batch `cbor:"5,keyasint,omitempty"`
	Floor uint64        `cbor:"6,keyasint,omitempty"`
	Gone  []uint64      `cbor:"7,keyasint,omitempty"`

	Names []fencing.Name       `cbor:"8,keyasint,omitempty"`
	Limit int                  `cbor:"9,keyasint,omitempty"`
	Op    cbor.RawMessage      `cbor:"10,keyasint,omitempty"`
	List  *fencing.ListRequest `cbor:"11,keyasint,omitempty"`
	Told  []machine.Told       `cbor:"12,keyasint,omitempty"`
	Nonce uint64               `cbor:"13,keyasint,omitempty"` // of errandStill, which the answer repeats
	After fencing.Name         `cbor:"14,keyasint,omitempty"` // of a heartbeat: entries of names behind it are asked for
	Index uint64               `cbor:"20,keyasint,omitempty"`
	Wall  int64                `cbor:"21,keyasint,omitempty"` // the instant of the newest wallStep of who asks
	Walls machine.WallSteps    `cbor:"22,keyasint,omitempty"` // the last ones, of Told
}

// verdict says what became of a message.
type verdict int

const (
	done    verdict = iota + 1
	refused         // nothing was done, and nothing will be: ask again, perhaps somebody else
	unknown         // it may have been done, or be done yet
)

// answer is what a message is answered.
type answer struct {
	Version int     `cbor:"1,keyasint"`
	Verdict verdict `cbor:"2,keyasint"`

	Outcomes []fencing.Outcome `cbor:"3,keyasint,omitempty"` // of the operations of a batch, or of Op; with unknown: why asking again is of no use
	Entries  []fencing.Entry   `cbor:"4,keyasint,omitempty"`
	Expiry   fencing.Expiry    `cbor:"5,keyasint,omitempty"`
	Page     fencing.ListPage  `cbor:"6,keyasint,omitempty"`
	Stats    fencing.Stats     `cbor:"7,keyasint,omitempty"`
	Told     []machine.Told    `cbor:"9,keyasint,omitempty"` // of grants to waiters of the gateway that asks
	Nonce    uint64            `cbor:"10,keyasint,omitempty"`
	Holders  []fencing.Holder  `cbor:"11,keyasint,omitempty"` // whom outcomes show
	Shown    []shown           `cbor:"12,keyasint,omitempty"` // where; not of those that have them themselves
	More     fencing.Name      `cbor:"13,keyasint,omitempty"` // there are more entries, of names behind it
	Removed  bool              `cbor:"14,keyasint,omitempty"` // it is refused, for who asks is no member
	Digest   uint64            `cbor:"20,keyasint,omitempty"`
	Walls    machine.WallSteps `cbor:"21,keyasint,omitempty"` // which who asks does not have
	Rules    int               `cbor:"22,keyasint,omitempty"` // the newest that are known
	Of       string            `cbor:"23,keyasint,omitempty"` // the version of the gateway that says Digest
	Leaves   bool              `cbor:"24,keyasint,omitempty"` // who says Digest is about to stop
}

// call sends a message to a node, and returns its answer: after an error nothing is known.
func (s *Store) call(ctx context.Context, address string, m *message) (*answer, error) {
	m.Version, m.Wall = machine.Format, s.fsm.wall.steps().Newest()
	request, err := machine.Encoding.Marshal(m)
	if err != nil {
		return nil, err
	}
	b, err := s.calls.Call(ctx, address, request)
	if err != nil {
		return nil, err
	}
	var a answer
	if err := machine.Lenient.Unmarshal(b, &a); err != nil {
		return nil, fmt.Errorf("an answer can't be read: %w", err)
	}
	if a.Version != machine.Format {
		return nil, fmt.Errorf("an answer has version %d; this version reads version %d", a.Version, machine.Format)
	}
	if err := a.unpack(); err != nil {
		return nil, err
	}
	s.fsm.wall.hear(a.Walls)
	return &a, nil
}

// told returns what the gateway of a message is to hear with its answer, before it carries
// out the entry itself.
func (m *message) told(results []machine.Result) []machine.Told {
	return machine.ToldOf(fencing.Gateway(m.Batch.Gateway), results)
}

// hear tells the Listener what came with an answer.
func (s *Store) hear(a *answer, asked time.Time) {
	for i := range a.Told {
		a.Told[i].Asked = asked
		s.fsm.hearEarly(&a.Told[i])
	}
}

// handle answers another node.
func (s *Store) handle(ctx context.Context, request []byte) ([]byte, error) {
	var m message
	if err := machine.Lenient.Unmarshal(request, &m); err != nil {
		return nil, fmt.Errorf("a request can't be read by this version: %w", err)
	}
	if m.Version != machine.Format {
		return nil, fmt.Errorf("a request has version %d; this version reads version %d", m.Version, machine.Format)
	}
	a, err := s.serve(ctx, &m)
	if err != nil {
		return nil, err
	}
	a.Version = machine.Format
	a.pack(m.After, mostSent)
	return machine.Encoding.Marshal(a)
}

// errRefused says that nothing was done.
var errRefused = errors.New("the node asked does not lead in this term")

// serve does what a message asks for.
func (s *Store) serve(ctx context.Context, m *message) (*answer, error) {
	switch m.Errand {
	case errandTold:
		s.fsm.wall.hear(m.Walls)
		for i := range m.Told {
			s.fsm.hearEarly(&m.Told[i])
		}
		return &answer{Verdict: done}, nil
	case errandStill:
		if s.raft.CurrentTerm() != m.Term {
			return &answer{Verdict: refused}, nil
		}
		return &answer{Verdict: done, Nonce: m.Nonce}, nil
	case errandDigest:
		return s.serveDigest(ctx, m)
	case errandDiffers:
		return s.serveDiffers(m)
	case errandRules:
		_, known := s.Rules()
		return &answer{Verdict: done, Rules: known}, nil
	}
	l := s.leading.Load()
	if l == nil || l.term != m.Term {
		return &answer{Verdict: refused}, nil
	}
	if m.Address != "" && !s.hasMember(m.Address) {
		return &answer{Verdict: refused, Removed: true}, nil
	}
	var a *answer
	var err error
	switch m.Errand {
	case errandBatch:
		a, err = s.serveBatch(ctx, m)
	case errandHeartbeat:
		a, err = s.serveHeartbeat(ctx, l, m)
	case errandExpire:
		a, err = s.serveExpire(ctx, l, m)
	case errandLook, errandList, errandStats, errandCheck:
		a, err = s.serveRead(ctx, l, m)
	default:
		return nil, fmt.Errorf("a request is of kind %d, which this version does not know", m.Errand)
	}
	switch {
	case errors.Is(err, errRefused):
		return &answer{Verdict: refused}, nil
	case err != nil:
		a = &answer{Verdict: unknown}
		if _, panicked := errors.AsType[*machine.Panic](err); panicked {
			a.Outcomes = []fencing.Outcome{{Err: fencing.BrokenError(0)}}
		}
		return a, nil
	}
	a.Verdict, a.Walls = done, s.fsm.wall.steps().Since(m.Wall)
	return a, nil
}

// hasMember reports whether the node at an address is a member, with a vote or without. Once its removal is committed no
// leader has it that can answer anything: who is elected has that entry, and who led before can commit nothing.
func (s *Store) hasMember(address string) bool {
	config := s.raft.GetConfiguration()
	return config.Error() == nil && slices.ContainsFunc(config.Configuration().Servers, func(m raft.Server) bool {
		return m.Address == raft.ServerAddress(address)
	})
}

// serveBatch carries out a batch of another gateway, but for operations that this version can't read: in the log they
// would end every node.
func (s *Store) serveBatch(ctx context.Context, m *message) (*answer, error) {
	all := m.Batch.Ops
	refusals := make([]*fencing.Error, len(all))
	m.Batch.Ops = nil
	for i, op := range all {
		if err := readable(op); err != nil {
			refusals[i] = &fencing.Error{Code: fencing.CodeUnavailable, Detail: err.Error()}
		} else {
			m.Batch.Ops = append(m.Batch.Ops, op)
		}
	}
	results, err := s.request(ctx, m.Batch, func() bool { return s.sessions.admit(m) })
	if err != nil {
		return nil, err
	}
	a := &answer{Outcomes: make([]fencing.Outcome, len(all)), Told: m.told(results)}
	for i := range all {
		if a.Outcomes[i].Err = refusals[i]; refusals[i] == nil {
			a.Outcomes[i], results = results[0].Out, results[1:]
		}
	}
	return a, nil
}

// readable returns why an operation can't be read, nil if it can.
func readable(op cbor.RawMessage) error {
	if err := machine.Readable(op); err != nil {
		return fmt.Errorf("the leader has another version than this gateway, which can't read what it was asked for, and has not done it: %w", err)
	}
	return nil
}

// serveHeartbeat carries out a heartbeat, and what is due on the names that it is for.
func (s *Store) serveHeartbeat(ctx context.Context, l *leadership, m *message) (*answer, error) {
	m.Batch.Ops = append(m.Batch.Ops, machine.Beat())
	now := l.clock()
	for _, name := range look(s.fsm, func(of *machine.Machine) []fencing.Name { return of.DueAmong(m.Names, now) }) {
		m.Batch.Ops = append(m.Batch.Ops, machine.EncodeOp(fencing.ExpireRequest{Name: name}))
	}
	results, err := s.request(ctx, m.Batch, func() bool { return s.sessions.meet(m) })
	if err != nil {
		return nil, err
	}
	return &answer{Entries: results[0].Entries, Told: m.told(results)}, nil
}

// serveExpire does what is due. While the leader's own gateway does that, another one need
// not.
func (s *Store) serveExpire(ctx context.Context, l *leadership, m *message) (*answer, error) {
	if own := fencing.Gateway(m.Batch.Gateway) == s.fsm.self; own {
		s.reaped.Store(s.sinceOpen())
	} else if last := s.reaped.Load(); last != 0 && s.sinceOpen()-last < int64(2*tickEvery) {
		return &answer{Expiry: fencing.Expiry{Next: tickEvery, Standby: true}}, nil
	}
	now, wall := l.time()
	m.Batch.Ops = append(m.Batch.Ops, s.fsm.due(now, wall, m.Limit)...)
	a := &answer{}
	if len(m.Batch.Ops) > 0 {
		results, err := s.request(ctx, m.Batch, func() bool { return s.sessions.meet(m) })
		if err != nil {
			return nil, err
		}
		a.Told = m.told(results)
		for i := range results {
			a.Expiry.Ended = append(a.Expiry.Ended, results[i].Out.Ended...)
		}
	}
	a.Expiry.Next = s.fsm.nextDue(l.clock())
	return a, nil
}
