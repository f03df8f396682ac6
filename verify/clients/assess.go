package clients

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"fencepost/verify/check"
)

const (
	// pastBound is how long after its bound a lock may be held, and a process be there.
	pastBound = time.Second

	// endsBy is how long after SIGTERM a client may take to end: those that release it longest
	// wait 5 s for an answer.
	endsBy = 5 * time.Second

	// busy is a machine on which a program that starts others may not renew in time: each of
	// a dozen steps waits as long, and that one of them has waited so long was only seen.
	busy = 100 * time.Millisecond

	exitTerminated = 128 + int(syscall.SIGTERM)
	exitNoGateway  = 69
)

// assess judges a trial whose client has ended.
func (t *trial) assess(ctx context.Context) error {
	late, err := t.awaitFree(ctx)
	if err != nil {
		return err
	}
	t.awaitGone()
	stall := t.stalls.longestSince(t.began)
	if late > stall {
		t.violation("the lock is held for %s longer than it may be; the machine has kept processes waiting for up to %s", late, stall)
	}
	t.judgeWrites(stall)
	t.judgeStatus(stall)
	return nil
}

// violation notes what is wrong with a trial, and all that is known of it.
func (t *trial) violation(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var story strings.Builder
	at := func(m time.Time) string {
		if m.IsZero() {
			return "-"
		}
		return strconv.FormatInt(m.Sub(t.began).Milliseconds(), 10)
	}
	for _, x := range t.asked {
		fmt.Fprintf(&story, " %s %s..%s (%d)", x.method, at(x.sent), at(x.answered), x.status)
	}
	for _, p := range t.st.tries() {
		fmt.Fprintf(&story, " w%s", at(p.at))
	}
	said, _ := os.ReadFile(t.said.Name())
	status := -1
	if t.over {
		status = t.status()
	}
	t.r.Violation("trial %d on %s, %s, %s (%d) and %s later, for %s, whole %t, kept %s: %s. In ms: struck %s, healed %s, status %d at %s,%s. It said %q",
		t.number, t.s.Kind, t.name, t.harm, t.nth, string(t.when)+", "+t.delay.String(), t.lasts, t.whole, t.keeps, fmt.Sprintf(format, args...),
		at(t.struck), at(t.healedAt), status, at(t.exitedAt), story.String(), bytes.TrimSpace(said))
}

// status is that of the client, as a shell has it.
func (t *trial) status() int {
	if w, ok := t.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return t.cmd.ProcessState.ExitCode()
}

// untilFree returns until when the lock may be held, and whether a release was answered: else it ends by its TTL.
func (t *trial) untilFree() (until time.Time, released bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	until = t.exitedAt
	if t.healedAt.After(until) {
		until = t.healedAt
	}
	asked, last := false, time.Time{}
	var told time.Time // when a release was asked for that was answered
	for _, x := range t.asked {
		switch {
		case x.method == "DELETE":
			if x.status/100 == 2 || x.status == 412 {
				released, told = true, x.sent
			}
			continue
		case x.answered.IsZero():
			last = until // the gateway may come to it as late as that
		case x.answered.After(last):
			last = x.answered
		}
		asked = true
	}
	for _, x := range t.asked {
		// The client has left while it was acquiring, and a gateway has granted the lease and answered before it
		// could see that: the release was sooner. Had it seen it the answer would not be there.
		if released && x.method == "POST" && x.sent.Before(told) && x.answered.After(told) && x.lives > 0 {
			t.crossed = true
			return x.answered.Add(ttlOfTrials), false
		}
	}
	if !asked || released || t.harm == terminated && !t.struck.IsZero() { // a gateway is there, and the client has to tell it
		return until, released
	}
	return last.Add(ttlOfTrials), false
}

// awaitFree waits until the client does not have the lock, and returns by how much it had it for too long.
func (t *trial) awaitFree(ctx context.Context) (late time.Duration, err error) {
	until, released := t.untilFree()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var held time.Time // when it was last seen to be
	for {
		asked := time.Now()
		seen, err := t.judge.Inspect(ctx, lockOfPrograms)
		if err != nil {
			return 0, fmt.Errorf("the lock is not free: %w", err)
		}
		if !seen.Held || seen.Holders[0].Owner == nextOwner {
			break
		}
		held = asked
		time.Sleep(20 * time.Millisecond)
	}
	if !held.IsZero() && released {
		t.sums.most(t.sums.longest, t.name+", "+string(t.harm), held.Sub(until))
	}
	return held.Sub(until.Add(pastBound)), nil
}

// awaitGone holds it against the client if anything is left of it, and ends that.
func (t *trial) awaitGone() {
	began := time.Now()
	for {
		left := marked(t.mark)
		if len(left) == 0 {
			return
		}
		if took := time.Since(began); took > pastBound+t.stalls.longestSince(t.began) {
			t.violation("of its processes %v are there %s after its end", left, took)
			for _, pid := range left {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// marked returns the processes that have a variable in their environment.
func marked(variable string) (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range all {
		text, _ := os.ReadFile(path) // of one that has ended there is nothing
		if bytes.Contains(text, []byte(variable+"\x00")) {
			if pid, err := strconv.Atoi(strings.Split(path, "/")[2]); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// judgeWrites looks for work past the deadline that the client knew of. What was begun before a stop may
// come after it, once; for that there are tokens.
func (t *trial) judgeWrites(stall time.Duration) {
	begun, highest := 0, int64(0)
	for _, p := range t.st.tries() {
		if p.taken && p.token < highest {
			t.violation("the storage has taken a write under token %d after one under %d", p.token, highest)
		}
		if p.taken {
			highest = max(highest, p.token)
		}
		t.mu.Lock()
		deadline := t.deadline(p.at)
		resumed := t.healedAt
		t.mu.Unlock()
		past := p.at.Sub(deadline)
		if p.next || past <= 0 {
			continue
		}
		kind := &t.sums.starved
		soon := t.harm == stopped && p.at.Before(resumed.Add(pastBound+stall))
		switch {
		case soon && t.ends:
			kind = &t.sums.overlaps
		case soon && begun == 0:
			begun++
			kind = &t.sums.inFlight
		case past > stall+t.keeps:
			t.violation("a write comes %s past the deadline; the machine has kept processes waiting for up to %s", past, stall)
			continue
		}
		t.sums.add(kind)
		if !p.taken {
			t.sums.add(&t.sums.stale)
		}
	}
}

// judgeStatus compares the exit status with what is documented.
func (t *trial) judgeStatus(stall time.Duration) {
	status, taken := t.status(), 0
	for _, p := range t.st.tries() {
		if p.taken && !p.next {
			taken++
		}
	}
	_, released := t.untilFree()
	if t.crossed {
		t.sums.add(&t.sums.crossed)
	}
	t.mu.Lock()
	asked, took, happened := len(t.asked) > 0, t.exitedAt.Sub(t.struck), !t.struck.IsZero()
	t.mu.Unlock()
	ok := false
	switch status {
	case 0:
		ok = taken == parts
	case exitTerminated:
		byDefault := t.cmd.ProcessState.ExitCode() < 0
		ok = t.harm == terminated && happened && (!byDefault || !asked || released) // caught, as long as there is something to release
	case exitNotHad, exitNoGateway:
		ok = taken == 0 && t.mayGiveUp(happened, stall)
	case exitLost:
		ok = t.mayGiveUp(happened, stall)
	}
	if !ok {
		t.violation("after %d parts the exit status is %d", taken, status)
	}
	if t.harm != terminated || !happened {
		return
	}
	t.sums.most(t.sums.slowest, t.name, took)
	if took > endsBy+stall {
		t.violation("it ends %s after SIGTERM", took)
	}
}

// mayGiveUp reports whether there is a reason to give up the lease, or not to get it in time.
func (t *trial) mayGiveUp(happened bool, stall time.Duration) bool {
	if happened && t.harm != terminated && t.lasts > ttlOfTrials/4 {
		return true
	}
	if stall < busy {
		return false
	}
	t.sums.add(&t.sums.gaveUp)
	return true
}

// add counts one more.
func (s *sums) add(to *int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*to++
}

// most notes the largest value.
func (s *sums) most(of map[string]time.Duration, key string, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, known := of[key]; !known || d > last {
		of[key] = d
	}
}

func (s *sums) report(r *check.Result, watched *stalls) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Count("runs that ended before the moment that was chosen", s.early)
	r.Count("writes begun before a stop that came past the deadline", s.inFlight)
	r.Count("writes of commands past the deadline while lockctl was stopped", s.overlaps)
	r.Count("refused of these", s.stale)
	r.Count("writes late by less than the machine has kept processes waiting", s.starved)
	r.Count("grants answered when their client had left, which the release was sooner than", s.crossed)
	r.Count("leases given up on a machine that has kept processes waiting", s.gaveUp)
	r.Count("longest wait for a processor", watched.longestSince(time.Time{}))
	for _, key := range slices.Sorted(maps.Keys(s.slowest)) {
		r.Note("%s: ended %s after SIGTERM at the latest", key, s.slowest[key].Round(time.Millisecond))
	}
	for _, key := range slices.Sorted(maps.Keys(s.longest)) {
		r.Note("%s: the lock was held %s after the end at the most, where it was released", key, s.longest[key].Round(time.Millisecond))
	}
}
