package redis

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"

	goredis "github.com/redis/go-redis/v9"
)

// scene is two gateways on one Redis, of which near may lose an answer, and the
// requests that a case is about. Every run of a case has the same ones.
type scene struct {
	t         *testing.T
	near, far *Store
	recorder  *recorder // of near
	now       *atomic.Int64
	holder    fencing.AcquireRequest
	waiter    fencing.AcquireRequest
	other     fencing.AcquireRequest
}

// pass moves the time of both clocks.
func (sc *scene) pass(d time.Duration) { sc.now.Add(d.Microseconds()) }

// held has the holder hold by near, and the waiter wait at s.
func (sc *scene) held(s *Store) {
	mustAcquire(sc.t, sc.near, sc.holder)
	mustWait(sc.t, s, sc.waiter)
}

// rest has the waiter leave its place at s, and keep it.
func (sc *scene) rest(s *Store) {
	sc.waiter.Keep = true
	mustWait(sc.t, s, sc.waiter)
	_, err := s.Do(sc.t.Context(), fencing.LeaveRequest{Name: sc.waiter.Name, Lease: sc.waiter.Lease, Stamp: sc.waiter.Stamp})
	wantCode(sc.t, "leave", err, fencing.CodeOK)
}

// beat is a heartbeat of near.
func (sc *scene) beat() {
	sc.t.Helper()
	wantCode(sc.t, "heartbeat", sc.near.Heartbeat(sc.t.Context(), []fencing.Name{sc.holder.Name}), fencing.CodeOK)
}

// again is the waiter's next request.
func (sc *scene) again() fencing.AcquireRequest {
	r := sc.waiter
	r.Stamp = sc.other.Stamp
	return r
}

// wantGrant checks that near was told of a grant to its own waiter or, unless it
// must have been told, asked to look for it.
func (sc *scene) wantGrant(r fencing.AcquireRequest, told bool) {
	sc.t.Helper()
	until(sc.t, func() bool { return len(sc.recorder.granted(r.Lease)) > 0 || !told && sc.recorder.gapped() > 1 })
	if got := mustAcquire(sc.t, sc.near, r); !got.Fresh || got.Holder.Provisional {
		sc.t.Errorf("got %+v, want a firm lease of this request", got)
	}
}

// describeOutcome says what a caller would do something with.
func describeOutcome(out fencing.Outcome, err error) string {
	text := fmt.Sprintf("%s now %d holder %+v fresh %t waits %t", code(err), out.Now, out.Holder, out.Fresh, out.Waits())
	if out.Place != nil {
		text += fmt.Sprintf(" place %+v", *out.Place)
	}
	if out.Lock != nil {
		text += fmt.Sprintf(" lock %+v", *out.Lock)
	}
	return text
}

// counts is what each gateway has in a record, in any order.
var counts = regexp.MustCompile(`(?:(?:near|far):\d+:\d+;)+`)

// state returns all that Redis knows, with the gateways by what they are here.
func (sc *scene) state(client *goredis.Client) string {
	sc.t.Helper()
	ctx := sc.t.Context()
	keys, err := client.Keys(ctx, "*").Result()
	if err != nil {
		sc.t.Fatal(err)
	}
	gateways := strings.NewReplacer(sc.near.handle, "near", sc.far.handle, "far")
	var lines []string
	for _, key := range keys {
		if strings.HasSuffix(key, ":guard") || strings.HasSuffix(key, ":libraries") {
			continue // which gateway came first is not the point, nor what it notes a second later
		}
		var parts []string
		kind := client.Type(ctx, key).Val()
		switch kind {
		case "string":
			parts = []string{client.Get(ctx, key).Val()}
		case "hash":
			for field, value := range client.HGetAll(ctx, key).Val() {
				parts = append(parts, field+": "+value)
			}
		case "zset":
			for _, z := range client.ZRangeWithScores(ctx, key, 0, -1).Val() {
				parts = append(parts, fmt.Sprintf("%.0f %s", z.Score, z.Member))
			}
		case "list":
			parts = client.LRange(ctx, key, 0, -1).Val()
		case "set":
			parts = client.SMembers(ctx, key).Val()
		default:
			sc.t.Fatalf("%s is a %s", key, kind)
		}
		for i, part := range parts {
			parts[i] = counts.ReplaceAllStringFunc(gateways.Replace(part), func(all string) string {
				each := strings.SplitAfter(all, ";")
				slices.Sort(each)
				return strings.Join(each, "")
			})
		}
		if kind != "list" {
			slices.Sort(parts)
		}
		lines = append(lines, fmt.Sprintf("%s = %q", gateways.Replace(key), parts))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
