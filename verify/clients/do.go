package clients

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fencepost/client"
)

// doing is a client.Do whose work goes on until its context ends.
type doing struct {
	lease    *client.Lease
	over     chan struct{} // closed when the context has ended
	overAt   time.Time
	finished chan struct{} // closed to end the work
	returned chan error
}

// startDo starts one, which can use the first gateway only.
func (l *lane) startDo(ctx context.Context, name string) (holder, error) {
	c, err := client.New(client.Options{Addresses: []string{"http://" + l.front.Addr()}, Owner: "holder"})
	if err != nil {
		return nil, err
	}
	h := &doing{over: make(chan struct{}), finished: make(chan struct{}), returned: make(chan error, 1)}
	begun := make(chan struct{})
	go func() {
		defer c.Close()
		h.returned <- c.Do(ctx, name, func(ctx context.Context, lease *client.Lease) error {
			h.lease = lease
			close(begun)
			select {
			case <-ctx.Done():
			case <-h.finished:
			}
			h.overAt = time.Now()
			close(h.over)
			<-h.finished // the lease is not released before: what ends it is the store's deadline
			return nil
		}, client.TTL(ttl))
	}()
	select {
	case <-begun:
		return h, nil
	case err := <-h.returned:
		return nil, fmt.Errorf("the work did not begin: %w", err)
	}
}

func (h *doing) ended() <-chan struct{} { return h.over }
func (h *doing) at() time.Time          { return h.overAt }
func (h *doing) finish()                { close(h.finished) }
func (h *doing) keeps() bool            { return true }
func (h *doing) token() int64           { return h.lease.Token() }

func (h *doing) verdict(survived bool) error {
	if !survived {
		close(h.finished)
	}
	err := <-h.returned
	if survived && err == nil || !survived && (errors.Is(err, client.ErrUnknown) || errors.Is(err, client.CodeLeaseLost)) {
		return nil
	}
	return fmt.Errorf("survived %t, and Do returns %w", survived, err)
}
