package auth

import (
	"sync/atomic"
	"time"
)

// Keys holds the keys in force. Many goroutines may use it.
type Keys struct {
	current atomic.Pointer[Set]
	now     func() time.Time
}

// New returns Keys with a set in force. now is for tests; nil is time.Now.
func New(set *Set, now func() time.Time) *Keys {
	if now == nil {
		now = time.Now
	}
	k := &Keys{now: now}
	k.current.Store(set)
	return k
}

// Len returns how many principals there are.
func (k *Keys) Len() int { return k.current.Load().Len() }

// dummy is what unknown ids are compared with: nothing has this hash.
var dummy = &Principal{}

// Key returns whom a key lets in, or ErrUnknown, or ErrExpired with whose it was.
func (k *Keys) Key(key string) (*Principal, error) {
	set := k.current.Load()
	p := set.keys[idOf(key)]
	known := p != nil
	if !known {
		p = dummy
	}
	if matched := p.hash.matches(key); !matched || !known {
		return nil, ErrUnknown
	}
	return p, k.check(p)
}

// Certificate is Key for the name of a certificate, which the caller has verified.
func (k *Keys) Certificate(name string) (*Principal, error) {
	p := k.current.Load().certificates[certificateKey(name)]
	if p == nil {
		return nil, ErrUnknown
	}
	return p, k.check(p)
}

// Current returns what the line of a principal says by now: ErrUnknown if it is gone, or
// is that of another key.
func (k *Keys) Current(p *Principal) (*Principal, error) {
	set := k.current.Load()
	now := set.certificates[certificateKey(p.Name)]
	if p.ID != "" {
		now = set.keys[p.ID]
	}
	if now == nil || now.hash != p.hash {
		return nil, ErrUnknown
	}
	return now, k.check(now)
}

func (k *Keys) check(p *Principal) error {
	if !p.expires.IsZero() && !k.now().Before(p.expires) {
		return ErrExpired
	}
	return nil
}

// Change is a line that is not as it was.
type Change struct {
	Kind      string // added, removed or changed
	Principal *Principal
}

// Replace puts another set in force, and returns what has changed. Who was let in before
// is so until Current is asked.
func (k *Keys) Replace(set *Set) (changes []Change) {
	before, after := k.current.Swap(set).all(), set.all()
	for name, p := range after {
		switch old := before[name]; {
		case old == nil:
			changes = append(changes, Change{"added", p})
		case !old.equal(p):
			changes = append(changes, Change{"changed", p})
		}
	}
	for name, old := range before {
		if after[name] == nil {
			changes = append(changes, Change{"removed", old})
		}
	}
	return changes
}
