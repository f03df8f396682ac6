package clients

import (
	"os/exec"
	"sync"
	"time"
)

// stalls notes how long the machine keeps this process from running: a holder that is kept
// waiting for longer than its margin is as good as stopped.
type stalls struct {
	mu      sync.Mutex
	all     []stall // longer than an interval
	end     chan struct{}
	running sync.WaitGroup
}

type stall struct {
	until time.Time
	took  time.Duration
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
				now := time.Now()
				if took := now.Sub(last) - interval; took > interval {
					s.mu.Lock()
					s.all = append(s.all, stall{now, took})
					s.mu.Unlock()
				}
				last = now
			case <-s.end:
				return
			}
		}
	})
	return s
}

// watchStarts notes as well how long the machine takes to start a program and see it end: what a shell does
// before each write.
func (s *stalls) watchStarts() {
	const interval, usual = 100 * time.Millisecond, 10 * time.Millisecond
	s.running.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				began := time.Now()
				if err := exec.Command("true").Run(); err != nil {
					continue // there is none
				}
				if took := time.Since(began) - usual; took > 0 {
					s.mu.Lock()
					s.all = append(s.all, stall{time.Now(), took})
					s.mu.Unlock()
				}
			case <-s.end:
				return
			}
		}
	})
}

// longestSince returns the longest one that has ended since a moment; of all if that is zero.
func (s *stalls) longestSince(moment time.Time) (longest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.all) - 1; i >= 0 && s.all[i].until.After(moment); i-- {
		longest = max(longest, s.all[i].took)
	}
	return longest
}

func (s *stalls) stop() {
	close(s.end)
	s.running.Wait()
}
