// Package auth knows whom the gateway lets in, and what each may do. Others read the
// file, and the requests: nothing here does I/O, and nothing runs by itself.
//
// A Set is what a keys file says and never changes; Keys holds the one in force, and
// takes the next one whole. A key is found by its public id and proved by its secret.
// What is refused takes as long as what is not, whether the id, the secret or the time
// is wrong.
package auth

import (
	"errors"
	"slices"
	"strings"
	"time"
)

// Scope is a kind of thing that may be done. No scope includes another one. The zero
// Scope is had by nobody.
type Scope uint8

const (
	Anyone Scope = iota + 1 // needs no key
	Read                    // look: locks, history, events, what is found about the store, metrics
	Lock                    // acquire, renew, release
	Fence                   // judge and admit fencing tokens
	Admin                   // break leases, see profiles of the gateway
)

var scopeNames = map[Scope]string{Anyone: "anyone", Read: "read", Lock: "lock", Fence: "fence", Admin: "admin"}

func (s Scope) String() string { return scopeNames[s] }

// parseScope returns the scope of a name that a keys file may have.
func parseScope(name string) (Scope, bool) {
	for _, s := range []Scope{Read, Lock, Fence, Admin} {
		if s.String() == name {
			return s, true
		}
	}
	return 0, false
}

// Principal is who a line of the keys file lets in. It does not change.
type Principal struct {
	Name string // for people and logs; several keys may have one name
	ID   string // the public id of the key; empty of a certificate

	hash    digest // of the key
	scopes  []Scope
	names   Names
	expires time.Time // zero: never
}

// Has reports whether the scope is one of the principal's.
func (p *Principal) Has(s Scope) bool { return slices.Contains(p.scopes, s) }

// Names returns the names it may use.
func (p *Principal) Names() Names { return p.names }

// Expires returns when it ends; zero: never.
func (p *Principal) Expires() time.Time { return p.expires }

// equal reports whether two lines say the same.
func (p *Principal) equal(q *Principal) bool {
	return p.Name == q.Name && p.ID == q.ID && p.hash == q.hash && slices.Equal(p.scopes, q.scopes) &&
		slices.Equal(p.names, q.names) && p.expires.Equal(q.expires)
}

// Scopes returns the scopes as a file has them.
func (p *Principal) Scopes() string {
	names := make([]string, len(p.scopes))
	for i, s := range p.scopes {
		names[i] = s.String()
	}
	return strings.Join(names, ",")
}

// The reasons why nobody is let in. Their texts are for the client.
var (
	ErrUnknown = errors.New("the key is not known")
	ErrExpired = errors.New("the key has expired")
)
