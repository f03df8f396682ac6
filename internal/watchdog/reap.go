package watchdog

import (
	"context"
	"math"
	"time"
)

// reap ends leases when they are due. Between two calls of Expire it sleeps
// until the next expiry that the store knows of, or a nearer one that comes up
// meanwhile. While another gateway reaps (Standby), it only asks now and then. What
// it can't do is tried again and again, and logged when it begins and ends.
func (w *Watchdog) reap() {
	backoff := minBackoff
	var failing time.Time // since when; zero if it is not
	for {
		w.next.Store(math.MaxInt64) // what comes up from here on moves it forward
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		expiry, err := w.Store.Expire(ctx, reapLimit)
		cancel()
		for i := range expiry.Ended {
			w.freed(expiry.Ended[i].Name)
		}
		pause := expiry.Next
		switch {
		case err != nil:
			if failing.IsZero() {
				failing = time.Now()
				w.log.Warn("expired leases can't be reaped; retrying", "error", err)
			}
			pause, backoff = backoff, min(2*backoff, maxBackoff)
		default:
			backoff = minBackoff
		}
		if err == nil && !failing.IsZero() {
			w.log.Info("expired leases are reaped again", "after", time.Since(failing).Round(time.Millisecond).String())
			failing = time.Time{}
		}
		if !w.rest(pause, err != nil || expiry.Standby) {
			return
		}
	}
}

// rest sleeps for the pause or, unless it is fixed, until a nearer expiry that has come
// up since the last look. It reports false if the watchdog was stopped.
func (w *Watchdog) rest(pause time.Duration, fixed bool) bool {
	if pause > 0 {
		pause += reapSlack
	}
	if fixed {
		return w.sleep(pause)
	}
	w.wakeBy(int64(time.Since(w.origin) + pause))
	for {
		timer := time.NewTimer(time.Duration(w.next.Load()) - time.Since(w.origin))
		select {
		case <-timer.C:
			return true
		case <-w.sooner:
			timer.Stop()
		case <-w.stop:
			timer.Stop()
			return false
		}
	}
}

// DueIn notes that a lease is due after d. It is on the path of every grant: a
// load and a compare, as long as something is due sooner.
func (w *Watchdog) DueIn(d time.Duration) {
	if w.wakeBy(int64(time.Since(w.origin) + d + reapSlack)) {
		select {
		case w.sooner <- struct{}{}:
		default:
		}
	}
}

// wakeBy moves the reaper's next look forward to at, if it is later.
func (w *Watchdog) wakeBy(at int64) bool {
	for {
		next := w.next.Load()
		if at >= next {
			return false
		}
		if w.next.CompareAndSwap(next, at) {
			return true
		}
	}
}
