package sql

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"fencepost/internal/fencing"
)

const (
	// holdWait is how long the turns under way, and another hold, are waited for.
	holdWait = 20 * time.Second

	// holdCheck is how often the session of a hold is asked whether it is still there, and holdAnswer how long its answer is waited for.
	holdCheck  = time.Second
	holdAnswer = 10 * time.Second

	// holdIdle is after how long the database lets go of a hold whose process stands still, or whose machine is gone.
	holdIdle = 30 * time.Second
)

// heldError says that no turn can be made, for a session holds them off. Nothing has happened then.
type heldError struct{ by string }

const heldDetail = "gateway store hold keeps all gateways from the database, as for a restore, until it ends"

func (h heldError) Error() string {
	if h.by == "" {
		return heldDetail
	}
	return fmt.Sprintf("%s (%s)", heldDetail, h.by)
}

// held returns a heldError, of which clients are told.
func held(by string) error {
	return &fencing.Outage{Detail: heldDetail, Public: true, Err: heldError{by}}
}

// holding is the session that holds turns off. It lets go when it is closed, or its connection is lost.
type holding interface {
	// ask returns an error unless the session is still there.
	ask(context.Context) error

	close()
}

// Hold keeps the gateways of a store from its tables: they make no turn and read nothing, and answer CodeUnavailable.
type Hold struct {
	session holding
	lost    chan error
	ended   chan struct{}
	end     context.CancelFunc
	release sync.Once
	cause   error
}

// NewHold holds turns off in the database of a URL, whose tables need not be there. It waits until those under way are over, and
// another hold, and fails if that takes longer than holdWait (MariaDB and MySQL: if either does). by is for people who look at the
// session in the database. Behind a pooler the URL's database has to be the one that the gateways have.
func NewHold(ctx context.Context, address, by string) (*Hold, error) {
	db, err := newDatabase(address)
	if err != nil {
		return nil, err
	}
	session, err := db.hold(ctx, by)
	if err != nil {
		return nil, err
	}
	asking, end := context.WithCancel(context.Background())
	h := &Hold{session: session, lost: make(chan error, 1), ended: make(chan struct{}), end: end}
	go h.watch(asking)
	return h, nil
}

// Lost gets why turns are not held off any more, if that is before Release.
func (h *Hold) Lost() <-chan error { return h.lost }

// Release lets go. An error says that the hold was lost before.
func (h *Hold) Release() error {
	h.release.Do(func() {
		h.end()
		<-h.ended
		if h.cause == nil {
			h.cause = h.ask(context.Background())
		}
		h.session.close()
	})
	return h.cause
}

// watch finds out that the session is lost.
func (h *Hold) watch(ctx context.Context) {
	defer close(h.ended)
	every := time.NewTicker(holdCheck)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		if err := h.ask(context.WithoutCancel(ctx)); err != nil {
			h.cause = err
			h.lost <- err
			return
		}
	}
}

func (h *Hold) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, holdAnswer)
	defer cancel()
	return h.session.ask(ctx)
}

// errHoldWait says why turns could not be held off.
var errHoldWait = errors.New("the turns of gateways, or another gateway store hold, did not end within " + holdWait.String())
