package fencing_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// busy is a name that some clients use again and again: each thinks, waits for it and holds it
// for as long as it likes. Time moves by itself.
type busy struct {
	t     *testing.T
	dice  *rand.Rand
	state *fencing.State
	now   fencing.Instant
	next  map[int]fencing.Instant // client -> when it asks, or lets go
	asks  map[int]fencing.AcquireRequest
	told  map[int]time.Duration // what it was told when it began to wait, 0 nothing
	began map[int]fencing.Instant
	made  int

	ask         func(client int) (mode fencing.Mode, limit, permits int)
	hold, think func() time.Duration

	waits, silent, good int // those that have ended; of those: nothing was told; within half and double
}

// run lets so many clients take turns until so many waits have ended.
func (b *busy) run(clients, waits int) {
	b.dice = rand.New(rand.NewPCG(1, 2))
	b.state, b.now = fencing.NewState(), fencingtest.Epoch
	b.next, b.asks, b.told, b.began = map[int]fencing.Instant{}, map[int]fencing.AcquireRequest{}, map[int]time.Duration{}, map[int]fencing.Instant{}
	for client := range clients {
		b.next[client] = b.now.Add(b.think())
	}
	for b.waits < waits {
		client, at := -1, fencing.Instant(0)
		for c := range clients {
			if when, is := b.next[c]; is && (client < 0 || when < at) {
				client, at = c, when
			}
		}
		b.now = max(b.now+1, at)
		if ask, has := b.asks[client]; has {
			delete(b.asks, client)
			b.next[client] = b.now.Add(b.think())
			b.granted(b.step(fencing.ReleaseRequest{Name: "a", Lease: ask.Lease}))
			continue
		}
		b.join(client)
	}
}

func (b *busy) step(op fencing.Op) fencing.Outcome {
	out := fencing.Step(b.state, b.now, fencing.Guard{Gateway: "1"}, op)
	if out.Err != nil {
		b.t.Fatal(out.Err)
	}
	return out
}

func (b *busy) join(client int) {
	r := acquire(b.t, "a", b.made)
	b.made++
	r.Wait, r.TTL = time.Hour, time.Hour
	r.Mode, r.Limit, r.Permits = b.ask(client)
	b.asks[client] = r
	delete(b.next, client)
	history := b.step(fencing.HistoryRequest{Name: "a"})
	out := b.step(r)
	b.granted(out)
	if out.Waits() {
		pace := fencing.PaceOf(history.Lock, history.Past)
		b.told[client], b.began[client] = pace.Wait(out.Lock, r.Mode, r.Limit, r.Permits, out.Place.Position), b.now
	}
}

func (b *busy) granted(out fencing.Outcome) {
	for _, g := range out.Granted {
		for client, ask := range b.asks {
			if ask.Lease.Public() != g.Holder.Lease {
				continue
			}
			b.next[client] = b.now.Add(b.hold())
			began, waited := b.began[client]
			if !waited {
				continue
			}
			took, told := b.now.Sub(began), b.told[client]
			delete(b.began, client)
			b.waits++
			if told == 0 {
				b.silent++
			} else if told <= 2*took && took <= 2*told {
				b.good++
			}
		}
	}
}

// TestPace: over a thousand waits behind holders that take 5 to 500 ms, at least four of five
// take from half of what was estimated to twice that.
func TestPace(t *testing.T) {
	exclusive := func(int) (fencing.Mode, int, int) { return fencing.ModeExclusive, 0, 0 }
	for _, test := range []struct {
		name    string
		clients int
		ask     func(int) (mode fencing.Mode, limit, permits int)
		think   time.Duration // at most
	}{
		{"a short queue", 5, exclusive, 300 * time.Millisecond},
		{"a queue of many lengths", 12, exclusive, 4 * time.Second},
		{"a long queue", 40, exclusive, 300 * time.Millisecond},
		{"permits", 40, func(int) (fencing.Mode, int, int) { return fencing.ModeShared, 5, 0 }, 300 * time.Millisecond},
		{"all permits among some", 24, func(client int) (fencing.Mode, int, int) {
			return fencing.ModeShared, 8, []int{8, 1}[min(client%6, 1)]
		}, 300 * time.Millisecond},
		{"permits of many weights", 24, func(client int) (fencing.Mode, int, int) {
			return fencing.ModeShared, 20, 1 + 3*(client%6)
		}, 300 * time.Millisecond},
		{"a writer among readers", 24, func(client int) (fencing.Mode, int, int) {
			return []fencing.Mode{fencing.ModeExclusive, fencing.ModeShared}[min(client%6, 1)], 0, 0
		}, 300 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := &busy{t: t, ask: test.ask}
			b.hold = func() time.Duration { return 5*time.Millisecond + b.upTo(495*time.Millisecond) }
			b.think = func() time.Duration { return b.upTo(test.think) }
			b.run(test.clients, 1000)
			t.Logf("%d waits: %d were told nothing, %.1f %% were within half and double", b.waits, b.silent, 100*float64(b.good)/float64(b.waits))
			if 5*b.good < 4*b.waits {
				t.Errorf("of %d waits %d took from half of the estimate to twice that", b.waits, b.good)
			}
		})
	}
}

// upTo returns a time below most.
func (b *busy) upTo(most time.Duration) time.Duration {
	return time.Duration(b.dice.Int64N(int64(most)))
}

// past is leases one after the other, the newest first, that were held for so long each.
func past(held ...time.Duration) (all []fencing.Ended) {
	at := fencingtest.Epoch
	for _, d := range held {
		all = append(all, fencing.Ended{At: at, Holder: fencing.Holder{AcquiredAt: at.Add(-d)}})
		at = at.Add(-d - time.Minute)
	}
	return all
}

func TestPaceTellsWhatIsKnown(t *testing.T) {
	const s, m = time.Second, time.Minute
	lock := held(m, 4*s, m)
	permits := held(m, 4*s, m)
	permits.Holders[0].Mode, permits.Holders[0].Limit, permits.Holders[0].Permits = fencing.ModeShared, 3, 1
	permits.Holders, permits.HolderCount = append(permits.Holders, permits.Holders[0]), 2
	weighted := held(m, 4*s, m)
	weighted.Holders[0].Mode, weighted.Holders[0].Limit, weighted.Holders[0].Permits = fencing.ModeShared, 5, 1
	other := weighted.Holders[0]
	other.AcquiredAt, other.Permits = other.AcquiredAt.Add(2*s), 3
	weighted.Holders, weighted.HolderCount = append(weighted.Holders, other), 2
	lowered := permits
	lowered.Holders = slices.Clone(permits.Holders)
	lowered.Holders[1].Limit = 1
	waited := past(9*s, 9*s, 9*s, 9*s)
	for i := range waited { // they stood in the queue when those before them were granted, who handed on after a second
		waited[i].Holder.AcquiredAt = waited[i].Holder.AcquiredAt.Add(time.Duration(i) * (m - s))
		waited[i].At = waited[i].At.Add(time.Duration(i) * (m - s))
		waited[i].Holder.Waited = m
	}
	for _, test := range []struct {
		name     string
		lock     fencing.Lock
		mode     fencing.Mode
		limit    int
		permits  int
		past     []fencing.Ended
		position int
		want     time.Duration
	}{
		{"nothing is known", lock, fencing.ModeExclusive, 0, 0, nil, 1, 0},
		{"two are chance", lock, fencing.ModeExclusive, 0, 0, past(9*s, 9*s), 1, 0},
		{"nobody holds it", fencing.Lock{Now: lock.Now}, fencing.ModeExclusive, 0, 0, past(9*s, 9*s, 9*s), 1, 0},
		{"a delay keeps everybody out", fencing.Lock{Now: lock.Now, DelayedUntil: lock.Now.Add(2 * s)}, fencing.ModeExclusive, 0, 0, past(9*s, 9*s, 9*s), 1, 2 * s},
		{"and those before take their time", fencing.Lock{Now: lock.Now, DelayedUntil: lock.Now.Add(2 * s)}, fencing.ModeExclusive, 0, 0, past(9*s, 9*s, 9*s), 3, 2*s + 2*9*s},
		{"what the holder takes yet", lock, fencing.ModeExclusive, 0, 0, past(9*s, 9*s, 9*s), 1, 5 * s},
		{"who is over already says nothing of it", lock, fencing.ModeExclusive, 0, 0, past(s, 2*s, 9*s, 11*s), 1, 6 * s},
		{"it takes longer than any before", lock, fencing.ModeExclusive, 0, 0, past(s, s, s), 1, 3 * s},
		{"it is about to go", lock, fencing.ModeExclusive, 0, 0, past(4*s, 4*s, 4*s), 1, time.Millisecond},
		{"those before take their time", lock, fencing.ModeExclusive, 0, 0, past(9*s, 9*s, 9*s), 4, 5*s + 3*9*s},
		{"and so does each hand-off", lock, fencing.ModeExclusive, 0, 0, waited, 4, 5*s + 3*10*s},
		{"one of two permits", permits, fencing.ModeShared, 0, 1, past(9*s, 9*s, 9*s), 1, 5 * s / 2},
		{"two permits, of which one is free", permits, fencing.ModeShared, 0, 2, past(9*s, 9*s, 9*s), 1, 5 * s / 2},
		{"all permits", permits, fencing.ModeShared, 0, 3, past(9*s, 9*s, 9*s), 1, 5 * s},
		{"as many as the first who goes gives back", weighted, fencing.ModeShared, 0, 2, past(9*s, 9*s, 9*s), 1, 6 * s / 2},
		{"and more", weighted, fencing.ModeShared, 0, 3, past(9*s, 9*s, 9*s), 1, 7 * s},
		{"behind two", permits, fencing.ModeShared, 0, 3, past(9*s, 9*s, 9*s), 3, 5*s + 9*s},
		{"both, alone", permits, fencing.ModeExclusive, 0, 0, past(9*s, 9*s, 9*s), 1, 5 * s},
		{"who bears two beside two", permits, fencing.ModeShared, 2, 1, past(9*s, 9*s, 9*s), 1, 5 * s / 2},
		{"who bears one", permits, fencing.ModeShared, 1, 1, past(9*s, 9*s, 9*s), 1, 5 * s},
		{"who bears one, and names no permits", permits, fencing.ModeShared, 1, 0, past(9*s, 9*s, 9*s), 1, 5 * s},
		{"a limit was lowered below what is held", lowered, fencing.ModeShared, 3, 1, past(9*s, 9*s, 9*s), 1, 5 * s},
	} {
		pace := fencing.PaceOf(&test.lock, test.past)
		if got := pace.Wait(&test.lock, test.mode, test.limit, test.permits, test.position); got != test.want {
			t.Errorf("%s: %v instead of %v", test.name, got, test.want)
		}
	}
}
