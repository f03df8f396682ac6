package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
	"fencepost/internal/watchdog"
)

// contenders is how many clients want the one lock.
const contenders = 32

// contest is one measurement of clients that want one lock, each holding it for a
// while and asking again at once.
type contest struct {
	turns   float64 // a second
	handed  float64 // turns a second that followed one of another client
	use     float64 // the part of the time in which a client held the lock
	longest float64 // wait, to the mean one
	slowest float64 // the turns of the client with the fewest, to those of the one with the most
	calls   float64 // of Redis, a turn; 0 where there is none
	all     int     // turns, the last of each client included
}

// turn is one turn of a client: it returns when the client was granted, with its
// token and the function that ends the turn.
type turn func(client int) (token int64, release func() error, err error)

// granted is a turn that a client had.
type granted struct {
	token  int64
	client int
}

// compete lets clients take turns for a while.
func compete(clients int, hold, length time.Duration, take turn) (contest, error) {
	var stop atomic.Bool
	var done atomic.Int64
	turns, had, waits, holds, faults := make([]int, clients), make([][]granted, clients), make([][]time.Duration, clients), make([]time.Duration, clients), make([]error, clients)
	var group sync.WaitGroup
	start := time.Now()
	for i := range clients {
		group.Go(func() {
			for !stop.Load() {
				asked := time.Now()
				token, release, err := take(i)
				if err != nil {
					faults[i] = err
					return
				}
				began := time.Now()
				if hold > 0 {
					time.Sleep(hold)
				}
				holds[i] += time.Since(began)
				had[i] = append(had[i], granted{token, i})
				if faults[i] = release(); faults[i] != nil {
					return
				}
				done.Add(1)
				if !stop.Load() { // the last turns find ever fewer in their way
					turns[i]++
					waits[i] = append(waits[i], began.Sub(asked))
				}
			}
		})
	}
	time.AfterFunc(length, func() { stop.Store(true) })
	group.Wait()
	elapsed := time.Since(start)
	if err := errors.Join(faults...); err != nil {
		return contest{}, err
	}
	total, held := 0, time.Duration(0)
	for i := range clients {
		total, held = total+turns[i], held+holds[i]
	}
	var all []time.Duration
	for _, w := range waits { // the first wait of each is shorter: the queue was still filling
		all = append(all, w[min(1, len(w)):]...)
	}
	if len(all) == 0 || slices.Max(turns) == 0 {
		return contest{}, errors.New("nobody had a second turn")
	}
	var sum time.Duration
	for _, w := range all {
		sum += w
	}
	order := slices.Concat(had...)
	slices.SortFunc(order, func(a, b granted) int { return cmp.Compare(a.token, b.token) })
	handed := 0
	for i := 1; i < len(order); i++ {
		if order[i].client != order[i-1].client {
			handed++
		}
	}
	return contest{
		handed:  float64(handed) / elapsed.Seconds(),
		all:     int(done.Load()),
		turns:   float64(total) / elapsed.Seconds(),
		use:     float64(held) / float64(elapsed),
		longest: float64(slices.Max(all)) / (float64(sum) / float64(len(all))),
		slowest: float64(slices.Min(turns)) / float64(slices.Max(turns)),
	}, nil
}

// overHTTP makes clients that wait for one name, spread over gateways.
func overHTTP(name string, addrs ...string) (turn, func(), error) {
	var all crew
	for i := range contenders {
		c, err := newWaitingClient(addrs[i%len(addrs)], name)
		if err != nil {
			all.close()
			return nil, nil, err
		}
		all = append(all, c)
	}
	return func(i int) (int64, func() error, error) {
		c := all[i]
		lease, err := c.take()
		if err != nil {
			return 0, nil, err
		}
		token, err := tokenOf(c.body)
		return token, func() error { return c.give(lease) }, err
	}, all.close, nil
}

// inProcess takes turns without HTTP: the store's queue, and the waiting.
func inProcess(dog *watchdog.Watchdog, name fencing.Name) turn {
	ctx := context.Background()
	return func(int) (int64, func() error, error) {
		request := newRequest(name)
		request.Wait = time.Minute
		out, err := dog.Do(ctx, request)
		return int64(out.Holder.Token), func() error {
			_, err := dog.Do(ctx, fencing.ReleaseRequest{Name: name, Lease: request.Lease})
			return err
		}, err
	}
}

// rival is a competitor in the contended rounds.
type rival struct {
	key, title string
	hire       func() (take turn, dismiss func(), err error)
	server     *redistest.Server // whose calls are counted; nil for none
}

// contended is the medians of a rival at one hold.
type contended struct {
	title string
	hold  time.Duration
	contest
	toPolling float64 // hand-overs
	toMemory  float64 // use; 0 without a hold
}

// measureContended runs the rivals in turn.
func (r *results) measureContended(rivals []rival, hold time.Duration, rounds int, length time.Duration) error {
	found, err := compareContests(rivals, hold, rounds, length)
	if err != nil {
		return err
	}
	pick := func(key string, value func(contest) float64) []float64 {
		var values []float64
		for _, c := range found[key] {
			values = append(values, value(c))
		}
		return values
	}
	handed := func(c contest) float64 { return c.handed }
	use := func(c contest) float64 { return c.use }
	for _, v := range rivals {
		r.contended = append(r.contended, contended{
			title: v.title, hold: hold,
			contest: contest{
				turns:   median(pick(v.key, func(c contest) float64 { return c.turns })),
				handed:  median(pick(v.key, handed)),
				use:     median(pick(v.key, use)),
				longest: median(pick(v.key, func(c contest) float64 { return c.longest })),
				slowest: median(pick(v.key, func(c contest) float64 { return c.slowest })),
				calls:   median(pick(v.key, func(c contest) float64 { return c.calls })),
			},
			toPolling: median(ratios(pick(v.key, handed), pick("polling", handed))),
			toMemory:  median(ratios(pick(v.key, use), pick("fifo", use))),
		})
	}
	return nil
}

// compareContests runs the rivals in turn. It returns, by their keys, what each round found.
func compareContests(rivals []rival, hold time.Duration, rounds int, length time.Duration) (map[string][]contest, error) {
	found := map[string][]contest{}
	for round := range rounds + 1 { // the first round warms up and is dropped
		for i := range rivals {
			v := &rivals[(i+round)%len(rivals)]
			take, dismiss, err := v.hire() // anew each time: a gateway hangs up on who says nothing
			if err != nil {
				return nil, err
			}
			before, err := callsRun(v.server)
			if err != nil {
				return nil, err
			}
			c, err := compete(contenders, hold, length, take)
			dismiss()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", v.title, err)
			}
			after, err := callsRun(v.server)
			if err != nil {
				return nil, err
			}
			c.calls = float64(after-before) / float64(c.all)
			if round > 0 {
				found[v.key] = append(found[v.key], c)
			}
		}
		fmt.Fprintf(os.Stderr, "%d clients on one name, hold %s, round %d of %d\n", contenders, hold, round, rounds)
	}
	return found, nil
}

// callsRun counts the calls of the rules that a Redis has run.
func callsRun(server *redistest.Server) (int64, error) {
	if server == nil {
		return 0, nil
	}
	options, err := goredis.ParseURL(server.URL())
	if err != nil {
		return 0, err
	}
	client := goredis.NewClient(options)
	defer client.Close()
	info, err := client.InfoMap(context.Background(), "commandstats").Result()
	if err != nil {
		return 0, err
	}
	var calls int64
	for _, command := range []string{"cmdstat_fcall", "cmdstat_evalsha", "cmdstat_eval"} {
		var n int64
		fmt.Sscanf(info["Commandstats"][command], "calls=%d", &n)
		calls += n
	}
	return calls, nil
}
