package members

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"fencepost/verify/system"
)

const (
	// talkers hold one name together, each with all the metadata that it may have: 4 kB.
	talkers = 100

	// refusedAtOnce ask for that name at a follower.
	refusedAtOnce = 500

	// leastRefused is how many of them are told so at least: a machine that has much else to do leaves one or the other
	// without an answer.
	leastRefused = refusedAtOnce * 9 / 10

	// bystanders take and release locks of their own there meanwhile.
	bystanders = 4

	// mostGrown is by how many bytes the memory of the leader may grow meanwhile: what the holders would have, once, were they
	// in each refusal by themselves.
	mostGrown = 200 << 20
)

// talkative is what one of the talkers asks for.
var talkative = func() string {
	metadata := map[string]string{}
	for i := range 16 {
		metadata[fmt.Sprint(i)] = strings.Repeat("x", 250)
	}
	b, err := json.Marshal(map[string]any{"mode": "shared", "ttl_ms": 600_000, "metadata": metadata})
	if err != nil {
		panic(err)
	}
	return string(b)
}()

// refuse has many be refused at once at a follower, a name that many hold who have much to say: each is told who they
// are, who asks for other names there is served, and the leader needs little memory for it.
func refuse(l *load, round int) (time.Duration, error) {
	leader, err := l.s.Leader(patience)
	if err != nil {
		return 0, err
	}
	follower := others(l.s, leader)[round%(len(l.s.Gateways)-1)]
	name := fmt.Sprintf("refusals/%d-%d", round, time.Now().UnixNano())
	held, err := l.talk(leader, name)
	if err != nil {
		return 0, err
	}
	before, err := memory(leader, "VmRSS")
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", leader.PID()), []byte("5"), 0); err != nil { // the peak begins anew
		return 0, err
	}
	done := make(chan struct{})
	var standing sync.WaitGroup
	var beside atomic.Int64
	for i := range bystanders {
		standing.Go(func() { beside.Add(l.standBy(follower, fmt.Sprintf("%s/beside/%d", name, i), done)) })
	}
	moment := time.Now()
	refused := l.refusals(follower, name)
	took := time.Since(moment)
	close(done)
	standing.Wait()
	if err := l.ctx.Err(); err != nil {
		return 0, err
	}
	most, err := memory(leader, "VmHWM")
	if err != nil {
		return 0, err
	}
	if grown := most - before; grown > mostGrown {
		l.r.Violation("the leader's memory grew from %d MiB to %d MiB while %d were refused at a follower", before>>20, most>>20, refusedAtOnce)
	}
	if beside.Load() == 0 {
		l.r.Violation("nobody else was served by a follower at which %d were refused", refusedAtOnce)
	}
	if refused < leastRefused {
		l.r.Violation("of %d that ask for %s at once at a follower %d are refused as they are to be", refusedAtOnce, name, refused)
	}
	l.r.Reach("refusals at a follower", refused, refusedAtOnce)
	l.r.Count("refusals at a follower at once: all answered after", took)
	l.r.Count("refusals at a follower at once: the leader's memory grew by at most, MiB", (most-before)>>20)
	l.r.Note("%d refusals of %s at a follower took %s, %d grants and releases beside them; the leader had %d MiB, and %d MiB at most",
		refused, name, took.Round(time.Millisecond), beside.Load(), before>>20, most>>20)
	next, err := l.next(time.Now(), "many were refused")
	if err != nil {
		return 0, err
	}
	return next, l.hush(leader, name, held)
}

// talk has many hold a name, and returns their leases.
func (l *load) talk(at *system.Gateway, name string) (held []string, err error) {
	for range talkers {
		id := newLeaseID()
		a, err := l.insist(func() *system.Gateway { return at }, func(ctx context.Context, g *system.Gateway) (system.Answer, error) {
			return l.client.Acquire(ctx, g, name, id, talkative)
		})
		if err == nil && a.Status != http.StatusCreated && a.Status != http.StatusOK {
			err = fmt.Errorf("not all can share %s: %s", name, a)
		}
		if err != nil {
			return nil, err
		}
		held = append(held, id)
	}
	return held, nil
}

// hush has them release it.
func (l *load) hush(at *system.Gateway, name string, held []string) error {
	for _, id := range held {
		a, err := l.insist(func() *system.Gateway { return at }, func(ctx context.Context, g *system.Gateway) (system.Answer, error) {
			return l.client.Release(ctx, g, name, id)
		})
		if err != nil {
			return err
		}
		if a.Status != http.StatusNoContent {
			l.r.Violation("a release of %s was answered %s", name, a)
		}
	}
	return nil
}

// refusals has many ask at once, and returns how many were refused as they are to be. Who has no answer, or 503, is not
// counted.
func (l *load) refusals(at *system.Gateway, name string) int {
	client := http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: refusedAtOnce}, Timeout: patience}
	defer client.CloseIdleConnections()
	var refused atomic.Int64
	var asking sync.WaitGroup
	for range refusedAtOnce {
		asking.Go(func() {
			response, err := client.Post(at.URL()+"/locks/"+name, "application/json", strings.NewReader(`{"ttl_ms":1000}`))
			if err != nil {
				return // nothing is known
			}
			defer response.Body.Close()
			shown := counter{of: []byte(`"metadata":{"`)}
			_, err = io.Copy(&shown, response.Body)
			switch {
			case err != nil || response.StatusCode == http.StatusServiceUnavailable: // as well
			case response.StatusCode != http.StatusLocked:
				l.r.Violation("one of %d that ask for %s at once is answered %d: %s", refusedAtOnce, name, response.StatusCode, shown.begins)
			case shown.n != talkers:
				l.r.Violation("a refusal of %s shows %d holders of %d: %s", name, shown.n, talkers, shown.begins)
			default:
				refused.Add(1)
			}
		})
	}
	asking.Wait()
	return int(refused.Load())
}

// counter counts how often a text is in what is written, and keeps the beginning alone.
type counter struct {
	of, begins, last []byte
	n                int
}

func (c *counter) Write(p []byte) (int, error) {
	if room := 1000 - len(c.begins); room > 0 {
		c.begins = append(c.begins, p[:min(room, len(p))]...)
	}
	joined := append(c.last, p...)
	c.n += bytes.Count(joined, c.of)
	c.last = append([]byte(nil), joined[max(len(joined)-len(c.of)+1, 0):]...)
	return len(p), nil
}

// standBy takes and releases locks under a name at a gateway until it is done, and returns how often. Each request is served: what has
// no answer, or 503, is not counted, and the next is of another name.
func (l *load) standBy(at *system.Gateway, under string, done <-chan struct{}) (served int64) {
	unknown := func(a system.Answer, err error) bool { return err != nil || a.Status == http.StatusServiceUnavailable }
	for turn := 0; ; turn++ {
		select {
		case <-done:
			return served
		case <-l.ctx.Done():
			return served
		default:
		}
		id, name := newLeaseID(), fmt.Sprint(under, "/", turn)
		a, err := l.client.Acquire(l.ctx, at, name, id, `{"ttl_ms":60000}`)
		if unknown(a, err) {
			continue
		}
		if a.Status != http.StatusCreated {
			l.r.Violation("beside many that are refused %s is not granted: %s", name, a)
			return served
		}
		a, err = l.client.Release(l.ctx, at, name, id)
		if unknown(a, err) {
			continue
		}
		if a.Status != http.StatusNoContent {
			l.r.Violation("beside many that are refused %s is not released: %s", name, a)
			return served
		}
		served++
	}
}

// memory returns what the status of a gateway's process says in kB, in bytes.
func memory(g *system.Gateway, what string) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", g.PID()))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(status), "\n"+what+":")
	var kB int64
	if _, err := fmt.Sscan(rest, &kB); err != nil {
		return 0, fmt.Errorf("%s of process %d: %w", what, g.PID(), err)
	}
	return kB << 10, nil
}
