package machine

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// pulseEvery is how often a Pulse tries to have the lock, and hangsAfter how often it may be late before the lock counts as hanging:
	// nothing that is held is held for nearly as long. The count stands still where the process does.
	pulseEvery = time.Second
	hangsAfter = 20
)

// Pulse finds out whether the lock that guards a machine can be had at all.
type Pulse struct{ late atomic.Int64 }

// Watch tries to have the lock every so often, until done is closed. Only one goroutine may call it.
func (p *Pulse) Watch(lock *sync.RWMutex, done <-chan struct{}) {
	ticker := time.NewTicker(pulseEvery)
	defer ticker.Stop()
	p.watch(lock, ticker.C, done)
}

func (p *Pulse) watch(lock *sync.RWMutex, ticks <-chan time.Time, done <-chan struct{}) {
	had := make(chan struct{}, 1)
	trying := false
	for {
		select {
		case <-done:
			return
		case <-had:
			trying = false
			p.late.Store(0)
		case <-ticks:
			if trying {
				p.late.Add(1)
				continue
			}
			trying = true
			go func() {
				await(lock)
				had <- struct{}{}
			}()
		}
	}
}

// await returns when the lock could be had.
func await(lock *sync.RWMutex) {
	lock.RLock()
	defer lock.RUnlock()
}

// Beat says that who has the lock does something that takes long, and is not over yet.
func (p *Pulse) Beat() { p.late.Store(0) }

// Alive returns why the process is to be started again, nil if the lock could be had of late. It never waits.
func (p *Pulse) Alive() error {
	if late := p.late.Load(); late >= hangsAfter {
		return fmt.Errorf("nothing could be decided for %s: the lock of the store hangs, and only a restart helps", time.Duration(late)*pulseEvery)
	}
	return nil
}
