package clients

import (
	"sync"
	"sync/atomic"
	"time"
)

// stalls notes how long the machine keeps this process from running: a holder that is kept
// waiting for longer than its margin is as good as stopped.
type stalls struct {
	most    atomic.Int64
	end     chan struct{}
	running sync.WaitGroup
}

func watchStalls() *stalls {
	const interval = 5 * time.Millisecond
	s := &stalls{end: make(chan struct{})}
	s.running.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for last := time.Now(); ; {
			select {
			case <-tick.C:
				s.most.Store(max(s.most.Load(), int64(time.Since(last)-interval)))
				last = time.Now()
			case <-s.end:
				return
			}
		}
	})
	return s
}

func (s *stalls) longest() time.Duration { return time.Duration(s.most.Load()) }

func (s *stalls) stop() {
	close(s.end)
	s.running.Wait()
}
