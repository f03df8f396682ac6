package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// keeper is gateways with one store, which has one lease: a stream holds it, or nobody. Its time
// is that of a test's bubble.
type keeper struct {
	ttl time.Duration // of the grant

	mu       sync.Mutex
	held     []string      // the names of the lease; nil: it was not granted yet
	expires  time.Time     // of all of them
	renews   time.Duration // what the last renewal asked for
	released []string
	broken   []string
	streams  []*keptStream            // in the order of their requests; the last one has the lease, unless taken
	taken    bool                     // by a request that is no stream
	asked    []string                 // methods
	refuses  []Code                   // the next requests for the lease, one each
	most     time.Duration            // the longest TTL that may be asked for; 0: any
	untold   bool                     // streams that are replaced are not told
	brief    int                      // so many streams end as soon as they were granted
	frozen   map[string]chan struct{} // gateways by their host, or requests by their method, until it is closed
}

// keptStream is an answer that is a stream.
type keptStream struct {
	w      *io.PipeWriter
	events chan string
	silent bool // nothing comes through any more
}

// keep returns a client of two gateways that share a keeper, and the keeper.
func keep(t *testing.T, ttl time.Duration) (*Client, *keeper) {
	t.Helper()
	k := &keeper{ttl: ttl, frozen: map[string]chan struct{}{}}
	t.Cleanup(func() { // where a test has failed
		for _, frozen := range k.frozen {
			close(frozen)
		}
	})
	return scripted(t, 2, k.answer), k
}

// answer answers a request in its time, and carries it out although nobody listens any more.
func (k *keeper) answer(r *http.Request) (*http.Response, error) {
	type answer struct {
		response *http.Response
		err      error
	}
	answered := make(chan answer, 1)
	var asks renewRequest // of whatever kind: it has what matters
	if r.Body != nil {
		if err := json.NewDecoder(r.Body).Decode(&asks); err != nil {
			return nil, err
		}
	}
	k.mu.Lock()
	k.asked = append(k.asked, r.Method)
	frozen := cmp.Or(k.frozen[r.URL.Host], k.frozen[r.Method])
	k.mu.Unlock()
	go func() {
		if frozen != nil {
			<-frozen
		}
		response, err := k.carryOut(r, asks)
		answered <- answer{response, err}
	}()
	select {
	case a := <-answered:
		return a.response, a.err
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	}
}

func (k *keeper) carryOut(r *http.Request, asks renewRequest) (*http.Response, error) {
	names := append(asks.Names, r.URL.Query()["name"]...)
	if name := nameOf(r.URL.Path); name != "" {
		names = []string{name}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var lost []string
	reason := ReasonReleased
	for _, name := range names {
		if slices.Contains(k.released, name) {
			lost = append(lost, name)
		}
		if slices.Contains(k.broken, name) {
			lost, reason = append(lost, name), ReasonBroken
		}
	}
	id := r.Header.Get("Lease-Id")
	over := k.held != nil && time.Now().After(k.expires)
	switch {
	case r.Method == http.MethodPost && len(k.refuses) > 0:
		code := k.refuses[0]
		k.refuses = k.refuses[1:]
		return says(503, fmt.Sprintf(`{"code":%q}`, code))
	case k.most > 0 && millis(asks.TTL) > k.most:
		return says(400, `{"code":"invalid_request","field":"ttl_ms"}`)
	case r.Method == http.MethodDelete:
		k.release(names)
		return says(204, "")
	case over:
		return says(412, `{"code":"lease_lost","reason":"expired"}`)
	case len(lost) > 0 && r.Method == http.MethodPut && len(names) > 1:
		return says(412, fmt.Sprintf(`{"code":"lease_lost","reason":%q,"lost":["%s"],"locks":[]}`, reason, strings.Join(lost, `","`)))
	case len(lost) > 0:
		return says(412, fmt.Sprintf(`{"code":"lease_lost","reason":%q}`, reason)) // which one a POST does not say
	case r.Method == http.MethodPut:
		k.renew(millis(asks.TTL))
		return says(200, k.lease(id, names, "waited_ms"))
	}
	if k.held == nil {
		k.held = names
		k.renew(0)
	}
	for _, s := range k.streams {
		if !k.taken && !k.untold && s == k.streams[len(k.streams)-1] {
			s.say("lost", `{"code":"replaced"}`)
		}
	}
	if k.taken = r.Header.Get("Accept") != "text/event-stream"; k.taken {
		return says(200, k.lease(id, names, "waited_ms"))
	}
	return k.stream(r, k.lease(id, names, "elapsed_ms"))
}

// renew is what every renewal does; 0 is the TTL of the grant.
func (k *keeper) renew(ttl time.Duration) {
	if ttl == 0 {
		ttl = k.ttl
	}
	k.renews, k.expires = ttl, time.Now().Add(ttl)
}

func (k *keeper) release(names []string) {
	k.released = append(k.released, names...)
	if len(k.streams) == 0 || k.taken {
		return
	}
	for _, name := range names {
		k.streams[len(k.streams)-1].say("released", fmt.Sprintf(`{"name":%q}`, name))
	}
}

func (k *keeper) breaks(names []string) {
	k.broken = append(k.broken, names...)
	if len(k.streams) > 0 && !k.taken {
		k.streams[len(k.streams)-1].say("lost", fmt.Sprintf(`{"code":"lease_lost","reason":"broken","name":%q}`, names[0]))
	}
}

// lease is the lease as it is told; the time since the request is 0.
func (k *keeper) lease(id string, names []string, since string) string {
	left := time.Until(k.expires)
	life := fmt.Sprintf(`"lease_id":%q,"ttl_ms":%d,"expires_in_ms":%d,"renew_in_ms":%d,%q:0`, id, k.ttl.Milliseconds(), left.Milliseconds(), (left / 3).Milliseconds(), since)
	locks := make([]string, len(names))
	for i, name := range names {
		locks[i] = fmt.Sprintf(`{"name":%q,"fencing_token":%d,"ttl_ms":%d}`, name, name[0], k.ttl.Milliseconds())
	}
	if len(k.held) == 1 {
		return `{"name":"` + names[0] + `","fencing_token":7,` + life + "}"
	}
	return "{" + life + `,"locks":[` + strings.Join(locks, ",") + "]}"
}

// stream has the lease renewed, by the TTL of its grant, until its client leaves or another
// request has it.
func (k *keeper) stream(r *http.Request, granted string) (*http.Response, error) {
	from, to := io.Pipe()
	s := &keptStream{w: to, events: make(chan string, 100)}
	k.streams = append(k.streams, s)
	s.say("granted", granted)
	if k.brief > 0 {
		k.brief--
		s.say("end", "")
	}
	ctx, begun := r.Context(), time.Now()
	context.AfterFunc(ctx, func() { to.CloseWithError(ctx.Err()) })
	go func() {
		for {
			select {
			case e := <-s.events:
				if k.isSilent(s) {
					continue
				}
				if _, err := io.WriteString(to, e); err != nil || strings.Contains(e, "event: lost") || strings.Contains(e, "event: end") {
					to.Close()
					return
				}
			case <-time.After(k.ttl / 3):
				k.mu.Lock()
				if !k.taken && s == k.streams[len(k.streams)-1] && time.Now().Before(k.expires) {
					k.renew(0)
					s.say("renewed", fmt.Sprintf(`{"expires_in_ms":%d,"elapsed_ms":%d}`, k.ttl.Milliseconds(), time.Since(begun).Milliseconds()))
				}
				k.mu.Unlock()
			case <-ctx.Done():
				return
			}
		}
	}()
	response, err := says(200, "")
	response.Header.Set("Content-Type", "text/event-stream")
	response.Body = from
	return response, err
}

func (s *keptStream) say(name, data string) {
	s.events <- "event: " + name + "\ndata: " + data + "\n\n"
}

func (k *keeper) isSilent(s *keptStream) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return s.silent
}

// harm does something to the streams that there are.
func (k *keeper) harm(do func(*keptStream)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range k.streams {
		do(s)
	}
}

func fallSilent(s *keptStream) { s.silent = true }
func breakOff(s *keptStream)   { s.w.CloseWithError(io.ErrUnexpectedEOF) }

// freeze stops a gateway, or what has a method. What is asked meanwhile is carried out when it is thawed.
func (k *keeper) freeze(what string) (thaw func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	frozen := make(chan struct{})
	k.frozen[what] = frozen
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.frozen, what)
		close(frozen)
	}
}

// count returns how many requests had a method.
func (k *keeper) count(method string) (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, asked := range k.asked {
		if asked == method {
			n++
		}
	}
	return n
}

// hostOf returns the gateway that a client asks next, or after so many others.
func hostOf(c *Client, after uint32) string {
	return strings.TrimPrefix(c.address(c.current.Load()+after), "http://")
}

// lives has time pass, in which a lease may not end.
func lives(t *testing.T, l *Lease, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	select {
	case <-timer.C:
	case <-l.Context().Done():
		t.Fatalf("it has ended: %v", context.Cause(l.Context()))
	}
}

// A name that is released by itself is no loss of the others, whoever released it and whatever the
// stream says meanwhile; that the last one is, is. A name that is broken ends them all. So does, without Linger, one that others release
// while the stream may have ended, for its end may have released it.
func TestReleasedByName(t *testing.T) {
	states := map[string]func(t *testing.T, c *Client, k *keeper, l *Lease) (after func()){
		"on a stream": func(*testing.T, *Client, *keeper, *Lease) func() { return func() {} },
		"silent":      func(_ *testing.T, _ *Client, k *keeper, _ *Lease) func() { k.harm(fallSilent); return func() {} },
		"taken over": func(_ *testing.T, _ *Client, k *keeper, _ *Lease) func() {
			k.harm(breakOff)
			synctest.Wait()
			return func() {}
		},
		"being taken over": func(_ *testing.T, _ *Client, k *keeper, _ *Lease) func() {
			thaw := k.freeze(http.MethodPost)
			k.harm(breakOff)
			synctest.Wait()
			return thaw
		},
		"being taken over from silence": func(t *testing.T, _ *Client, k *keeper, l *Lease) func() {
			thaw := k.freeze(http.MethodPost)
			k.harm(fallSilent)
			lives(t, l, 4*time.Second) // an event is overdue
			return thaw
		},
		"renewed by the client": func(t *testing.T, c *Client, _ *keeper, l *Lease) func() {
			must[time.Duration](t)(c.Renew(t.Context(), l.ID(), 3*time.Second, l.held()...))
			lives(t, l, 10*time.Second)
			return func() {}
		},
		"being renewed by the client": func(t *testing.T, c *Client, k *keeper, l *Lease) func() {
			must[time.Duration](t)(c.Renew(t.Context(), l.ID(), 3*time.Second, l.held()...))
			thaw := k.freeze(http.MethodPut)
			lives(t, l, 1100*time.Millisecond)
			return thaw
		},
	}
	type ends func(c *Client, k *keeper, l *Lease, names ...string) error
	releases := map[string]ends{
		"the same client": func(c *Client, _ *keeper, l *Lease, names ...string) error {
			return c.Release(context.Background(), l.ID(), names...)
		},
		"another client": func(c *Client, _ *keeper, l *Lease, names ...string) error {
			return c.release(context.Background(), 0, l.ID(), names)
		},
		"who breaks it": func(_ *Client, k *keeper, _ *Lease, names ...string) error {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.breaks(names)
			return nil
		},
	}
	mayHaveEnded := []string{"silent", "being taken over", "being taken over from silence"}
	for state, reach := range states {
		for who, end := range releases {
			for _, of := range []struct {
				last   bool
				linger time.Duration
			}{{}, {linger: 9 * time.Second}, {last: true}} {
				last, maybeLost := of.last, of.linger == 0 && who == "another client" && slices.Contains(mayHaveEnded, state)
				t.Run(fmt.Sprintf("%s/%s/%t/%s", state, who, last, of.linger), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						c, k := keep(t, 9*time.Second)
						defer c.Close()
						names, reason := []string{"a", "d"}, ReasonReleased
						if last {
							names = []string{"c", "a", "d", "b"}
						}
						if who == "who breaks it" {
							names, reason = names[:1], ReasonBroken
						}
						l := must[*Lease](t)(c.Acquire(t.Context(), "c", Also("a", "d", "b"), Attached(), Linger(of.linger)))
						after := reach(t, c, k, l)
						if err := end(c, k, l, names...); err != nil {
							t.Fatal(err)
						}
						after()
						if !last && !maybeLost && reason == ReasonReleased {
							lives(t, l, time.Minute)
							if left := l.Grants(); len(left) != 2 || left[0].Name != "c" || left[1].Name != "b" {
								t.Errorf("it has %+v", left)
							}
							if n := k.count(http.MethodPost); n > 4 { // a POST does not say which of two was released
								t.Errorf("it is asked for %d times", n)
							}
							return
						}
						begun := time.Now()
						select {
						case <-l.Context().Done():
						case <-time.After(time.Minute):
						}
						err := context.Cause(l.Context())
						if e := refusal(err); who == "the same client" && err != ErrReleased || who != "the same client" && (e == nil || e.Code != CodeLeaseLost || e.Reason != reason) {
							t.Errorf("it has ended: %v", err)
						}
						if took := time.Since(begun); took > 7*time.Second/2 { // it is asked for by then
							t.Errorf("that is known after %s", took)
						}
						deletes := k.count(http.MethodDelete)
						sleep(t.Context(), time.Minute) // the work stops
						if n := k.count(http.MethodDelete) - deletes; n > 0 {
							t.Errorf("the other names are released by %d requests while the work stops", n)
						}
					})
				})
			}
		}
	}
}

// A lease that its gateway keeps for Linger only is asked for in that time more than once: though no answer comes, and though streams
// that are granted end at once.
func TestAsksWhileItLingers(t *testing.T) {
	const linger = 900 * time.Millisecond
	for _, names := range [][]string{{"a"}, {"a", "b"}} {
		for what, harm := range map[string]func(k *keeper){
			"no answer":     func(k *keeper) { k.freeze(http.MethodPost) },
			"brief streams": func(k *keeper) { k.brief = 20 },
		} {
			t.Run(fmt.Sprint(what, names), func(t *testing.T) {
				if what == "brief streams" && len(names) == 1 {
					return // it is taken over without one
				}
				synctest.Test(t, func(t *testing.T) {
					c, k := keep(t, 9*time.Second)
					defer c.Close()
					must[*Lease](t)(c.Acquire(t.Context(), names[0], Also(names[1:]...), Attached(), Linger(linger)))
					harm(k)
					k.harm(breakOff)
					for range 2 {
						before := k.count(http.MethodPost)
						sleep(t.Context(), linger)
						if n := k.count(http.MethodPost) - before; n < 3 {
							t.Errorf("it is asked for %d times in %s", n, linger)
						}
						if what == "no answer" {
							return // it is over by then
						}
					}
				})
			})
		}
	}
}

// The end of a stream that only the gateway has seen is known as soon as an event is overdue.
func TestAsksWhenAnEventIsOverdue(t *testing.T) {
	for _, names := range [][]string{{"a"}, {"a", "b"}} {
		synctest.Test(t, func(t *testing.T) {
			c, k := keep(t, 20*time.Second)
			defer c.Close()
			begun := time.Now()
			l := must[*Lease](t)(c.Acquire(t.Context(), names[0], Also(names[1:]...), Attached()))
			k.harm(fallSilent)
			k.mu.Lock()
			k.release(names)
			k.mu.Unlock()
			<-l.Context().Done()
			took, err := time.Since(begun), context.Cause(l.Context())
			if !errors.Is(err, CodeLeaseLost) || refusal(err).Reason != ReasonReleased || took > 7500*time.Millisecond { // three eighths of the TTL
				t.Errorf("%v: %v after %s", names, err, took)
			}
		})
	}
}

// So it is without a stream, if it is this client that releases it: who renews the lease knows.
func TestReleasedByNameOfAPlainLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := keep(t, 9*time.Second)
		defer c.Close()
		l := must[*Lease](t)(c.Acquire(t.Context(), "c", Also("a", "b")))
		if err := c.Release(t.Context(), l.ID(), "c", "a"); err != nil {
			t.Fatal(err)
		}
		lives(t, l, time.Minute)
		if left := l.Grants(); len(left) != 1 || l.Name() != "b" || l.Token() != 'b' {
			t.Errorf("it has %+v", left)
		}
		if err := c.Release(t.Context(), l.ID(), "b"); err != nil {
			t.Fatal(err)
		}
		if err := l.Err(); err != ErrReleased || l.Context().Err() == nil {
			t.Errorf("the last one is released: %v", err)
		}
	})
}

// A renewal that is under way for a name that is released meanwhile is no loss of the others.
func TestReleasedByNameWhileItIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, k := keep(t, 9*time.Second)
		defer c.Close()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a", Also("b", "c")))
		thaw := k.freeze(http.MethodPut)
		lives(t, l, 3*time.Second+time.Millisecond) // a renewal is under way
		if err := c.Release(t.Context(), l.ID(), "a"); err != nil {
			t.Fatal(err)
		}
		thaw()
		lives(t, l, time.Minute)
		if left := l.Grants(); len(left) != 2 || k.count(http.MethodPut) > 30 {
			t.Errorf("it has %+v, and was renewed %d times", left, k.count(http.MethodPut))
		}
	})
}

// Nor is it one that is taken over: the rest are taken over to another stream at once.
func TestReleasedByNameWhileItIsTakenOver(t *testing.T) {
	for _, names := range [][]string{{"a", "b"}, {"a", "b", "c"}} {
		synctest.Test(t, func(t *testing.T) {
			c, k := keep(t, 9*time.Second)
			defer c.Close()
			l := must[*Lease](t)(c.Acquire(t.Context(), names[0], Also(names[1:]...), Attached()))
			thaw := k.freeze(http.MethodPost)
			k.harm(breakOff)
			synctest.Wait()
			if err := c.Release(t.Context(), l.ID(), "a"); err != nil {
				t.Fatal(err)
			}
			thaw()
			lives(t, l, time.Minute)
			if left, posts, puts := l.Grants(), k.count(http.MethodPost), k.count(http.MethodPut); len(left) != len(names)-1 || posts != 3 || puts != 1 {
				t.Errorf("it has %+v, asked for a stream %d times and renewed %d times", left, posts, puts)
			}
		})
	}
}

// A renewal that is refused for a name is repeated only without one that the lease had.
func TestDropsOnlyWhatItHas(t *testing.T) {
	l := &Lease{names: []string{"a", "b"}, claim: call{stream: true}}
	for _, c := range []struct {
		lost string
		want bool
	}{{"x", false}, {"a", true}, {"a", false}, {"b", false}} {
		if got := l.dropLost(&Error{Code: CodeLeaseLost, Reason: ReasonReleased, Lost: []string{c.lost}}); got != c.want {
			t.Errorf("%s: %t, and it has %s", c.lost, got, l.held())
		}
	}
}

// A name that others released is a loss in each kind of doubt whether a stream has ended, unless its gateway keeps the
// lease for Linger then. What has replaced a stream may have none.
func TestDropsNothingInDoubt(t *testing.T) {
	now := instant{t: time.Now(), boot: time.Hour}
	for what, doubt := range map[string]func(l *Lease){
		"none":                      func(*Lease) {},
		"its stream has ended":      func(l *Lease) { l.hangs.cut.Store(&now) },
		"its stream says nothing":   func(l *Lease) { l.hangs.mute.Store(true) },
		"it was replaced":           func(l *Lease) { l.hangs.taken.Store(&now) },
		"a request has no answer":   func(l *Lease) { l.asked = []*attempt{{}} },
		"a request came to nothing": func(l *Lease) { l.doubted, l.doubtedAt = 1, now },
	} {
		for _, linger := range []time.Duration{0, time.Second} {
			l := &Lease{c: &Client{now: func() instant { return now }}, names: []string{"a", "b"},
				claim: call{stream: true}, hangs: &stream{}, linger: linger, lingerLate: linger}
			doubt(l)
			want := what == "none" || linger > 0 && what != "it was replaced"
			if got := l.dropReleased("a"); got != want {
				t.Errorf("%s, with Linger of %s: it is dropped: %t", what, linger, got)
			}
		}
	}
}

// A request that its gateway comes to late, when another one was granted the lease, takes nothing
// from its client: not the first one, nor one for another stream, and not time and again.
func TestReplacedByALateRequest(t *testing.T) {
	for _, names := range [][]string{{"a"}, {"a", "b"}} {
		t.Run(strings.Join(names, ","), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, k := keep(t, 9*time.Second)
				defer c.Close()
				thaw := k.freeze("a")
				l := must[*Lease](t)(c.Acquire(t.Context(), names[0], Also(names[1:]...), Attached()))
				thaw()
				lives(t, l, time.Minute)
				if len(names) == 1 {
					return // this client renews it by itself from now on
				}
				for round := range 4 * maxAttempts {
					thaw, thawOther := k.freeze(hostOf(c, 0)), func() {}
					if round%2 > 0 { // it is carried out late, but before the one that is asked next
						thawOther = k.freeze(hostOf(c, 1))
					}
					k.harm(fallSilent)
					lives(t, l, 6*time.Second+500*time.Millisecond) // an event is overdue, and the next request was given up
					thaw()
					lives(t, l, 100*time.Millisecond)
					thawOther()
					lives(t, l, time.Minute)
				}
				puts := k.count(http.MethodPut)
				lives(t, l, time.Minute)
				if n := k.count(http.MethodPut) - puts; n > 0 {
					t.Errorf("it hangs on no stream: the client renews it %d times", n)
				}
				// Somebody else's request is another thing.
				k.mu.Lock()
				k.streams[len(k.streams)-1].say("lost", `{"code":"replaced"}`)
				k.mu.Unlock()
				<-l.Context().Done()
				if err := context.Cause(l.Context()); !errors.Is(err, CodeReplaced) {
					t.Error(err)
				}
			})
		})
	}
}

// Streams that were granted late and never say that they were replaced keep nobody from asking for another.
func TestLateStreamsThatStayOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, k := keep(t, 9*time.Second)
		defer c.Close()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a", Also("b"), Attached()))
		k.mu.Lock()
		k.untold = true
		k.mu.Unlock()
		for range 2 * maxAttempts {
			thaw := k.freeze(hostOf(c, 1)) // the next one: a stream that says nothing has its gateway passed over
			k.harm(fallSilent)
			lives(t, l, 6*time.Second+500*time.Millisecond)
			thaw()
			lives(t, l, time.Minute)
		}
		puts := k.count(http.MethodPut)
		lives(t, l, time.Minute)
		if n := k.count(http.MethodPut) - puts; n > 0 {
			t.Errorf("it hangs on no stream: the client renews it %d times", n)
		}
	})
}

// A lease that hangs on another stream is renewed by its gateway: it does not matter whether the client's
// own renewal beside it is answered.
func TestAttachedAgainWithoutAnAnswerToARenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, k := keep(t, 9*time.Second)
		defer c.Close()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a", Also("b"), Attached()))
		defer k.freeze(http.MethodPut)()
		for range 2 * maxAttempts {
			k.harm(breakOff)
			lives(t, l, time.Minute)
		}
		if n := k.count(http.MethodPost); n != 1+2*maxAttempts {
			t.Errorf("it was asked for %d times", n)
		}
	})
}

// A request that was refused is not carried out late, nor does one with another lease id take
// anything: what replaces the stream then is somebody else's.
func TestReplacedAfterARefusal(t *testing.T) {
	for _, refused := range []Code{CodeNotReplicated, CodeClockSkew, CodeDraining, CodeLeaseLost} {
		synctest.Test(t, func(t *testing.T) {
			c, k := keep(t, 9*time.Second)
			defer c.Close()
			thaw := func() {}
			if refused == CodeLeaseLost { // the next one has another lease id
				thaw = k.freeze(hostOf(c, 0))
			}
			defer func() { thaw() }()
			k.refuses = []Code{refused}
			l := must[*Lease](t)(c.Acquire(t.Context(), "a", Also("b"), Attached()))
			if refused != CodeLeaseLost {
				k.mu.Lock()
				k.refuses = []Code{refused}
				k.mu.Unlock()
				k.harm(breakOff)
				lives(t, l, time.Minute)
			}
			k.mu.Lock()
			k.streams[len(k.streams)-1].say("lost", `{"code":"replaced"}`)
			k.mu.Unlock()
			select {
			case <-l.Context().Done():
			case <-time.After(time.Minute):
			}
			if err := context.Cause(l.Context()); !errors.Is(err, CodeReplaced) {
				t.Errorf("%s, then another's request has replaced it: %v", refused, err)
			}
		})
	}
}

// A lease is taken over from a stream that has ended by a gateway whose bounds exclude its TTL by now, and renewed where no
// gateway grants another stream.
func TestTakenOverElsewhere(t *testing.T) {
	for what, test := range map[string]struct {
		names   []string
		options []Option
		refuses []Code
	}{
		"one name":         {names: []string{"a"}},
		"several names":    {names: []string{"a", "b"}},
		"too many streams": {names: []string{"a", "b"}, options: []Option{Linger(9 * time.Second)}, refuses: slices.Repeat([]Code{CodeTooManyRequests}, 1000)},
	} {
		synctest.Test(t, func(t *testing.T) {
			c, k := keep(t, 9*time.Second)
			defer c.Close()
			l := must[*Lease](t)(c.Acquire(t.Context(), test.names[0], append(test.options, Also(test.names[1:]...), Attached(), TTL(9*time.Second))...))
			lives(t, l, 20*time.Second)
			k.mu.Lock()
			k.most, k.refuses = 5*time.Second, test.refuses
			k.mu.Unlock()
			k.harm(breakOff)
			lives(t, l, time.Minute)
			if err := l.Release(t.Context()); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
}

// Streams that end as soon as they were granted are asked for at a growing distance, also where the client
// renews the lease beside them, and the lease lives meanwhile.
func TestRestsBetweenBriefStreams(t *testing.T) {
	for _, ttl := range []time.Duration{9 * time.Second, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			c, k := keep(t, 9*time.Second)
			defer c.Close()
			l := must[*Lease](t)(c.Acquire(t.Context(), "a", Also("b"), Attached()))
			must[time.Duration](t)(c.Renew(t.Context(), l.ID(), ttl, "a", "b"))
			k.mu.Lock()
			k.brief = 1000
			k.mu.Unlock()
			k.harm(breakOff)
			lives(t, l, time.Minute)
			if n := k.count(http.MethodPost); n > 500 {
				t.Errorf("with %s left it asks %d times in a minute", ttl, n)
			}
			k.mu.Lock()
			k.brief = 0
			k.mu.Unlock()
			lives(t, l, 10*time.Second)
			n := k.count(http.MethodPost)
			lives(t, l, time.Minute)
			if more := k.count(http.MethodPost) - n; more > 0 {
				t.Errorf("with %s left it asks %d times more", ttl, more)
			}
		})
	}
}

// An attached lease that is shortened is renewed for what was asked, however seldom its gateway
// renews it; several names stay on a stream, and go to another one when theirs is of no use any more.
func TestShortenedAttached(t *testing.T) {
	for _, names := range [][]string{{"a"}, {"a", "b"}} {
		for _, harmed := range []func(*keptStream){func(*keptStream) {}, fallSilent, breakOff} {
			synctest.Test(t, func(t *testing.T) {
				c, k := keep(t, 9*time.Second)
				defer c.Close()
				l := must[*Lease](t)(c.Acquire(t.Context(), names[0], Also(names[1:]...), Attached()))
				lives(t, l, 20*time.Second)
				must[time.Duration](t)(c.Renew(t.Context(), l.ID(), time.Second, names...))
				lives(t, l, 20*time.Second)
				k.harm(harmed)
				lives(t, l, 20*time.Second)
				if left := l.Remaining(); left > time.Second {
					t.Errorf("%v: it counts on %s", names, left)
				}
				if n := k.count("POST"); n > 4 {
					t.Errorf("%v: it is asked for %d times", names, n)
				}
				if len(names) > 1 {
					k.mu.Lock()
					k.release(names[:1])
					taken := k.taken
					k.mu.Unlock()
					lives(t, l, time.Second)
					if left := l.Grants(); len(left) != 1 || left[0].Name != "b" || taken {
						t.Errorf("it has %+v, on no stream: %t", left, taken)
					}
				}
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
