package redis

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

func code(err error) fencing.Code {
	var e *fencing.Error
	switch {
	case err == nil:
		return fencing.CodeOK
	case errors.As(err, &e):
		return e.Code
	}
	return "not a fencing.Error"
}

func wantCode(t *testing.T, what string, err error, want fencing.Code) {
	t.Helper()
	if code(err) != want {
		t.Errorf("%s: got %v, want code %s", what, err, want)
	}
}

// A broken token is remembered until the record is forgotten, to the microsecond.
func TestForgetting(t *testing.T) {
	b := openBackend(t, redistest.Start(t))
	s := b.stores[0]
	got, err := s.Do(t.Context(), acquireRequest("a"))
	wantCode(t, "acquire", err, fencing.CodeOK)
	breaking := fencing.BreakRequest{Name: "a", Token: got.Holder.Token}
	_, err = s.Do(t.Context(), breaking)
	wantCode(t, "break", err, fencing.CodeOK)
	b.SetTime(epoch.Add(fencing.ForgetAfter) - 1)
	_, err = s.Do(t.Context(), breaking)
	wantCode(t, "break again in time", err, fencing.CodeOK)
	b.SetTime(epoch.Add(fencing.ForgetAfter))
	_, err = s.Do(t.Context(), breaking)
	wantCode(t, "break again too late", err, fencing.CodeStaleToken)
	if n := s.redis().Exists(t.Context(), s.keys[0].lock("a")).Val(); n != 0 {
		t.Error("the forgotten record is still there")
	}
}

// Keys that nobody holds go by themselves, and those that matter don't.
func TestKeysEnd(t *testing.T) {
	b := openBackend(t, redistest.Start(t))
	s, ctx := b.stores[0], t.Context()
	r := acquireRequest("a")
	_, err := s.Do(ctx, r)
	wantCode(t, "acquire", err, fencing.CodeOK)
	k := &s.keys[0]
	if ttl := s.redis().TTL(ctx, k.lock("a")).Val(); ttl != -1 {
		t.Errorf("a held record has the TTL %s: it would vanish with the lease", ttl)
	}
	_, err = s.Do(ctx, fencing.ReleaseRequest{Name: "a", Lease: r.Lease})
	wantCode(t, "release", err, fencing.CodeOK)
	if ttl := s.redis().PTTL(ctx, k.lock("a")).Val(); ttl < fencing.ForgetAfter-time.Minute || ttl > fencing.ForgetAfter {
		t.Errorf("a free record has the TTL %s, want about %s", ttl, fencing.ForgetAfter)
	}
	if ttl := s.redis().PTTL(ctx, k.prefix+"ended:a:"+string(r.Lease.Public())).Val(); ttl < fencing.TombstoneTTL-time.Minute || ttl > fencing.TombstoneTTL {
		t.Errorf("a tombstone has the TTL %s, want about %s", ttl, fencing.TombstoneTTL)
	}
	keys := slices.DeleteFunc(s.redis().Keys(ctx, "*").Val(), func(key string) bool { return strings.HasSuffix(key, ":guard") || strings.HasSuffix(key, ":libraries") })
	if len(keys) != 5 { // record, tombstone, counter, history and its index
		t.Errorf("left behind: %q", keys)
	}
}

// What is in an intent says until when it counts. Its key ends long after that, for its time is
// Redis's own, and a busy Redis would have let it vanish before the gateway's clock is there.
func TestIntentOutlastsItsKeysTime(t *testing.T) {
	b := openBackend(t, redistest.Start(t))
	s := b.stores[0]
	reader := acquireRequest("a")
	reader.Mode = fencing.ModeShared
	_, err := s.Do(t.Context(), reader)
	wantCode(t, "acquire", err, fencing.CodeOK)
	writer := acquireRequest("a")
	writer.Intent = time.Millisecond
	_, err = s.Do(t.Context(), writer)
	wantCode(t, "acquire with an intent", err, fencing.CodeLocked)
	if ttl := s.redis().PTTL(t.Context(), s.keys[0].prefix+"intent:a").Val(); ttl < fencing.TombstoneTTL-time.Minute || ttl > fencing.TombstoneTTL+writer.Intent {
		t.Errorf("an intent has the TTL %s, want about %s", ttl, fencing.TombstoneTTL)
	}
}

// A queue and many holders leave no key of theirs behind.
func TestQueueKeysEnd(t *testing.T) {
	b := openBackend(t, redistest.Start(t))
	ctx := t.Context()
	var requests []fencing.AcquireRequest
	for i := range 8 {
		r := waitRequest("a")
		r.Keep = i%3 == 0
		if i < 4 {
			r.Mode, r.Limit = fencing.ModeShared, 3
		}
		requests = append(requests, r)
		_, err := b.stores[i%2].Do(ctx, r)
		wantCode(t, "acquire", err, fencing.CodeOK)
	}
	s, k := b.stores[0], &newKeyspaces(alonePartitions)[0]
	prefix := strings.TrimSuffix(k.token, "token")
	kinds := func() (kinds []string) {
		for _, key := range s.redis().Keys(ctx, prefix+"*").Val() {
			kind, _, _ := strings.Cut(strings.TrimPrefix(key, prefix), ":")
			if kind != "libraries" { // it is noted when the store is checked first
				kinds = append(kinds, kind)
			}
		}
		slices.Sort(kinds)
		return slices.Compact(kinds)
	}
	if got, want := kinds(), strings.Fields("expiry gateway gateways guard holders limits lock names places queue slots token tokens until"); !slices.Equal(got, want) {
		t.Errorf("keys %q, want %q", got, want)
	}
	for i, r := range requests {
		_, err := b.stores[i%2].Do(ctx, fencing.TakeBackRequest{Name: "a", Lease: r.Lease, Stamp: r.Stamp})
		wantCode(t, "take back", err, fencing.CodeOK)
	}
	if got, want := kinds(), strings.Fields("expiry gateways guard lock places resting token"); !slices.Equal(got, want) {
		t.Errorf("keys %q while places rest, want %q", got, want)
	}
	b.SetTime(epoch.Add(fencing.RestTTL))
	_, err := s.Expire(ctx, 10)
	wantCode(t, "expire", err, fencing.CodeOK)
	ended := slices.DeleteFunc(kinds(), func(kind string) bool { return kind == "expiry" || kind == "names" }) // once somebody has looked they have their marks
	if want := strings.Fields("gateways guard lock reaper token"); !slices.Equal(ended, want) {
		t.Errorf("keys %q at the end, want %q", ended, want)
	}
}

// A partition remembers the history of so many names and no more, and of a name
// so many ends.
func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	b := openBackend(t, redistest.Start(t))
	s, ctx := b.stores[0], t.Context()
	if s.sender.header.maxHistories != maxHistories {
		t.Fatalf("a store without partitions has %d, want %d", s.sender.header.maxHistories, maxHistories)
	}
	const most = 500 // in place of those
	s.sender.header.maxHistories = most
	for i := range most + 5 {
		b.SetTime(epoch + fencing.Instant(i))
		r := acquireRequest(fencing.Name(fmt.Sprint(i)))
		mustAcquire(t, s, r)
		mustRelease(t, s, r)
	}
	if n := len(s.redis().Keys(ctx, "*:history:*").Val()); n != most {
		t.Errorf("%d names have a history, want %d", n, most)
	}
	for range 5 * fencing.MaxHistory {
		r := acquireRequest("busy")
		mustAcquire(t, s, r)
		mustRelease(t, s, r)
	}
	if n := s.redis().LLen(ctx, "fencepost:{0}:history:busy").Val(); n > 4*fencing.MaxHistory {
		t.Errorf("%d elements of history", n)
	}
	out, err := s.Do(ctx, fencing.HistoryRequest{Name: "busy"})
	if err != nil || len(out.Past) != fencing.MaxHistory {
		t.Errorf("got %d ends and %v, want %d", len(out.Past), err, fencing.MaxHistory)
	}
}

// The library and Go speak one vocabulary.
func TestLibraryWords(t *testing.T) {
	codes := []fencing.Code{
		fencing.CodeOK, fencing.CodeLeaseLost, fencing.CodeLocked, fencing.CodeTooManyRequests, fencing.CodeConflict, fencing.CodeReplaced,
		fencing.CodeStaleToken, fencing.CodeInvalidRequest, fencing.CodeClockSkew, fencing.CodeQuarantined, fencing.CodeNotFound,
	}
	reasons := append(fencing.Reasons(), reasonFloor, reasonExhausted, aboutHold, aboutNames, aboutMode, aboutLimit, aboutLowLimit, aboutPermits, aboutSlot, "owner")
	for _, verdict := range fencing.Verdicts() {
		reasons = append(reasons, fencing.Reason(verdict))
	}
	var replies, details []string
	ends := regexp.MustCompile(`return (?:h\[\w+\] == 0 and '(released)' or )?'(broken|expired)',|out_of_time\(h\) ~= 'released'|text == 'released'|ended ~= 'released'`) // of out_of_time
	for _, m := range ends.FindAllStringSubmatch(rules().source, -1) {
		details = append(details, slices.DeleteFunc(m[1:], func(s string) bool { return s == "" })...)
	}
	for _, m := range regexp.MustCompile(`(?:return|nil,|and|or) '([a-z_]{2,})'[ ,\n]`).FindAllStringSubmatch(ends.ReplaceAllString(rules().source, ""), -1) {
		replies = append(replies, m[1])
	}
	for _, m := range regexp.MustCompile(`(?:lost\(|invalid\(|end_lease\(h, |entomb\(p, |text, number = |text, present = |'clock_skew', 0, |text = |TOMB_REASON\] ~= )'(\w+)'`).FindAllStringSubmatch(rules().source, -1) {
		details = append(details, m[1])
	}
	for _, code := range codes {
		if !slices.Contains(replies, string(code)) {
			t.Errorf("the library never replies %q, or the search is blind", code)
		}
	}
	for _, reason := range reasons {
		if !slices.Contains(details, string(reason)) {
			t.Errorf("the library never gives the reason %q, or the search is blind", reason)
		}
	}
	for _, word := range replies {
		if !slices.Contains(codes, fencing.Code(word)) {
			t.Errorf("the library replies %q, which Go does not know", word)
		}
	}
	for _, word := range details {
		if !slices.Contains(reasons, fencing.Reason(word)) {
			t.Errorf("the library gives the reason %q, which Go does not know", word)
		}
	}
	if strings.Contains(rules().source, "no-writes") {
		t.Error("Redis would run the library on a replica")
	}
}

func TestPartitionOf(t *testing.T) {
	// FNV-1a as published: these must never change, or data is not found again.
	for name, want := range map[fencing.Name]int{"": 2166136261 % 256, "a": 0xe40c292c % 256, "foobar": 0xbf9cf968 % 256} {
		if got := clusterPartition(name); got != want {
			t.Errorf("partitionOf(%q) = %d, want %d", name, got, want)
		}
	}
}

// A clock that was set back, by less than is called a skew, does not have a lease end in
// the future: what is below 0 would be read as thousands of years.
func TestLateIsNotNegative(t *testing.T) {
	b := openBackend(t, redistest.Start(t))
	s, ctx, held := b.stores[0], t.Context(), acquireRequest("a")
	_, err := s.Do(ctx, held)
	wantCode(t, "acquire", err, fencing.CodeOK)
	b.SetTime(epoch.Add(held.TTL))
	_, err = s.Expire(ctx, 1)
	wantCode(t, "expire", err, fencing.CodeOK)
	b.SetTime(epoch.Add(held.TTL - time.Second/2))
	_, err = s.Do(ctx, fencing.RenewRequest{Name: "a", Lease: held.Lease})
	var lost *fencing.Error
	if !errors.As(err, &lost) || lost.Reason != fencing.ReasonExpired || lost.Late != 0 {
		t.Errorf("%+v, want a lease that ended 0 s ago", err)
	}
}
