package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/internal/redis/redistest"
)

// The clock of a Redis is wrong for some seconds: who waits for what is released, broken or runs
// out meanwhile is served once it is right again, not when the own patience ends; nobody is
// granted what another may believe in; a lock delay is kept; and what is renewed all the time
// lives on.
func TestTheClockOfRedisIsMoved(t *testing.T) {
	t.Parallel()
	clockIsMoved(t, 3*time.Second, 30*time.Minute, -30*time.Minute)
}

func TestSystemTheClockOfRedisIsMoved(t *testing.T) {
	t.Parallel()
	clockIsMoved(t, 12*time.Second, time.Hour, -time.Hour, 12*time.Second, -12*time.Second, 3*time.Second, -3*time.Second, 25*time.Hour)
}

// clockIsMoved has the clock ahead by so much for a time, one Redis for each.
func clockIsMoved(t *testing.T, lasts time.Duration, moves ...time.Duration) {
	for _, ahead := range moves {
		t.Run(ahead.String(), func(t *testing.T) {
			t.Parallel()
			server, patient := redistest.StartWithClock(t), "FENCEPOST_MAX_WAIT=5m"
			m := &movedClock{near: startOn(t, server.URL(), patient), far: startOn(t, server.URL(), patient), lasts: lasts}
			if err := m.play(server.Clock(), ahead); err != nil {
				t.Error(err)
			}
		})
	}
}

// movedClock are two gateways on a Redis whose clock is moved.
type movedClock struct {
	near, far *gatewayProcess
	lasts     time.Duration
}

// contended is a name that is held at one gateway and waited for at the other.
type contended struct {
	name     string
	held     holding
	mu       sync.Mutex
	believed time.Time // nobody else may be granted the name before
	served   chan error
	granted  holding
	at       time.Time // of that
}

// rely notes an answer to the holder, to a request that was sent at a moment.
func (c *contended) rely(sent time.Time, left int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.believed = sent.Add(time.Duration(left) * time.Millisecond)
}

func (c *contended) until() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.believed
}

const (
	movedDelay = 2 * time.Second // the lock delay of what is broken
	movedTTL   = 5 * time.Second // of what is renewed
)

func (m *movedClock) play(clock *redistest.Clock, ahead time.Duration) error {
	// Each waits for longer than the test does.
	released, err := m.contend("released", `"ttl_ms":3600000`)
	if err != nil {
		return err
	}
	broken, err := m.contend("broken", fmt.Sprintf(`"ttl_ms":3600000,"lock_delay_ms":%d`, movedDelay.Milliseconds()))
	if err != nil {
		return err
	}
	renewed, err := m.contend("renewed", fmt.Sprintf(`"ttl_ms":%d`, movedTTL.Milliseconds()))
	if err != nil {
		return err
	}
	stop := renewed.renewAt(m.near, ahead > 0 && m.lasts > movedTTL)
	expired, err := m.contend("expired", fmt.Sprintf(`"ttl_ms":%d`, m.lasts.Milliseconds()))
	if err != nil {
		stop()
		return err
	}

	if err := clock.Set(ahead); err != nil {
		stop()
		return err
	}
	err = m.meanwhile(released, broken)
	<-time.After(time.Until(expired.until()))
	for _, c := range []*contended{released, broken, renewed, expired} {
		if len(c.served) > 0 {
			err = errors.Join(err, fmt.Errorf("%s: who waits is answered while the clock is wrong", c.name))
		}
	}
	if err := errors.Join(err, clock.Set(0)); err != nil {
		stop()
		return err
	}
	err = errors.Join(m.serve(released), m.serve(broken), m.serve(expired))
	if over, lost := stop(); lost != nil {
		return errors.Join(err, lost)
	} else if !over {
		renewed.rely(time.Now(), 0)
		err = errors.Join(err, releaseAt(m.near, renewed.name, renewed.held))
	}
	return errors.Join(err, m.serve(renewed))
}

// meanwhile does what is done while the clock is wrong.
func (m *movedClock) meanwhile(released, broken *contended) error {
	status, body, err := m.ask(http.MethodPost, m.far, "new", nil)
	if err != nil || status != http.StatusServiceUnavailable || !strings.Contains(string(body), `"clock_skew"`) {
		return fmt.Errorf("acquire while the clock is wrong was answered %d: %s, %v", status, body, err)
	}
	released.rely(time.Now(), 0)
	if err := releaseAt(m.near, released.name, released.held); err != nil {
		return err
	}
	broken.rely(time.Now(), movedDelay.Milliseconds())
	status, body, err = m.ask(http.MethodDelete, m.near, broken.name, map[string]string{"If-Match": fmt.Sprintf(`"%d"`, broken.held.Token)})
	if err != nil || status != http.StatusNoContent {
		return fmt.Errorf("break was answered %d: %s, %v", status, body, err)
	}
	return nil
}

// ask sends a request, again while nothing is known of it.
func (m *movedClock) ask(method string, g *gatewayProcess, name string, header map[string]string) (status int, body []byte, err error) {
	for deadline := time.Now().Add(patience); ; {
		status, body, err = request(method, "http://"+g.addr+"/locks/"+name, "", header)
		if err != nil || !unavailable(status, body) || time.Now().After(deadline) {
			return status, body, err
		}
	}
}

// contend has a name held at one gateway, and waited for at the other.
func (m *movedClock) contend(name, asked string) (*contended, error) {
	c := &contended{name: name, served: make(chan error, 1)}
	sent := time.Now()
	var err error
	if c.held, err = acquireAt(context.Background(), m.near, name, "{"+asked+"}"); err != nil {
		return nil, err
	}
	c.rely(sent, c.held.ExpiresIn)
	go func() {
		var err error
		c.granted, err = acquireAt(context.Background(), m.far, name, fmt.Sprintf(`{"wait_ms":%d}`, (5*patience).Milliseconds()))
		c.at = time.Now()
		c.served <- err
	}()
	return c, awaitWaiting(m.near, name, 1)
}

// serve waits until who waits is served, which is not to be too soon.
func (m *movedClock) serve(c *contended) error {
	select {
	case err := <-c.served:
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	case <-time.After(patience):
		return fmt.Errorf("%s: who waits is not served", c.name)
	}
	if early := c.until().Sub(c.at); early > 0 {
		return fmt.Errorf("%s: granted %s too soon", c.name, early)
	}
	if c.granted.Token <= c.held.Token {
		return fmt.Errorf("%s: token %d after %d", c.name, c.granted.Token, c.held.Token)
	}
	return releaseAt(m.far, c.name, c.granted)
}

// renewAt renews the lease until it is stopped, which tells whether its time was over before, and
// otherwise whether it was lost. It may be over if it can't be renewed for as long, or this machine
// did not come to it.
func (c *contended) renewAt(g *gatewayProcess, mayBeOver bool) (stop func() (over bool, lost error)) {
	done, ended := make(chan struct{}), make(chan struct{})
	var over bool
	var lost error
	go func() {
		defer close(ended)
		tick := time.NewTicker(300 * time.Millisecond)
		defer tick.Stop()
		for before := time.Now(); ; {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			sent := time.Now()
			mayBeOver, before = mayBeOver || sent.Sub(before) >= movedTTL, sent
			status, body, err := request(http.MethodPut, "http://"+g.addr+"/locks/"+c.name, "", map[string]string{"Lease-Id": c.held.LeaseID})
			var answer holding
			switch {
			case err == nil && status == http.StatusOK && json.Unmarshal(body, &answer) == nil:
				c.rely(sent, answer.ExpiresIn)
			case err == nil && status == http.StatusServiceUnavailable:
			case mayBeOver && !time.Now().Before(c.until()):
				over = true
				return
			default:
				lost = fmt.Errorf("a renewal of %s was answered %d: %s, %v", c.name, status, body, err)
				return
			}
		}
	}()
	return func() (bool, error) {
		close(done)
		<-ended
		return over || mayBeOver && !time.Now().Before(c.until()), lost
	}
}
