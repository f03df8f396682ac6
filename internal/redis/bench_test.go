package redis

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"

	goredis "github.com/redis/go-redis/v9"
)

// BenchmarkAcquireRelease measures pairs of acquire and release, each caller on
// a name of its own: through this store, and with the same library as one
// FCALL a request on a pool of connections.
func BenchmarkAcquireRelease(b *testing.B) {
	server := redistest.Start(b)
	for _, callers := range []int{1, 64, 256} {
		for _, n := range []int{0, 1, batchers} {
			name := fmt.Sprintf("callers=%d/batchers=%d", callers, n)
			if n == 0 {
				name = fmt.Sprintf("callers=%d/evalsha", callers)
			}
			b.Run(name, func(b *testing.B) {
				s := open(b, Options{URL: server.SocketURL()})
				only := s.topology.nodes()[0]
				switch n {
				case 1:
					for i := range only.batchers {
						only.batchers[i] = only.batchers[0]
					}
				case 0:
					for i := range only.batchers {
						only.batchers[i].maxInFlight = callers // nothing ever queues: one goroutine and EVALSHA each
					}
					only.client.Close()
					only.client = goredis.NewClient(&goredis.Options{
						Network: "unix", Addr: server.Socket(), Protocol: 2, MaxRetries: -1, PipelinePoolSize: -1,
						PoolSize: callers, // the best case for it
					})
				}
				client := server.Client()
				defer client.Close()
				before := redisCPU(b, client)
				n := pairs(b, s, callers)
				b.ReportMetric((redisCPU(b, client)-before)*1e6/float64(n), "redis-µs/pair")
			})
		}
	}
}

func pairs(b *testing.B, s *Store, callers int) int {
	b.ReportAllocs()
	var running sync.WaitGroup
	share := b.N/callers + 1
	for i := range callers {
		running.Go(func() {
			name := fencing.Name(fmt.Sprintf("orders/%d", i))
			for range share {
				r := acquireRequest(name)
				if _, err := s.Do(context.Background(), r); err != nil {
					b.Error(err)
					return
				}
				if _, err := s.Do(context.Background(), fencing.ReleaseRequest{Name: name, Lease: r.Lease}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	running.Wait()
	b.ReportMetric(float64(share*callers)/b.Elapsed().Seconds(), "pairs/s")
	return share * callers
}

// BenchmarkQueue measures turns of callers who all want one name: each joins the
// queue, is told of its turn, releases, and joins again.
func BenchmarkQueue(b *testing.B) {
	for _, callers := range []int{32, 10_000} {
		for _, gateways := range []int{1, 2} {
			b.Run(fmt.Sprintf("callers=%d/gateways=%d", callers, gateways), func(b *testing.B) {
				server := redistest.Start(b)
				client := server.Client()
				defer client.Close()
				var stores []*Store
				var recorders []*recorder
				for range gateways {
					s := open(b, Options{URL: server.SocketURL(), OperationTimeout: 20 * time.Second})
					stores, recorders = append(stores, s), append(recorders, listen(b, s))
				}
				client.ConfigResetStat(b.Context())
				before := redisCPU(b, client)
				b.ResetTimer()
				turns := float64(takeTurns(b, stores, recorders, callers))
				b.ReportMetric(turns/b.Elapsed().Seconds(), "turns/s")
				b.ReportMetric((redisCPU(b, client)-before)*1e6/turns, "redis-µs/turn")
				stats := client.Info(b.Context(), "commandstats").Val()
				b.ReportMetric(float64(calls(stats, "fcall"))/turns, "calls/turn")
			})
		}
	}
}

// takeTurns has the callers share b.N turns, spread over the stores.
func takeTurns(b *testing.B, stores []*Store, recorders []*recorder, callers int) (turns int) {
	var running sync.WaitGroup
	share := b.N/callers + 1
	for i := range callers {
		s, e := stores[i%len(stores)], recorders[i%len(recorders)]
		running.Go(func() {
			for range share {
				r := waitRequest("orders/42")
				arrives := e.expect(r.Lease)
				out, err := s.Do(b.Context(), r)
				if err == nil && out.Waits() {
					if got := <-arrives; got.grant.Holder.Provisional {
						_, err = s.Do(b.Context(), fencing.ConfirmRequest{Name: r.Name, Lease: r.Lease, Stamp: r.Stamp})
					}
				}
				if err == nil {
					_, err = s.Do(b.Context(), fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease})
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	running.Wait()
	return share * callers
}

var cpuSeconds = regexp.MustCompile(`used_cpu_(?:sys|user)_main_thread:([0-9.]+)`)

// redisCPU returns the seconds of CPU that Redis has used.
func redisCPU(b *testing.B, client *goredis.Client) (seconds float64) {
	info, err := client.Info(b.Context(), "cpu").Result()
	if err != nil {
		b.Fatal(err)
	}
	for _, m := range cpuSeconds.FindAllStringSubmatch(info, -1) {
		part, _ := strconv.ParseFloat(m[1], 64)
		seconds += part
	}
	return seconds
}
