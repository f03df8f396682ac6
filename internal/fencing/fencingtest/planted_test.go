//go:build !race

package fencingtest

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// plantedSeeds is how many random histories must be enough to find a defect.
const plantedSeeds = 300

// TestShrink shrinks a history that finds a defect: few commands are left, and as
// a case they find it as well.
func TestShrink(t *testing.T) {
	caps := twoGateways
	at := slices.IndexFunc(planted, func(d defect) bool { return d.what == "a released lease is superseded" })
	open := func(testing.TB) Backend {
		b := newModelBackend(caps)
		b.memory().step = planted[at].step
		return b
	}
	for seed := range uint64(plantedSeeds) {
		commands, err := randomHistory(t, open, caps, seed)
		if err == nil {
			continue
		}
		shrunk := shrink(t, open, caps, commands)
		if len(shrunk) > 8 { // acquire, release at once or for later, acquire, ask, and what moves the time
			t.Errorf("%d of %d commands are left", len(shrunk), len(commands))
		}
		c, err := parseCase("shrunk.txt", writeCase(t, caps, "Shrunk.", shrunk))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.run(t, openModel(caps), caps); err != nil {
			t.Errorf("Step fails: %v", err)
		}
		if err := c.run(t, open, caps); err == nil {
			t.Error("the shrunk case does not find the defect")
		}
		return
	}
	t.Fatal("no history finds the defect")
}

// plantedSets are the defects, by what the store can do in which they are planted.
var plantedSets = []struct {
	caps    Capabilities
	defects []defect
}{
	{twoGateways, slices.Concat(planted, plantedInBreaks, plantedInEvictions, plantedInQueues, plantedInClaims, plantedInQuarantines, plantedInDelays, plantedInClocks)},
	{smallStepped(twoGateways), plantedInSteps},
	{fewHoldersOf(twoGateways), plantedInHolders},
}

// TestSystemCasesFindDefects checks the suite itself: each defect, planted in a model, is found by a case.
func TestSystemCasesFindDefects(t *testing.T) {
	all, err := loadCases()
	if err != nil {
		t.Fatal(err)
	}
	eachPlanted(t, func(t *testing.T, d *defect, caps Capabilities, open func(testing.TB) Backend) {
		for _, c := range all {
			if caps.offers(c) && c.run(t, open, caps) != nil {
				return
			}
		}
		t.Error("no case finds it")
	})
}

// TestSystemHistoriesFindDefects: random histories find each defect, unless it says otherwise.
func TestSystemHistoriesFindDefects(t *testing.T) {
	eachPlanted(t, func(t *testing.T, d *defect, caps Capabilities, open func(testing.TB) Backend) {
		if d.casesOnly {
			return
		}
		for seed := range uint64(plantedSeeds) {
			if _, err := randomHistory(t, open, caps, seed); err != nil {
				t.Logf("found by history %d: %v", seed, err)
				return
			}
		}
		t.Error("no random history finds it")
	})
}

// eachPlanted calls find for each defect, with how to open a model that has it.
func eachPlanted(t *testing.T, find func(t *testing.T, d *defect, caps Capabilities, open func(testing.TB) Backend)) {
	patience = 50 * time.Millisecond // a model tells at once
	t.Cleanup(func() { patience = 5 * time.Second })
	for _, set := range plantedSets {
		for i := range set.defects {
			d := &set.defects[i]
			t.Run(d.what, func(t *testing.T) {
				t.Parallel()
				find(t, d, set.caps, func(testing.TB) Backend {
					b := newModelBackend(set.caps)
					if d.step != nil {
						b.memory().step = d.step
					}
					if d.arrive != nil {
						b.memory().arrive = d.arrive
					}
					b.wrap = d.wrap
					return b
				})
			})
		}
	}
}

// defect is a store that breaks a rule.
type defect struct {
	what      string
	step      stepFunc
	arrive    arriveFunc
	wrap      func(fencing.Store) fencing.Store
	casesOnly bool // random histories can't meet it, or too seldom
}

// overlooking has an acquire not name a field when that is what it contradicts.
func overlooking(field string, forget func(*acquireOp)) func(*moment) {
	return beforeOf(func(m *moment, op *acquireOp) {
		var err *fencing.Error
		if own := m.own(); own != nil {
			err = op.Contradicts(own.Mode, own.Limit, own.Permits, own.Owner)
		} else if p, ok := m.place(); ok {
			err = op.Contradicts(p.Ask.Mode, p.Ask.Limit, max(1, p.Ask.Permits), p.Ask.Owner)
		}
		if err != nil && err.Field == field {
			forget(op)
		}
	})
}

var planted = []defect{
	// P1 and P4: when a lease is live.
	{what: "a lease lives a microsecond longer", step: tampered(func(m *moment) {
		if h := m.holder(); h != nil && h.ExpiresAt == m.now {
			h.ExpiresAt++
			m.put(h)
		}
	}, nil)},
	{what: "a lease ends a microsecond early", step: tampered(func(m *moment) {
		if h := m.holder(); h != nil && h.ExpiresAt == m.now+1 && !m.skewed() {
			h.ExpiresAt--
			m.put(h)
		}
	}, nil)},
	{what: "a second holder is let in", step: tampered(func(m *moment) {
		if op, ok := m.op.(fencing.AcquireRequest); ok && m.holder() != nil && m.holder().Lease != op.Lease.Public() && !m.skewed() {
			delete(m.state.Records, op.Name)
		}
	}, nil)},
	{what: "an expired lease is renewed if nobody has had the name", step: tampered(func(m *moment) {
		if _, ok := m.op.(fencing.RenewRequest); ok && m.holder() != nil && !m.holder().Live(m.now) {
			h := m.holder()
			h.ExpiresAt = m.now + 1
			m.put(h)
		}
	}, nil)},
	{what: "max_hold does not bound renewals", step: tampered(nil, func(m *moment) {
		if _, ok := m.op.(fencing.RenewRequest); ok && m.out.Err == nil {
			h := m.holder()
			h.ExpiresAt = m.now.Add(h.TTL)
			m.put(h)
			m.out.Holder = h.Holder
		}
	})},
	{what: "max_hold is counted from the renewal", step: tampered(nil, func(m *moment) {
		if _, ok := m.op.(fencing.RenewRequest); ok && m.out.Err == nil && m.out.Holder.MaxHold > 0 {
			h := m.holder()
			h.ExpiresAt = m.now.Add(min(h.TTL, h.MaxHold))
			m.put(h)
			m.out.Holder = h.Holder
		}
	})},
	{what: "a renewal never shortens", step: tampered(func(m *moment) {
		if op, ok := m.op.(fencing.RenewRequest); ok && m.holder() != nil && op.TTL > 0 {
			op.TTL = max(op.TTL, m.holder().ExpiresAt.Sub(m.now))
			m.op = op
		}
	}, nil)},
	{what: "a renewal without TTL repeats the last TTL", step: tampered(func(m *moment) {
		if op, ok := m.op.(fencing.RenewRequest); ok && m.holder() != nil && op.TTL == 0 {
			op.TTL = m.holder().TTL
			m.op = op
		}
	}, nil)},
	{what: "a retry extends the lease", step: tampered(nil, func(m *moment) {
		if op, ok := m.op.(fencing.AcquireRequest); ok && m.out.Err == nil && m.holder() != nil {
			h := m.holder()
			h.ExpiresAt = max(h.ExpiresAt, m.now.Add(op.TTL))
			m.put(h)
			m.out.Holder = h.Holder
		}
	})},
	{what: "the expiry of a lease is not told", step: tampered(nil, func(m *moment) {
		if len(m.out.Ended) > 0 && m.out.Ended[0].Reason == fencing.ReasonExpired {
			m.out.Ended = nil
		}
	})},
	{what: "an expiry is dated when it is noticed", step: tampered(nil, func(m *moment) {
		for i := range m.out.Ended {
			m.out.Ended[i].At = m.now
		}
	})},

	// P2: tokens.
	{what: "the counter goes with the release", step: tampered(nil, func(m *moment) {
		if _, ok := m.op.(fencing.ReleaseRequest); ok && len(m.out.Ended) > 0 {
			m.state.Counter, m.state.Records[m.op.LockName()].LastToken = 0, 0
		}
	})},
	{what: "a lease taken back gives its token back", step: tampered(nil, func(m *moment) {
		if h := onlyHolder(m.was, m.op.LockName()); h != nil && m.holder() == nil && len(m.out.Ended) == 0 {
			m.state.Counter--
			m.state.Records[m.op.LockName()].LastToken--
		}
	})},
	{what: "tokens don't follow the clock", step: tampered(nil, func(m *moment) {
		if m.granted() {
			m.retoken(cmp.Or(m.was.Counter, 1000) + 1)
		}
	})},
	{what: "a renewal issues a token", step: tampered(nil, func(m *moment) {
		if _, ok := m.op.(fencing.RenewRequest); ok && m.out.Err == nil {
			m.retoken(m.state.Counter + 1)
		}
	})},
	{what: "the floor is ignored", casesOnly: true, step: tampered(func(m *moment) { m.guard.Floor = 0 }, nil)},
	{what: "the token equals the floor", casesOnly: true, step: tampered(func(m *moment) { m.guard.Floor-- }, nil)},

	// P3: only the holder.
	{what: "renew takes any secret", step: tampered(trustFor[fencing.RenewRequest], nil)},
	{what: "release takes any secret", step: tampered(trustFor[fencing.ReleaseRequest], nil)},
	{what: "take back takes any secret", step: tampered(trustFor[fencing.TakeBackRequest], nil)},
	{what: "a retry takes any secret", step: tampered(trustFor[fencing.AcquireRequest], nil)},
	{what: "a tombstone tells anybody", step: tampered(func(m *moment) {
		key := fencing.EndedLease{Name: m.op.LockName(), Lease: m.lease().Public()}
		if tomb, ok := m.state.Tombstones[key]; ok {
			tomb.Secret = m.lease().Hash()
			m.state.Tombstones[key] = tomb
		}
	}, nil)},
	{what: "break takes any token", step: tampered(func(m *moment) {
		if op, ok := m.op.(fencing.BreakRequest); ok && m.holder() != nil {
			op.Token = m.holder().Token
			m.op = op
		}
	}, nil)},
	{what: "break takes the last token of a free name", step: tampered(nil, func(m *moment) {
		if op, ok := m.op.(fencing.BreakRequest); ok && m.out.Err != nil && m.out.Err.Lock != nil && m.out.Err.Lock.LastToken == op.Token {
			m.out.Err = nil
		}
	})},

	// P6: taking back.
	{what: "take back ignores the stamp", step: tampered(func(m *moment) {
		if op, ok := m.op.(fencing.TakeBackRequest); ok && m.holder() != nil {
			op.Stamp = m.holder().Stamp
			m.op = op
		}
	}, nil)},
	{what: "take back ignores that another request took over", step: tampered(nil, func(m *moment) {
		if was, h := onlyHolder(m.was, m.op.LockName()), m.holder(); was != nil && h != nil && h.Stamp == "" {
			h.Stamp = was.Stamp
			m.put(h)
		}
	})},
	{what: "a gateway takes back what another one has and it does not know", step: tampered(beforeOf(func(m *moment, op *fencing.TakeBackRequest) {
		if h := m.own(); op.Unknown && h != nil {
			m.guard.Gateway = h.Gateway
		}
	}), nil)},
	{what: "a firm lease of a request that is not known is taken back", step: tampered(beforeOf(func(_ *moment, op *fencing.TakeBackRequest) { op.Unknown = false }), nil)},
	{what: "what was renewed is taken back", step: tampered(beforeOf(func(_ *moment, op *fencing.TakeBackRequest) { op.Refused = true }), nil)},
	{what: "what was renewed is not taken back from who is refused", step: tampered(beforeOf(func(_ *moment, op *fencing.TakeBackRequest) { op.Refused = false }), nil)},
	{what: "the last request may take back, not the one that was granted", step: tampered(nil, func(m *moment) {
		if op, ok := m.op.(fencing.AcquireRequest); ok && m.out.Err == nil && m.holder() != nil {
			h := m.holder()
			h.Stamp = op.Stamp
			m.put(h)
		}
	})},
	{what: "taking back leaves a tombstone", step: tampered(nil, func(m *moment) {
		if h := onlyHolder(m.was, m.op.LockName()); h != nil && m.holder() == nil && len(m.out.Ended) == 0 {
			m.state.Tombstones[fencing.EndedLease{Name: m.op.LockName(), Lease: h.Lease}] = fencing.Tombstone{
				Secret: h.Secret, Token: h.Token, Reason: fencing.ReasonReleased, At: m.now, Until: m.now.Add(fencing.TombstoneTTL)}
		}
	})},
	{what: "taking back is told as a release", step: tampered(nil, func(m *moment) {
		if h := onlyHolder(m.was, m.op.LockName()); h != nil && m.holder() == nil && len(m.out.Ended) == 0 {
			m.out.Ended = []fencing.Ended{{Name: m.op.LockName(), Holder: h.Holder, Reason: fencing.ReasonReleased, At: m.now}}
		}
	})},

	// Contradictions.
	{what: "another mode is not noticed", step: tampered(overlooking("mode", func(op *acquireOp) { op.Mode, op.Limit = "", 0 }), nil)},
	{what: "another limit is not noticed", step: tampered(overlooking("limit", func(op *acquireOp) { op.Limit = 0 }), nil)},
	{what: "other permits are not noticed", step: tampered(overlooking("permits", func(op *acquireOp) { op.Permits = 0 }), nil)},
	{what: "another owner is not noticed", step: tampered(overlooking("owner", func(op *acquireOp) { op.Owner = "" }), nil)},
	{what: "a gateway that asks again contradicts itself", step: tampered(nil, afterOf(func(m *moment, op acquireOp) {
		if own := m.own(); op.Again && own != nil {
			op.Again = false
			if err := op.Contradicts(own.Mode, own.Limit, own.Permits, own.Owner); err != nil {
				m.out = fencing.Outcome{Now: m.now, Err: err}
			}
		}
	}))},
	{what: "a contradiction takes a place over", step: tampered(nil, func(m *moment) {
		if p, ok := m.place(); ok && m.out.Code() == fencing.CodeConflict {
			m.out.Replaced = &fencing.Parked{Gateway: p.Gateway, Stamp: p.Stamp}
		}
	})},

	// P7: retries and tombstones.
	{what: "every acquire is fresh", step: tampered(nil, func(m *moment) {
		if _, ok := m.op.(fencing.AcquireRequest); ok && m.out.Err == nil && m.holder() != nil {
			m.out.Fresh = true
		}
	})},
	{what: "a repeated request is not fresh", step: tampered(nil, func(m *moment) { m.out.Fresh = m.granted() })},
	{what: "a retry is refused as held", step: tampered(nil, func(m *moment) {
		if _, ok := m.op.(fencing.AcquireRequest); ok && m.out.Err == nil && !m.granted() {
			m.out.Err = &fencing.Error{Code: fencing.CodeLocked, Lock: m.state.View(m.op.LockName(), m.now, fencing.Guard{}, false)}
		}
	})},
	{what: "a retried release is lost", step: tampered(nil, func(m *moment) {
		if _, ok := m.op.(fencing.ReleaseRequest); ok && m.out.Err == nil && len(m.out.Ended) == 0 {
			m.out.Err = &fencing.Error{Code: fencing.CodeLeaseLost, Reason: fencing.ReasonReleased}
		}
	})},
	{what: "an ended lease id is granted again", step: tampered(func(m *moment) {
		if _, ok := m.op.(fencing.AcquireRequest); ok && m.holder() == nil && !m.skewed() {
			delete(m.state.Tombstones, fencing.EndedLease{Name: m.op.LockName(), Lease: m.lease().Public()})
		}
	}, nil)},
	{what: "a tombstone lasts a minute", step: tampered(nil, func(m *moment) {
		m.tombs(func(tomb fencing.Tombstone) fencing.Tombstone { tomb.Until = tomb.At.Add(time.Minute); return tomb })
	})},
	{what: "a tombstone lasts a microsecond less", step: tampered(nil, func(m *moment) {
		m.tombs(func(tomb fencing.Tombstone) fencing.Tombstone { tomb.Until--; return tomb })
	})},
	{what: "a tombstone does not wait for the former end", step: tampered(nil, func(m *moment) {
		m.tombs(func(tomb fencing.Tombstone) fencing.Tombstone {
			tomb.Until = tomb.At.Add(fencing.TombstoneTTL)
			return tomb
		})
	})},
	{what: "a tombstone lasts from when the end is noticed", step: tampered(nil, func(m *moment) {
		m.tombs(func(tomb fencing.Tombstone) fencing.Tombstone {
			tomb.Until = max(tomb.Until, m.now.Add(fencing.TombstoneTTL))
			return tomb
		})
	})},
	{what: "broken leases are not remembered", step: tampered(nil, func(m *moment) {
		if r := m.state.Records[m.op.LockName()]; r != nil {
			r.Broken = nil
		}
	})},
	{what: "seven broken leases are remembered", step: tampered(nil, func(m *moment) {
		if r := m.state.Records[m.op.LockName()]; r != nil && len(r.Broken) > 7 {
			r.Broken = r.Broken[len(r.Broken)-7:]
		}
	}), casesOnly: true},
	{what: "nine broken leases are remembered", step: tampered(nil, func(m *moment) {
		r, was := m.state.Records[m.op.LockName()], m.was.Records[m.op.LockName()]
		if r != nil && was != nil && len(was.Broken) == 8 && was.Broken[0] != r.Broken[0] {
			r.Broken = append(was.Broken[:1:1], r.Broken...)
		}
	}), casesOnly: true},

	// P8: what a refusal says.
	{what: "late is not told", step: tampered(nil, func(m *moment) {
		if m.out.Err != nil {
			m.out.Err.Late = 0
		}
	})},
	{what: "superseded is told as expired", step: tampered(nil, func(m *moment) {
		if m.out.Err != nil && m.out.Err.Reason == fencing.ReasonSuperseded {
			m.out.Err.Reason, m.out.Err.CurrentToken = fencing.ReasonExpired, 0
		}
	})},
	{what: "a released lease is superseded", step: tampered(nil, func(m *moment) {
		if r := m.state.Records[m.op.LockName()]; m.out.Err != nil && m.out.Err.Reason == fencing.ReasonReleased && r != nil && r.Holders.Len() > 0 {
			m.out.Err.Reason, m.out.Err.CurrentToken = fencing.ReasonSuperseded, r.LastToken
		}
	})},
	{what: "the newer token is the loser's own", step: tampered(nil, func(m *moment) {
		if m.out.Err != nil && m.out.Err.CurrentToken != 0 {
			m.out.Err.CurrentToken = m.state.Tombstones[fencing.EndedLease{Name: m.op.LockName(), Lease: m.lease().Public()}].Token
		}
	})},
	{what: "a refusal does not say when to come back", step: tampered(nil, func(m *moment) {
		if m.out.Err != nil {
			m.out.Err.RetryAfter = 0
		}
	})},
	{what: "a refusal does not say who holds", step: tampered(nil, func(m *moment) {
		if m.out.Err != nil && m.out.Err.Lock != nil {
			m.out.Err.Lock.Holders = nil
		}
	})},
	{what: "a refusal hides an expiry", step: tampered(nil, func(m *moment) {
		if m.out.Err != nil {
			m.out.Ended = nil
		}
	})},
	{what: "the margin is that after the renewal", step: tampered(nil, func(m *moment) {
		if m.out.Margin != 0 {
			m.out.Margin = m.out.Holder.ExpiresAt.Sub(m.now)
		}
	})},

	// Records.
	{what: "metadata is lost", step: tampered(func(m *moment) {
		if op, ok := m.op.(fencing.AcquireRequest); ok {
			op.Metadata = nil
			m.op = op
		}
	}, nil)},
	{what: "a name is forgotten an hour after its last lease", step: tampered(nil, func(m *moment) {
		if r, was := m.state.Records[m.op.LockName()], m.was.Records[m.op.LockName()]; r != nil && was != nil && r.Holders.Len() < was.Holders.Len() {
			r.ForgetAt = m.now.Add(time.Hour)
		}
	})},
	{what: "a name is never forgotten", step: tampered(nil, func(m *moment) {
		if r := m.state.Records[m.op.LockName()]; r != nil && r.Holders.Len() == 0 {
			r.ForgetAt = m.now.Add(100 * 24 * time.Hour)
		}
	})},
	{what: "an expired lease is shown until it is noticed", step: tampered(nil, func(m *moment) {
		if h := m.holder(); m.out.Lock != nil && h != nil && !m.out.Lock.Held() {
			m.out.Lock.Holders = []fencing.Holder{h.Holder}
		}
	})},
	{what: "a look ends leases", step: tampered(func(m *moment) {
		if _, ok := m.op.(fencing.InspectRequest); ok {
			fencing.Step(m.state, m.now, m.guard, fencing.ExpireRequest{Name: m.op.LockName()})
		}
	}, nil)},

	// Skew.
	{what: "skew is not looked at", step: tampered(func(m *moment) { m.guard.Sent = 0 }, nil)},
	{what: "the skew allowed is refused", step: tampered(func(m *moment) { m.guard.MaxSkew -= time.Microsecond }, nil)},
	{what: "a microsecond more of skew is allowed", step: tampered(func(m *moment) { m.guard.MaxSkew += time.Microsecond }, nil)},
	{what: "a gateway that is behind is not skewed", step: tampered(func(m *moment) { m.guard.Sent = max(m.guard.Sent, m.now) }, nil)},
	{what: "while the clocks differ everything is refused", step: tampered(nil, func(m *moment) {
		if m.skewed() && m.out.Lock == nil {
			*m.state = *m.was
			m.out = fencing.Outcome{Now: m.now, Err: &fencing.Error{Code: fencing.CodeClockSkew}}
		}
	})},
	{what: "while the clocks differ an expiry is judged", step: tampered(func(m *moment) {
		if _, acquires := m.op.(fencing.AcquireRequest); !acquires {
			m.guard.Sent = 0
		}
	}, nil)},
	{what: "while the clocks differ the unknown is called lost", step: tampered(nil, func(m *moment) {
		if _, ok := m.op.(fencing.RenewRequest); ok && m.out.Code() == fencing.CodeClockSkew {
			m.out.Err = &fencing.Error{Code: fencing.CodeLeaseLost, Reason: fencing.ReasonUnknown}
		}
	})},
	{what: "while the clocks differ a renewal counts from the gateway's clock", step: tampered(nil, afterOf(func(m *moment, _ renewOp) {
		if m.skewed() && m.guard.Sent > m.now {
			h := m.own()
			h.ExpiresAt = m.guard.Sent.Add(h.TTL)
			m.put(h)
		}
	}))},
	{what: "while the clocks differ a renewal is no TTL in use", step: noted(func(m *moment) bool { return m.skewed() }), casesOnly: true},
	{what: "while the clocks differ a retry is answered", step: tampered(func(m *moment) {
		if op, ok := m.op.(fencing.AcquireRequest); ok && m.holder() != nil && m.holder().Lease == op.Lease.Public() {
			m.guard.Sent = 0
		}
	}, nil)},

	// Above Step.
	{what: "the list is not sorted", wrap: above(defective{list: func(p *fencing.ListPage, _ fencing.ListRequest) {
		if n := len(p.Locks); n > 1 {
			p.Locks[0], p.Locks[n-1] = p.Locks[n-1], p.Locks[0]
		}
	}})},
	{what: "the list ends with the first page", wrap: above(defective{list: func(p *fencing.ListPage, _ fencing.ListRequest) { p.Next = "" }})},
	{what: "a page starts with the last of the one before", wrap: above(defective{ask: func(r *fencing.ListRequest) {
		if n := len(r.After); n > 0 {
			r.After = r.After[:n-1]
		}
	}})},
	{what: "the list has one lock too many", wrap: above(defective{ask: func(r *fencing.ListRequest) { r.Limit++ }})},
	{what: "the query is not looked at", wrap: above(defective{ask: func(r *fencing.ListRequest) { r.Query = "" }})},
	{what: "the prefix ends at a slash", wrap: above(defective{ask: func(r *fencing.ListRequest) {
		if r.Prefix != "" && r.Prefix[len(r.Prefix)-1] != '/' {
			r.Prefix += "/"
		}
	}})},
	{what: "the list shows no metadata", wrap: above(defective{list: func(p *fencing.ListPage, _ fencing.ListRequest) {
		for i := range p.Locks {
			p.Locks[i].Holders = []fencing.Holder{p.Locks[i].Holders[0]}
			p.Locks[i].Holders[0].Metadata = ""
		}
	}})},
	{what: "expire ignores its limit", wrap: above(defective{limit: func(int) int { return 100 }})},
	{what: "expire is done after one lease", wrap: above(defective{
		limit:  func(int) int { return 1 },
		expiry: func(e *fencing.Expiry) { e.Next = max(e.Next, time.Second) },
	})},
	{what: "expire comes again too late", wrap: above(defective{expiry: func(e *fencing.Expiry) {
		if e.Next > 0 {
			e.Next += time.Microsecond
		}
	}})},
	{what: "expire comes again at once for nothing", wrap: above(defective{expiry: func(e *fencing.Expiry) { e.Next = 0 }})},
	{what: "expire does not tell all it ended", wrap: above(defective{expiry: func(e *fencing.Expiry) {
		if len(e.Ended) > 0 {
			e.Ended = e.Ended[1:]
		}
	}})},
	{what: "expire leaves the work to nobody", wrap: above(defective{
		limit:  func(int) int { return 0 },
		expiry: func(e *fencing.Expiry) { *e = fencing.Expiry{Standby: true, Next: time.Second} },
	})},
	{what: "expire is silent while the clocks differ", wrap: above(defective{silent: true})},
	{what: "the count is one too high", wrap: above(defective{stats: func(s *fencing.Stats) { s.Held++ }})},
	{what: "an error is none of ours", wrap: above(defective{err: func(error) error { return fmt.Errorf("oops") }})},
	{what: "what can't be told is called lost", wrap: above(defective{err: func(err error) error {
		if codeOf(err) == fencing.CodeClockSkew {
			return &fencing.Error{Code: fencing.CodeLeaseLost, Reason: fencing.ReasonUnknown}
		}
		return err
	}})},
}
