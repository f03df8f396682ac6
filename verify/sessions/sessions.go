// Package sessions has sessions over several names whose clients die, stop, and are cut off, and
// streams with one lease id that are opened together, lose messages, and are left on the way.
package sessions

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"fencepost/verify/check"
	"fencepost/verify/system"
)

const (
	names = 64 // of a session, as many as it may have

	ttl     = 3 * time.Second
	linger  = 2 * time.Second
	maxHold = 4 * time.Second

	// slack is for a machine that is busy, beside what is promised.
	slack = 5 * time.Second

	// look is how often the names are counted.
	look = 20 * time.Millisecond

	// patience bounds what is no promise.
	patience = 30 * time.Second
)

// Sessions are so many rounds of everything that can happen to a client.
type Sessions struct{ Rounds int }

// ending is how a client is gone, and what is promised of its names.
type ending struct {
	what    string
	open    func(ctx context.Context, url, leaseID, body string) (client, error)
	gone    func(client) error
	linger  time.Duration
	maxHold time.Duration
	within  time.Duration // all names are free
}

var endings = []ending{
	{"killed", startCurl, client.kill, 0, 0, ttl},
	{"killed, lingers", startCurl, client.kill, linger, 0, linger + ttl},
	{"stopped", startCurl, client.stop, 0, maxHold, maxHold}, // its system acknowledges for it: max_hold_ms is the bound
	{"cut off", dial, client.cut, 0, 0, ttl + ttl},           // noticed within a TTL
	{"cut off, lingers", dial, client.cut, linger, 0, ttl + linger + ttl},
}

// Run opens a session of 64 names for each ending, and one that is attached again at another
// gateway, if there is one.
func (n Sessions) Run(ctx context.Context, s *system.System, r *check.Result) error {
	c := system.NewClient(8)
	defer c.Close()
	done := 0
	var longest time.Duration
	for round := range n.Rounds {
		for i, e := range endings {
			at := &session{client: c, gateway: s.Gateways[(round+i)%len(s.Gateways)], prefix: fmt.Sprintf("sessions/%d/%d/", round, i)}
			took, err := at.end(ctx, r, e)
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", e.what, round, err)
			}
			longest = max(longest, took-e.within)
			done++
		}
		at := &session{client: c, gateway: s.Gateways[round%len(s.Gateways)], prefix: fmt.Sprintf("sessions/%d/again/", round)}
		if err := at.attachAgain(ctx, r, s.Gateways[(round+1)%len(s.Gateways)]); err != nil {
			return fmt.Errorf("attached again, round %d: %w", round, err)
		}
		done++
	}
	r.Reach("sessions of 64 names", done, n.Rounds*(len(endings)+1))
	r.Count("latest end behind its bound", max(longest, 0))
	return nil
}

// session is one under test.
type session struct {
	client  *system.Client
	gateway *system.Gateway
	prefix  string
}

func (s *session) end(ctx context.Context, r *check.Result, e ending) (took time.Duration, err error) {
	held, err := s.open(ctx, s.gateway, e.open, "", e.linger, e.maxHold)
	if err != nil {
		return 0, err
	}
	defer held.kill()
	gone := time.Now()
	if err := e.gone(held); err != nil {
		return 0, err
	}
	first := time.Duration(0)
	for left := names; left > 0; <-time.After(look) {
		if time.Since(gone) > e.within+patience {
			return 0, fmt.Errorf("%d names are held still after %s", left, time.Since(gone))
		}
		asked := time.Now()
		if left, err = s.held(ctx, s.gateway); err != nil {
			return 0, err
		}
		if left < names && first == 0 {
			first = time.Since(gone)
			if first < e.linger {
				r.Violation("%s: of a session that lingers for %s %d names are free after %s", e.what, e.linger, names-left, first)
			}
		}
		took = asked.Sub(gone)
	}
	r.Harms.Add("client "+e.what, held.harm())
	if took > e.within+slack {
		r.Violation("%s: its names were free after %s, which is promised after %s", e.what, took, e.within)
	}
	return took, nil
}

// attachAgain has the client of a session die, and another take it up at another gateway.
func (s *session) attachAgain(ctx context.Context, r *check.Result, other *system.Gateway) error {
	const long = ttl // the most
	first, err := s.open(ctx, s.gateway, startCurl, "", long, 0)
	if err != nil {
		return err
	}
	if err := first.kill(); err != nil {
		return err
	}
	r.Harms.Add("client killed", first.harm())
	second, err := s.open(ctx, other, startCurl, first.told().LeaseID, 0, 0)
	if err != nil {
		return err
	}
	defer second.kill()
	before, now := first.told().tokens(), second.told().tokens()
	for name, token := range before {
		if now[name] != token {
			r.Violation("%s has the token %d where the session is attached again, and had %d", name, now[name], token)
		}
	}
	if err := second.kill(); err != nil {
		return err
	}
	return s.free(ctx, other, patience)
}

// free waits until no name is held; longer than within is an error.
func (s *session) free(ctx context.Context, g *system.Gateway, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within+slack)
	defer cancel()
	begun := time.Now()
	for {
		left, err := s.held(ctx, g)
		if err == nil && left == 0 {
			return nil
		}
		if waited := time.Since(begun); waited > within {
			return errors.Join(fmt.Errorf("%d names below %s are held still after %s", left, s.prefix, waited.Round(time.Millisecond)), err)
		}
		<-time.After(10 * look)
	}
}

// held returns how many of the names are held.
func (s *session) held(ctx context.Context, g *system.Gateway) (int, error) {
	a, err := s.client.Do(ctx, http.MethodGet, g.URL()+"/locks?limit=100&prefix="+s.prefix, "", "")
	if err != nil {
		return 0, err
	}
	if a.Status != http.StatusOK {
		return 0, fmt.Errorf("the list: %s", a)
	}
	return countLocks(a.Body)
}
