package system

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/internal/seed"
)

const (
	// longestTurn is how long others wait at most for a gateway that stands still in its turn, or is gone: docs/stores/database.md
	// says so. A machine that has too little for all that runs on it takes longer, which slack is for.
	longestTurn = 3 * time.Second
	slack       = 1500 * time.Millisecond
)

// Whatever a gateway does in its turn, and wherever a message of it ends, others are served in time. When it has stood still for 2 s
// and goes on, and its machine is there again, it serves as well. FENCEPOST_TURNS says how many turns of each database are harmed. The longest wait is
// logged, and verify judges it without the slack.
func TestSystemTurns(t *testing.T) {
	for _, kind := range []Kind{Postgres, MariaDB} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := StartTest(t, Options{Store: kind, Gateways: 3})
			random := rand.New(rand.NewPCG(1, 2))
			var waits []time.Duration
			for i := range int(seed.Number(t, "FENCEPOST_TURNS", 16)) {
				name := []string{"turn-cut", "turn-stop"}[i%2]
				f, err := FaultNamed(kind, name)
				if err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				harm, err := f.Inject(s, random)
				if err != nil {
					t.Fatal(err)
				}
				harmed := slices.IndexFunc(s.Gateways, func(g *Gateway) bool { return strings.HasSuffix(harm.to, g.Name) })
				var mu sync.Mutex
				longest, served := time.Duration(0), 0
				var clients sync.WaitGroup
				for at, g := range s.Gateways {
					for c := range 6 {
						clients.Go(func() {
							client := NewClient(1)
							defer client.Close()
							for n := 0; ctx.Err() == nil; n++ {
								began := time.Now()
								body := fmt.Sprintf(`{"ttl_ms":60000,"metadata":{"a":%q,"b":%[1]q,"c":%[1]q,"d":%[1]q}}`, strings.Repeat("x", 256))
								a, err := client.Acquire(ctx, g, fmt.Sprintf("turns/%d/%d/%d/%d", i, at, c, n), "", body)
								took := time.Since(began)
								if at == harmed || ctx.Err() != nil {
									continue
								}
								mu.Lock()
								longest, served = max(longest, took), served+1
								mu.Unlock()
								if err != nil || a.Status != http.StatusCreated {
									t.Errorf("%s %d: after %s: %s, %v", name, i, took, a, err)
								}
							}
						})
					}
				}
				happened := false
				for deadline := time.Now().Add(biteTimeout); !happened && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
					n, err := harm.seen()
					if err != nil {
						t.Fatal(err)
					}
					happened = n > 0
				}
				if !happened {
					t.Errorf("%s %d did nothing", name, i)
				}
				enough := func() bool {
					mu.Lock()
					defer mu.Unlock()
					return served > 0
				}
				for deadline := time.Now().Add(biteTimeout); !enough() && time.Now().Before(deadline); {
					time.Sleep(5 * time.Millisecond)
				}
				Pause(longestTurn + 500*time.Millisecond) // whoever waits has been served by then
				stop()
				clients.Wait()
				if err := harm.heal(); err != nil {
					t.Fatal(err)
				}
				waits = append(waits, longest)
				if longest > longestTurn+slack {
					t.Errorf("%s %d of %s: others waited %s", name, i, harm.to, longest)
				}
				if err := s.AwaitReady(startTimeout); err != nil {
					t.Fatalf("%s %d: %v", name, i, err)
				}
			}
			for _, g := range s.Gateways {
				served(t, s, g)
			}
			t.Logf("others waited at most: %v; %d turns harmed, longest wait %d ms", waits, len(waits), slices.Max(waits).Milliseconds())
		})
	}
}
