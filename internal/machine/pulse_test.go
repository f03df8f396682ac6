package machine

import (
	"sync"
	"testing"
	"time"
)

func TestPulse(t *testing.T) {
	var p Pulse
	var lock sync.RWMutex
	ticks, done, over := make(chan time.Time), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		p.watch(&lock, ticks, done)
	}()
	if err := p.Alive(); err != nil {
		t.Error(err)
	}
	for range 100 { // also where the lock is taken all the time
		lock.Lock()
		ticks <- time.Time{}
		lock.Unlock()
	}
	ticks <- time.Time{}
	for p.late.Load() > 0 { // the last try may be under way
		ticks <- time.Time{}
	}
	if err := p.Alive(); err != nil {
		t.Error(err)
	}
	lock.Lock()
	for p.late.Load() < hangsAfter/2 { // one more may be under way
		ticks <- time.Time{}
	}
	if err := p.Alive(); err != nil {
		t.Errorf("it is given up after %d tries: %v", hangsAfter/2, err)
	}
	ticks <- time.Time{}
	for p.Alive() == nil {
		ticks <- time.Time{}
	}
	lock.Unlock()
	for p.Alive() != nil { // it was only slow
		ticks <- time.Time{}
	}
	close(done)
	<-over
}
