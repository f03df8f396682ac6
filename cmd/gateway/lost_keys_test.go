package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// kindsOfKeys finds what kinds of keys a partition has, by the library's own list, and whether
// it has one a name.
var kindsOfKeys = regexp.MustCompile(`fencepost:\{N\}:(\w+)(:<name>)?`)

// notThere are the kinds of keys that two gateways on one Redis don't have.
var notThere = map[string]string{"never": "there is no such key", "intent": "of a quorum", "doubt": "where the clocks differ", "acked": "where replicas confirm"}

const (
	lostTTL = 3 * time.Second  // of the leases that waiters are behind
	keptTTL = 10 * time.Second // of one that is renewed; so long is a quarantine at most
)

// Whichever key of a partition is deleted, all that wait are served when the leases before them
// have ended, or the quarantine is over that begins; what is held is listed; nobody has what
// another may believe in, and tokens grow.
func TestLostKeys(t *testing.T) {
	t.Parallel()
	layout, err := os.ReadFile("../../internal/redis/library/layout.lua")
	if err != nil {
		t.Fatal(err)
	}
	var alone, ofNames []string
	for _, match := range kindsOfKeys.FindAllStringSubmatch(string(layout), -1) {
		switch kind := match[1]; {
		case slices.Contains(alone, kind) || slices.Contains(ofNames, kind):
		case match[2] != "":
			ofNames = append(ofNames, kind)
		default:
			alone = append(alone, kind) // it is everybody's
		}
	}
	if len(alone) < 5 || len(ofNames) < 5 {
		t.Fatalf("the layout has only the kinds %v and %v", alone, ofNames)
	}
	// Most of it is waiting: several Redis lose their keys at once.
	var playing sync.WaitGroup
	plays := [][]string{ofNames}
	for _, kind := range alone {
		plays = append(plays, []string{kind})
	}
	for _, kinds := range plays {
		playing.Go(func() {
			t.Run(kinds[0], func(t *testing.T) {
				server := redistest.Start(t)
				default10s := "FENCEPOST_DEFAULT_TTL=" + keptTTL.String()
				g := &lostKeys{t: t, server: server, near: startOn(t, server.URL(), default10s), far: startOn(t, server.URL(), default10s)}
				stop := g.keep()
				defer stop()
				if kinds[0] == "libraries" { // said when the store is checked first
					g.await("libraries")
				}
				g.play(kinds...)
			})
		})
	}
	playing.Wait()
}

// lostKeys are two gateways on a Redis that loses keys.
type lostKeys struct {
	t         *testing.T
	server    *redistest.Server
	near, far *gatewayProcess
}

// keep holds one lock all the time.
func (g *lostKeys) keep() (stop func()) {
	held, err := acquireAt(g.t.Context(), g.near, "kept", `{"wait_ms":60000}`)
	if err != nil {
		g.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(g.t.Context())
	var renewing sync.WaitGroup
	renewing.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for renewed := time.Now(); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			sent := time.Now()
			status, body, err := request(http.MethodPut, "http://"+g.near.addr+"/locks/kept", "", map[string]string{"Lease-Id": held.LeaseID})
			switch late := time.Since(renewed) >= keptTTL; {
			case err == nil && status == http.StatusOK:
				renewed = sent
			case !late:
				g.t.Errorf("a renewal was answered %d: %s, %v", status, body, err)
			}
		}
	})
	return func() {
		cancel()
		renewing.Wait()
	}
}

// waitedFor is who holds a name, and who waits for it.
type waitedFor struct {
	name     string
	newest   int64     // token
	believed time.Time // the first moment at which one of the holders may not believe in its lease any more
	waiter   chan error
	granted  holding
}

// play deletes the keys of some kinds while names are held and waited for, one kind of its own
// names or all of those of the partition.
func (g *lostKeys) play(kinds ...string) {
	g.t.Helper()
	turns := make([][]*waitedFor, len(kinds))
	var beginning sync.WaitGroup
	for i, kind := range kinds {
		turns[i] = []*waitedFor{{name: "sole/" + kind}, {name: "pool/" + kind}}
		for j, limit := range []int{0, 2} {
			beginning.Go(func() {
				if err := g.begin(turns[i][j], limit); err != nil {
					g.t.Errorf("%s: %v", turns[i][j].name, err)
				}
			})
		}
	}
	if beginning.Wait(); g.t.Failed() {
		g.t.FailNow()
	}
	client := g.server.Client()
	defer client.Close()
	for i, kind := range kinds {
		patterns := []string{"fencepost:{0}:" + kind, "fencepost:{0}:" + kind + ":*"}
		if len(kinds) > 1 {
			patterns = []string{"fencepost:{0}:" + kind + ":*/" + kind + "*"}
		}
		var keys []string
		for _, pattern := range patterns {
			keys = append(keys, client.Keys(g.t.Context(), pattern).Val()...)
		}
		if len(keys) > 0 {
			if err := client.Del(g.t.Context(), keys...).Err(); err != nil {
				g.t.Fatal(err)
			}
		} else if _, excused := notThere[kind]; !excused && len(turns[i][0].waiter)+len(turns[i][1].waiter) == 0 {
			g.t.Errorf("there was no key of the kind %s", kind)
		}
	}
	g.list(kinds)
	for i, kind := range kinds {
		for _, turn := range turns[i] {
			if err := g.end(turn, kind == "lock"); err != nil {
				g.t.Errorf("without %s: %s: %v", kind, turn.name, err)
			}
		}
	}
}

// begin has one hold a name, or two share it, and another wait. The name has ended leases,
// a mark of a slot, and a place that rests.
func (g *lostKeys) begin(turn *waitedFor, limit int) error {
	body := fmt.Sprintf(`{"ttl_ms":%d,"wait_ms":60000}`, lostTTL.Milliseconds())
	if limit > 0 {
		body = fmt.Sprintf(`{"ttl_ms":%d,"wait_ms":60000,"mode":"shared","limit":%d}`, lostTTL.Milliseconds(), limit)
	}
	over, err := acquireAt(g.t.Context(), g.near, turn.name, body)
	if err != nil {
		return err
	}
	if err := releaseAt(g.near, turn.name, over); err != nil {
		return err
	}
	for range max(limit, 1) {
		sent := time.Now()
		held, err := acquireAt(g.t.Context(), g.near, turn.name, body)
		if err != nil {
			return err
		}
		if believed := sent.Add(time.Duration(held.ExpiresIn) * time.Millisecond); turn.believed.IsZero() {
			turn.believed = believed
		}
		turn.newest = held.Token
		if limit > 0 {
			admit := fmt.Sprintf(`{"fencing_token":%d,"slot":%d}`, held.Token, held.Slot)
			if status, body, err := request(http.MethodPost, "http://"+g.near.addr+"/fences/"+turn.name, admit, nil); err != nil || status != http.StatusOK {
				return fmt.Errorf("a fence answered %d: %s, %w", status, body, err)
			}
		}
	}
	turn.waiter = make(chan error, 1)
	go func() {
		var err error
		turn.granted, err = acquireAt(g.t.Context(), g.far, turn.name, body)
		turn.waiter <- err
	}()
	own := map[string]string{"Lease-Id": fencing.NewLeaseID(time.Now()).Reveal()} // so that its place rests
	if _, _, err := request(http.MethodPost, "http://"+g.near.addr+"/locks/"+turn.name, strings.Replace(body, "60000", "1", 1), own); err != nil {
		return err
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); len(turn.waiter) == 0; { // on a slow machine it is over
		_, body, err := request(http.MethodGet, "http://"+g.near.addr+"/locks/"+turn.name, "", nil)
		var lock struct{ Waiting int }
		if err == nil && json.Unmarshal(body, &lock) == nil && lock.Waiting > 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-deadline:
			return fmt.Errorf("nobody waits: %s, %w", body, err)
		}
	}
	return nil
}

// await waits until Redis has a key of a kind.
func (g *lostKeys) await(kind string) {
	g.t.Helper()
	client := g.server.Client()
	defer client.Close()
	for deadline := time.Now().Add(patience); client.Exists(g.t.Context(), "fencepost:{0}:"+kind).Val() == 0; <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			g.t.Fatalf("there is no key of the kind %s", kind)
		}
	}
}

// list waits until what is held is listed.
func (g *lostKeys) list(kinds []string) {
	g.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); ; {
		_, body, err := request(http.MethodGet, "http://"+g.far.addr+"/locks?prefix=kept", "", nil)
		if err == nil && strings.Contains(string(body), `"name":"kept"`) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			g.t.Fatalf("without %s what is held is not listed: %s, %v", kinds, body, err)
		}
	}
}

// end waits until the waiter is served. It is not to be before its predecessor's time is over,
// unless that was forgotten.
func (g *lostKeys) end(turn *waitedFor, forgotten bool) error {
	served := time.NewTimer(45 * time.Second) // its own patience ends at 60 s
	defer served.Stop()
	select {
	case err := <-turn.waiter:
		if err != nil {
			return err
		}
	case <-served.C:
		return errors.New("who waits is not served")
	}
	if now := time.Now(); now.Before(turn.believed) && !forgotten {
		return fmt.Errorf("granted %s before the lease before it was over", turn.believed.Sub(now))
	}
	if turn.granted.Token <= turn.newest {
		return fmt.Errorf("token %d after %d", turn.granted.Token, turn.newest)
	}
	_ = releaseAt(g.far, turn.name, turn.granted) // it may be over
	return nil
}
