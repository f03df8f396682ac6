package history

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/verify/system"
)

const ms = time.Millisecond

// script builds a history by hand, times in milliseconds.
type script struct{ h History }

func (s *script) add(sent, done int, op Op) *Op {
	op.ID = len(s.h.Ops) + 1
	op.Sent, op.Done = Time(sent)*ms, Time(done)*ms
	if op.Call == 0 {
		op.Call = op.ID
	}
	if op.Names == nil {
		op.Names = []string{"n"}
	}
	if op.Lease == "" && op.Owner != "" {
		op.Lease = op.Owner + ".secret"
	}
	s.h.End = max(s.h.End, op.Done)
	s.h.Ops = append(s.h.Ops, op)
	return &s.h.Ops[len(s.h.Ops)-1]
}

// grant is an acquire that was granted, with 100 ms of TTL.
func (s *script) grant(sent, done int, owner string, token int64, more ...Op) *Op {
	op := Op{}
	if len(more) > 0 {
		op = more[0]
	}
	op.Verb, op.Verdict, op.Owner, op.Status, op.TTL = Acquire, Granted, owner, 201, cmp.Or(op.TTL, 100*ms)
	op.Mode, op.Hold = cmp.Or(op.Mode, "exclusive"), cmp.Or(op.Hold, 1)
	var slots []int
	if op.Limit > 0 {
		slots = []int{op.Limit - 1 - int(token%2)}
	}
	if op.Permits > 1 {
		slots = make([]int, op.Permits)
		for i := range slots {
			slots[i] = i
		}
	}
	added := s.add(sent, done, op)
	added.Grants = []Grant{{Name: "n", Token: token, Slots: slots, Hold: op.Hold, Left: op.TTL, Deadline: added.Sent + op.TTL}}
	return added
}

func (s *script) renew(sent, done int, owner string, token int64, mode string) *Op {
	op := s.add(sent, done, Op{Verb: Renew, Verdict: Granted, Owner: owner, Status: 200, TTL: 100 * ms, Mode: mode})
	op.Grants = []Grant{{Name: "n", Token: token, Hold: 1, Left: op.TTL, Deadline: op.Sent + op.TTL}}
	return op
}

func (s *script) does(sent, done int, verb Verb, owner string, verdict Verdict, more ...Op) *Op {
	op := Op{}
	if len(more) > 0 {
		op = more[0]
	}
	op.Verb, op.Owner, op.Verdict, op.TTL = verb, owner, verdict, 100*ms
	return s.add(sent, done, op)
}

// looks has somebody look every 100 ms, who sees an exclusive holder and some waiters.
func (s *script) looks(from, until int, holder string, waiters ...string) {
	look := Look{}
	if holder != "" {
		look.Holders = []Shown{{Owner: holder}}
	}
	for _, waiter := range waiters {
		look.Waiters = append(look.Waiters, Shown{Owner: waiter})
	}
	s.shows(from, until, look)
}

func (s *script) shows(from, until int, look Look) {
	look.Name = "n"
	for at := from; at <= until; at += 100 {
		look.Sent, look.Done = Time(at)*ms, Time(at+1)*ms
		s.h.Looks = append(s.h.Looks, look)
		s.h.End = max(s.h.End, look.Done)
	}
}

var (
	killed = Trouble{What: "gateway-kill", From: 10 * ms, Until: 1000 * ms, Calm: 5000 * ms, Restart: true, Killed: true}
	shared = Op{Mode: "shared"}
	two    = Op{Mode: "shared", Limit: 2}
)

// checkCase is a history, and what the checker says of it.
type checkCase struct {
	what    string
	promise string // empty: legal
	rules   func(*Rules)
	make    func(*script)
}

func (c checkCase) run(t *testing.T) {
	rules := RulesOf(system.Redis)
	rules.Kept = 0
	if c.rules != nil {
		c.rules(&rules)
	}
	s := &script{}
	c.make(s)
	slices.SortStableFunc(s.h.Ops, func(a, b Op) int { return cmp.Compare(a.ID, b.ID) })
	var promises []string
	found := Check(&s.h, rules, t.TempDir())
	for _, v := range found {
		promises = append(promises, v.Promise)
		if v.Promise == "order" && v.Picture == "" {
			t.Error("there is no picture")
		}
	}
	if got := strings.Join(slices.Compact(promises), " "); got != c.promise {
		t.Errorf("found %q, want %q: %v", got, c.promise, found)
	}
}

func checkCases(t *testing.T, cases []checkCase) {
	for _, c := range cases {
		t.Run(c.what, c.run)
	}
}

func ofQuorum(r *Rules) { *r = RulesOf(system.Quorum) }

func ofEmbedded(r *Rules) { *r = RulesOf(system.Embedded) }
