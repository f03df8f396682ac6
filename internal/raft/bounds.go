package raft

import (
	"cmp"
	"errors"
	"reflect"
	"slices"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

const (
	// mostSent is how many bytes a node sends another one at once, of what may be any number: far fewer than
	// MaxMessage, and a batch with some hundred results is smaller, as a rule.
	mostSent = 16 << 20

	// fewHolders is how many holders an answer may show as they are: with all the metadata that they may
	// have they are some MB at most.
	fewHolders = 512
)

// errNoRoom says that a result was left out of an answer.
var errNoRoom = errors.New("the answer of the leader has no room for this result")

// shown says whom a lock in an answer shows.
type shown struct {
	Outcome int   `cbor:"1,keyasint"`           // the outcome that has the lock,
	Refused bool  `cbor:"2,keyasint,omitempty"` // or whose refusal has it
	Holders []int `cbor:"3,keyasint"`           // in answer.Holders
}

// leaseKey names a lease in an answer.
type leaseKey struct {
	name  fencing.Name
	lease fencing.LeasePublic
	token fencing.Token
}

// fits returns how many of a list have so many bytes together at most, when they are encoded, and how many they have.
func fits[T any](all []T, most int) (n, size int) {
	for n < len(all) {
		more := len(must(machine.Encoding.Marshal(&all[n])))
		if size+more > most {
			break
		}
		n, size = n+1, size+more
	}
	return n, size
}

// pack makes an answer to another node smaller, so that it has about so many bytes at most: each lease is in it once,
// however many outcomes show it. Outcomes at the end for which there is no room are left out, but for the
// first: their gateway asks again. So it does for the rest of a list, and of entries, of which those of names up to after
// are left out. Of grants it hears when it carries them out. What ended, and has no room, is not told.
func (a *answer) pack(after fencing.Name, most int) {
	size := a.packOutcomes(most)
	told, more := fits(a.Told, most-size)
	a.Told = a.Told[:told]
	size += more
	if n, _ := fits(a.Page.Locks, most-size); n < len(a.Page.Locks) {
		n = max(n, 1)
		a.Page.Locks, a.Page.Next = a.Page.Locks[:n], a.Page.Locks[n-1].Name
	}
	ended, _ := fits(a.Expiry.Ended, most-size)
	a.Expiry.Ended = a.Expiry.Ended[:ended]
	a.packEntries(after, most-size)
}

// packOutcomes does so for outcomes, and returns how many bytes they have.
func (a *answer) packOutcomes(most int) (size int) {
	holders := 0
	for i := range a.Outcomes {
		out := &a.Outcomes[i]
		holders += len(out.Ended) + len(out.Granted)
		for _, lock := range locksOf(out) {
			holders += len(lock.Holders)
		}
	}
	if holders <= fewHolders {
		return 0
	}
	known := map[leaseKey]int{}
	for i := range a.Outcomes {
		out, before, of := a.Outcomes[i], len(a.Holders), len(a.Shown)
		if out.Lock != nil {
			out.Lock = a.show(known, out.Lock, shown{Outcome: i})
		}
		if out.Err != nil && out.Err.Lock != nil {
			refusal := *out.Err
			refusal.Lock = a.show(known, refusal.Lock, shown{Outcome: i, Refused: true})
			out.Err = &refusal
		}
		more := len(must(machine.Encoding.Marshal(&out)))
		for _, added := range a.Holders[before:] {
			more += len(must(machine.Encoding.Marshal(&added)))
		}
		for _, added := range a.Shown[of:] {
			more += len(must(machine.Encoding.Marshal(&added)))
		}
		if i > 0 && size+more > most {
			a.Outcomes, a.Holders, a.Shown = a.Outcomes[:i], a.Holders[:before], a.Shown[:of]
			return size
		}
		a.Outcomes[i], size = out, size+more
	}
	return size
}

// locksOf returns the locks that an outcome shows.
func locksOf(out *fencing.Outcome) (locks []*fencing.Lock) {
	if out.Lock != nil {
		locks = append(locks, out.Lock)
	}
	if out.Err != nil && out.Err.Lock != nil {
		locks = append(locks, out.Err.Lock)
	}
	return locks
}

// show returns a lock without its holders, which are put into the answer if they are not there yet.
func (a *answer) show(known map[leaseKey]int, lock *fencing.Lock, s shown) *fencing.Lock {
	if len(lock.Holders) == 0 {
		return lock
	}
	for i := range lock.Holders {
		h := &lock.Holders[i]
		key := leaseKey{lock.Name, h.Lease, h.Token}
		at, ok := known[key]
		if !ok || !reflect.DeepEqual(a.Holders[at], *h) {
			at = len(a.Holders)
			known[key] = at
			a.Holders = append(a.Holders, *h)
		}
		s.Holders = append(s.Holders, at)
	}
	a.Shown = append(a.Shown, s)
	bare := *lock
	bare.Holders = nil
	return &bare
}

// packEntries does so for entries. All of one name are together.
func (a *answer) packEntries(after fencing.Name, most int) {
	if after == "" {
		if n, _ := fits(a.Entries, most); n == len(a.Entries) {
			return
		}
	}
	slices.SortFunc(a.Entries, func(a, b fencing.Entry) int { return cmp.Compare(a.Name, b.Name) })
	from, _ := slices.BinarySearchFunc(a.Entries, after, func(e fencing.Entry, after fencing.Name) int {
		if e.Name <= after {
			return -1
		}
		return 1
	})
	a.Entries = a.Entries[from:]
	n, _ := fits(a.Entries, most)
	if n == len(a.Entries) {
		return
	}
	for n > 0 && a.Entries[n].Name == a.Entries[n-1].Name {
		n--
	}
	if n == 0 {
		for n++; n < len(a.Entries) && a.Entries[n].Name == a.Entries[0].Name; n++ {
		}
	}
	if n < len(a.Entries) {
		a.Entries, a.More = a.Entries[:n], a.Entries[n-1].Name
	}
}

// unpack puts the holders of an answer where they are shown.
func (a *answer) unpack() error {
	for _, s := range a.Shown {
		var lock *fencing.Lock
		if s.Outcome >= 0 && s.Outcome < len(a.Outcomes) {
			switch out := &a.Outcomes[s.Outcome]; {
			case !s.Refused:
				lock = out.Lock
			case out.Err != nil:
				lock = out.Err.Lock
			}
		}
		if lock == nil {
			return errors.New("an answer shows holders of no lock")
		}
		lock.Holders = make([]fencing.Holder, len(s.Holders))
		for i, at := range s.Holders {
			if at < 0 || at >= len(a.Holders) {
				return errors.New("an answer shows a holder that it does not have")
			}
			lock.Holders[i] = a.Holders[at]
		}
	}
	a.Holders, a.Shown = nil, nil
	return nil
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
