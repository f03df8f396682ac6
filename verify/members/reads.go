package members

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"fencepost/verify/system"
)

const (
	// readsAtOnce is how many requests, of each of looks as many, are in the sockets of a leader when it goes on.
	readsAtOnce = 40

	// underWay is how long requests have to get into its sockets.
	underWay = 100 * time.Millisecond
)

// read stops the leader, has others release a lock and grant it to somebody else, puts reads of all kinds into the sockets of the
// old one, and lets it go on: it may not answer with what it knew before it was stopped.
func read(l *load, round int) (time.Duration, error) {
	name := fmt.Sprintf("reads/%d-%d", round, time.Now().UnixNano())
	grant := func(asked func() *system.Gateway, id string) (int64, error) {
		a, err := l.insist(asked, func(ctx context.Context, g *system.Gateway) (system.Answer, error) {
			return l.client.Acquire(ctx, g, name, id, `{"ttl_ms":600000}`)
		})
		if err == nil && a.Status != http.StatusCreated && a.Status != http.StatusOK {
			err = fmt.Errorf("nobody can have %s: %s", name, a)
		}
		if err != nil {
			return 0, err
		}
		return a.Lease.Token, nil
	}
	old, err := l.s.Leader(patience)
	if err != nil {
		return 0, err
	}
	first := newLeaseID()
	before, err := grant(func() *system.Gateway { return old }, first)
	if err != nil {
		return 0, err
	}
	client := system.NewClient(readsAtOnce)
	defer client.Close()
	moment := time.Now()
	harm, err := old.Freeze()
	if err != nil {
		return 0, err
	}
	resume := sync.OnceValue(func() error { return l.over("leader stopped", harm) })
	defer func() { _ = resume() }()
	at := 0
	next := func() *system.Gateway { at++; return others(l.s, old)[at%(len(l.s.Gateways)-1)] }
	if _, err := l.insist(next, func(ctx context.Context, g *system.Gateway) (system.Answer, error) {
		return l.client.Release(ctx, g, name, first)
	}); err != nil {
		return 0, err
	}
	after, err := grant(next, newLeaseID())
	if err != nil {
		return 0, err
	}
	took := time.Since(moment)
	answers := make(chan seen, readsAtOnce)
	for i := range readsAtOnce {
		look := looks[i%len(looks)]
		go func() {
			ctx, cancel := context.WithTimeout(l.ctx, patience)
			defer cancel()
			a, err := client.Do(ctx, http.MethodGet, old.URL()+look.path(name, before), "", "")
			if err != nil {
				a = system.Answer{}
			}
			answers <- seen{look, a}
		}()
	}
	pause(l.ctx, underWay)
	if err := resume(); err != nil {
		return 0, err
	}
	answered := map[string]int{}
	for range readsAtOnce {
		a := <-answers
		if a.Status != http.StatusOK {
			continue // nothing is known
		}
		answered[a.what]++
		if shown := a.newest(a.Body); shown != after {
			l.r.Violation("%s was granted with token %d, and GET of %s after that shows %d: %s", name, after, a.what, shown, a.Answer)
		}
	}
	for _, look := range looks {
		l.r.Reach("reads of "+look.what+" at a leader that was stopped", answered[look.what], readsAtOnce/len(looks))
	}
	return took, nil
}

// seen is what a read was answered.
type seen struct {
	*look
	system.Answer
}

// look is a way to see who has a lock.
type look struct {
	what   string
	path   func(name string, token int64) string // of a GET; the token is one that was handed on
	newest func(body []byte) int64               // the token of the holder that an answer shows; 0 if it shows none
}

var looks = []*look{
	{"a lock", func(name string, _ int64) string { return "/locks/" + name }, func(body []byte) int64 {
		var lock holders
		if json.Unmarshal(body, &lock) != nil {
			return 0
		}
		return lock.token()
	}},
	{"a list", func(name string, _ int64) string { return "/locks?prefix=" + name }, func(body []byte) int64 {
		var list struct{ Locks []holders }
		if json.Unmarshal(body, &list) != nil || len(list.Locks) != 1 {
			return 0
		}
		return list.Locks[0].token()
	}},
	{"a verdict", func(name string, token int64) string { return fmt.Sprintf("/fences/%s?token=%d", name, token) }, func(body []byte) int64 {
		var judged struct {
			Verdict string
			Issued  int64 `json:"highest_issued"`
		}
		if json.Unmarshal(body, &judged) != nil || judged.Verdict != "superseded" {
			return 0
		}
		return judged.Issued
	}},
	{"a history", func(name string, _ int64) string { return "/history/" + name }, func(body []byte) int64 {
		var past struct{ Grants []token }
		if json.Unmarshal(body, &past) != nil || len(past.Grants) == 0 {
			return 0
		}
		return past.Grants[0].Token
	}},
}

type token struct {
	Token int64 `json:"fencing_token"`
}

// holders are those of a lock, as an answer shows it.
type holders struct{ Holders []token }

// token returns that of the only holder, 0 if there is not one.
func (h holders) token() int64 {
	if len(h.Holders) != 1 {
		return 0
	}
	return h.Holders[0].Token
}
