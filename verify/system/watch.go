package system

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"
)

// Watch has somebody watch the events at each gateway of a quorum until stop, which waits for their end: between its gateways there
// are hardly any messages else, so that none would be lost. On other stores it does nothing: waiters and streams there are told by
// messages of their own.
func (s *System) Watch(ctx context.Context) (stop func()) {
	if s.Kind != Quorum {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var watching sync.WaitGroup
	for _, g := range s.Gateways {
		watching.Go(func() {
			for ctx.Err() == nil {
				if r, err := http.NewRequestWithContext(ctx, http.MethodGet, g.URL()+"/events", nil); err == nil {
					if answer, err := client.Do(r); err == nil {
						_, _ = io.Copy(io.Discard, answer.Body)
						answer.Body.Close()
					}
				}
				select { // it is down, or stands still
				case <-time.After(100 * time.Millisecond):
				case <-ctx.Done():
				}
			}
		})
	}
	return func() {
		cancel()
		watching.Wait()
	}
}
