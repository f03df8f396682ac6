package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/redis/redistest"
)

// grant is what a client knows of a lease it was given.
type grant struct {
	Token      int64     `json:"fencing_token"`
	LeaseID    string    `json:"lease_id"`
	AcquiredAt time.Time `json:"acquired_at"` // on the store's clock, rounded down to a millisecond
	TTL        int64     `json:"ttl_ms"`
	ExpiresIn  int64     `json:"expires_in_ms"`

	asked     time.Time // before the request was sent
	told      time.Time // after the answer came
	sureUntil time.Time // from told to here the client may rely on the lease
	abandoned bool      // neither renewed nor released
}

// P1 and P2, seen from outside: two gateways on one Redis, 64 clients on one
// name, none of them waiting.
func TestTwoGatewaysOneName(t *testing.T) { twoGatewaysOneName(t, 1500*time.Millisecond) }

// FENCEPOST_LONG makes it a minute.
func TestSystemTwoGatewaysOneName(t *testing.T) {
	length := 5 * time.Second
	if os.Getenv("FENCEPOST_LONG") != "" {
		length = time.Minute
	}
	twoGatewaysOneName(t, length)
}

func twoGatewaysOneName(t *testing.T, length time.Duration) {
	const clients, meanPause = 64, 50 * time.Millisecond // somebody asks every millisecond
	server := redistest.Start(t)
	var urls []string
	for range 2 {
		g, err := launch(t.TempDir(), []string{
			"PATH=" + os.Getenv("PATH"), "FENCEPOST_LISTEN_ADDR=127.0.0.1:0", "FENCEPOST_STORE=" + server.URL(),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := g.end(syscall.SIGTERM); err != nil {
				t.Errorf("the gateway's end: %v", err)
			}
			t.Log(g.warnings())
		})
		urls = append(urls, "http://"+g.addr+"/locks/contended/name")
	}

	granted := make([][]grant, clients)
	faults := make([]error, clients)
	refused := make([]int, clients)
	const enough = 100 // grants, or it proves nothing
	began := time.Now()
	over := func(granted int64) bool {
		took := time.Since(began)
		return took > length && granted >= enough || took > length+patience
	}
	var count atomic.Int64
	var group sync.WaitGroup
	for i := range clients {
		group.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			for !over(count.Load()) && faults[i] == nil {
				g, err := turn(urls[i%2], urls[(i+1)%2], random)
				switch {
				case err != nil:
					faults[i] = err
				case g == nil:
					refused[i]++
					<-time.After(rand.N(2 * meanPause))
				default:
					granted[i] = append(granted[i], *g)
					count.Add(1)
				}
			}
		})
	}
	group.Wait()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	if err := errors.Join(faults...); err != nil {
		t.Fatal(err)
	}
	all := slices.Concat(granted...)
	sum := 0
	for _, n := range refused {
		sum += n
	}
	t.Logf("%d grants, %d refusals in %s", len(all), sum, time.Since(began))
	if len(all) < enough {
		t.Fatalf("only %d grants: this proves nothing", len(all))
	}
	if err := checkGrants(all); err != nil {
		t.Fatal(err)
	}
}

// turn is one acquire and, if it was granted, what follows. Renewals and
// releases go to the other gateway. It returns nil if nothing was granted.
func turn(url, other string, random *rand.Rand) (*grant, error) {
	g := grant{asked: time.Now()}
	status, body, err := request(http.MethodPost, url, `{"ttl_ms":100}`, nil)
	g.told = time.Now()
	switch {
	case err != nil:
		return nil, err
	case status == http.StatusLocked || tooLate(status, g.asked, 100*time.Millisecond):
		return nil, nil
	case status != http.StatusCreated:
		return nil, fmt.Errorf("acquire was answered %d: %s", status, body)
	}
	if err := json.Unmarshal(body, &g); err != nil {
		return nil, err
	}
	lease := map[string]string{"Lease-Id": g.LeaseID}
	g.sureUntil = g.asked.Add(time.Duration(g.ExpiresIn) * time.Millisecond)
	choice := random.IntN(10)
	if choice == 0 {
		g.abandoned = true
		return &g, nil
	}
	if choice == 1 {
		asked := time.Now()
		status, body, err := request(http.MethodPut, other, `{"ttl_ms":200}`, lease)
		switch {
		case err != nil:
			return nil, err
		case status == http.StatusOK:
			g.sureUntil = asked.Add(200 * time.Millisecond)
		case tooLate(status, asked, 200*time.Millisecond):
		case status != http.StatusPreconditionFailed || asked.Before(g.sureUntil) && time.Now().Before(g.sureUntil):
			return nil, fmt.Errorf("renewal of a live lease was answered %d: %s", status, body)
		}
	}
	if now := time.Now(); now.Before(g.sureUntil) {
		g.sureUntil = now // the release may be carried out from here on
	}
	status, body, err = request(http.MethodDelete, other, "", lease)
	if err != nil || status != http.StatusNoContent && status != http.StatusPreconditionFailed {
		return nil, fmt.Errorf("release was answered %d: %s, %w", status, body, err)
	}
	return &g, nil
}

// tooLate reports whether a request may be answered 503 because nearly the whole TTL was
// over with it: on a machine so loaded the answer would be worth nothing.
func tooLate(status int, asked time.Time, ttl time.Duration) bool {
	return status == http.StatusServiceUnavailable && time.Since(asked) > ttl/2
}

// checkGrants reports grants that contradict P1 or P2.
func checkGrants(all []grant) error {
	slices.SortFunc(all, func(a, b grant) int { return int(a.Token - b.Token) })
	for i := 1; i < len(all); i++ {
		earlier, later := all[i-1], all[i]
		switch {
		case later.Token <= earlier.Token:
			return fmt.Errorf("token %d was given twice", later.Token)
		case later.told.Before(earlier.asked):
			return fmt.Errorf("token %d was told before %d was asked for", later.Token, earlier.Token)
		case later.AcquiredAt.Before(earlier.AcquiredAt):
			return fmt.Errorf("token %d was granted at %v by the store's clock, %d at %v", later.Token, later.AcquiredAt, earlier.Token, earlier.AcquiredAt)
		case earlier.abandoned && later.AcquiredAt.Sub(earlier.AcquiredAt) < time.Duration(earlier.TTL)*time.Millisecond:
			return fmt.Errorf("token %d was granted %v after %d, which had a TTL of %d ms", later.Token, later.AcquiredAt.Sub(earlier.AcquiredAt), earlier.Token, earlier.TTL)
		case later.told.Before(earlier.sureUntil) && earlier.told.Before(later.sureUntil):
			return fmt.Errorf("tokens %d and %d were held at once: until %v, from %v", earlier.Token, later.Token, earlier.sureUntil, later.told)
		}
	}
	return nil
}

// The check itself finds what it is there to find.
func TestCheckGrantsFindsPlantedBugs(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	after := func(ms int) time.Time { return at.Add(time.Duration(ms) * time.Millisecond) }
	good := []grant{
		{Token: 1, TTL: 100, AcquiredAt: after(0), asked: after(0), told: after(1), sureUntil: after(10)},
		{Token: 2, TTL: 100, AcquiredAt: after(12), asked: after(5), told: after(13), sureUntil: after(105), abandoned: true},
		{Token: 5, TTL: 100, AcquiredAt: after(112), asked: after(111), told: after(113), sureUntil: after(120)},
	}
	if err := checkGrants(slices.Clone(good)); err != nil {
		t.Fatalf("a good history is refused: %v", err)
	}
	for what, plant := range map[string]func(g []grant){
		"token twice":          func(g []grant) { g[1].Token = 1 },
		"token regresses":      func(g []grant) { g[2].Token = 0 },
		"held at once":         func(g []grant) { g[0].sureUntil = after(20) },
		"granted before TTL":   func(g []grant) { g[2].AcquiredAt = after(111) },
		"store's clock behind": func(g []grant) { g[1].AcquiredAt = after(-1) },
	} {
		bad := slices.Clone(good)
		plant(bad)
		if checkGrants(bad) == nil {
			t.Errorf("%s: not found", what)
		}
	}
}

// The README's way in: make run needs nothing but Go, and serves the embedded
// store in the directory it is started from.
func TestDefaultSettings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	g, err := launch(dir, []string{"PATH=" + os.Getenv("PATH"), "FENCEPOST_LISTEN_ADDR=127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "fencepost-data", "log", "0000000001.log")); err != nil {
		t.Error(err)
	}
	if err := g.end(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}
