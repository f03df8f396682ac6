package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"fencepost/internal/fencing"
	"fencepost/internal/redis"
	"fencepost/internal/redis/redistest"
)

// footprint is what things cost a Redis: bytes for what it keeps, CPU and bytes on
// the wire for what it does. docs/performance.md is computed from it.
type footprint struct {
	kept     []kept
	done     []done
	idle     []done // without alone and aof
	messages []message
}

type kept struct {
	what  string
	bytes float64
}

// done is what one operation costs; medians of the rounds.
type done struct {
	what         string
	cpu, alone   float64 // µs of Redis's main thread, at 64 callers and at one
	in, out, aof float64 // bytes received, sent and put into the AOF
}

const (
	things  = 1600 * callers // of each kind that is kept
	callers = 64
	names   = 64 // in the rounds of operations
)

// sample is what Redis has used so far.
type sample struct{ cpu, in, out, aof, memory float64 }

func take(ctx context.Context, client *goredis.Client) (sample, error) {
	text, err := client.Info(ctx, "cpu", "stats", "persistence", "memory").Result()
	if err != nil {
		return sample{}, err
	}
	number := func(key string) float64 {
		_, rest, _ := strings.Cut(text, "\n"+key+":")
		value, _, _ := strings.Cut(rest, "\r")
		n, _ := strconv.ParseFloat(value, 64)
		return n
	}
	return sample{
		cpu: number("used_cpu_sys_main_thread") + number("used_cpu_user_main_thread"),
		in:  number("total_net_input_bytes"), out: number("total_net_output_bytes"),
		aof: number("aof_current_size"), memory: number("used_memory") - number("mem_clients_normal"),
	}, nil
}

// each calls work for 0 to n-1 from so many goroutines.
func each(n, goroutines int, work func(i int) error) error {
	faults := make([]error, goroutines)
	var group sync.WaitGroup
	for g := range goroutines {
		group.Go(func() {
			for i := g; i < n && faults[g] == nil; i += goroutines {
				faults[g] = work(i)
			}
		})
	}
	group.Wait()
	return errors.Join(faults...)
}

// silent hears of grants and takes no notice: who waits here knows when its turn is.
type silent struct{}

func (silent) Granted(fencing.Grant, fencing.Instant, time.Time) {}
func (silent) Replaced(fencing.Name, fencing.Stamp)              {}
func (silent) Ask(fencing.Name, fencing.Stamp)                   {}
func (silent) Has([]fencing.Name, time.Time, []fencing.Entry)    {}
func (silent) Gap()                                              {}

func openStore(ctx context.Context, server *redistest.Server) (*redis.Store, error) {
	store, err := redis.Open(ctx, redis.Options{
		URL:     server.URL(),
		MaxSkew: time.Minute, OperationTimeout: time.Minute, // for a machine that stalls
		DialTimeout: time.Minute, ReadTimeout: time.Minute,
		Quarantine: redis.QuarantinePolicy{Off: true},
	})
	if err == nil {
		store.Listen(silent{})
	}
	return store, err
}

func measureFootprint(rounds int) (*footprint, error) {
	f := &footprint{}
	return f, errors.Join(f.measureKept(), f.measureDone(rounds), f.measureIdle(rounds), f.measureMessages(rounds))
}

// measureKept fills a Redis with things of one kind, a fresh one for each: the hash
// tables of Redis double, so that what they take depends on how full they are.
func (f *footprint) measureKept() error {
	for _, kind := range []struct {
		what  string
		names int
		work  func(ctx context.Context, store *redis.Store, r fencing.AcquireRequest) error
	}{
		{"a held lock", things, hold},
		{"a name that was held once: it rests, with a tombstone", things, holdAndRelease},
		{"a tombstone more, 100 on a name", things / 100, holdAndRelease},
		{"a held lock with one waiter", things, func(ctx context.Context, store *redis.Store, r fencing.AcquireRequest) error {
			return errors.Join(hold(ctx, store, r), hold(ctx, store, inLine(r)))
		}},
		{"a waiter, 100 on a name", things / 100, func(ctx context.Context, store *redis.Store, r fencing.AcquireRequest) error {
			return hold(ctx, store, inLine(r))
		}},
	} {
		bytes, err := fill(func(ctx context.Context, store *redis.Store, i int) error {
			// One goroutine at a time uses a name.
			n := i%callers + callers*(i/callers%(kind.names/callers))
			r := newRequest(fencing.Name(fmt.Sprintf("orders/%06d", n)))
			r.TTL = time.Hour
			return kind.work(ctx, store, r)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", kind.what, err)
		}
		f.kept = append(f.kept, kept{kind.what, bytes})
	}
	return nil
}

func hold(ctx context.Context, store *redis.Store, r fencing.AcquireRequest) error {
	_, err := store.Do(ctx, r)
	return err
}

func holdAndRelease(ctx context.Context, store *redis.Store, r fencing.AcquireRequest) error {
	if err := hold(ctx, store, r); err != nil {
		return err
	}
	_, err := store.Do(ctx, fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease})
	return err
}

// inLine returns a request of another client that waits.
func inLine(r fencing.AcquireRequest) fencing.AcquireRequest {
	other := newRequest(r.Name)
	other.TTL, other.Wait = r.TTL, time.Minute
	return other
}

// fill does work so many times on a fresh Redis, and returns the bytes that each
// has left there.
func fill(work func(ctx context.Context, store *redis.Store, i int) error) (bytes float64, err error) {
	err = onRedis(func(ctx context.Context, client *goredis.Client, store *redis.Store) error {
		if err := storePair(store, 0); err != nil { // loads the library
			return err
		}
		before, err := take(ctx, client)
		if err != nil {
			return err
		}
		if err := each(things, callers, func(i int) error { return work(ctx, store, i) }); err != nil {
			return err
		}
		if err := forgetHistories(ctx, client); err != nil {
			return err
		}
		after, err := take(ctx, client)
		bytes = (after.memory - before.memory) / things
		return err
	})
	return bytes, err
}

// onRedis does something with a store on a fresh Redis that was started with arguments.
func onRedis(do func(ctx context.Context, client *goredis.Client, store *redis.Store) error, args ...string) error {
	server, err := redistest.Run(args...)
	if err != nil {
		return err
	}
	defer server.Close()
	ctx, client := context.Background(), server.Client()
	defer client.Close()
	store, err := openStore(ctx, server)
	if err != nil {
		return err
	}
	defer store.Close()
	return do(ctx, client, store)
}

// forgetHistories deletes the histories: there is a bound to all of them, so that
// they are no part of what one thing costs.
func forgetHistories(ctx context.Context, client *goredis.Client) error {
	const prefix = "fencepost:{0}:"
	known, err := client.ZRange(ctx, prefix+"histories", 0, -1).Result()
	if err != nil {
		return err
	}
	keys := []string{prefix + "histories"}
	for _, name := range known {
		keys = append(keys, prefix+"history:"+name)
	}
	return client.Del(ctx, keys...).Err()
}

// measureIdle measures what gateways cost that do nothing.
func (f *footprint) measureIdle(rounds int) error {
	server, err := redistest.Run()
	if err != nil {
		return err
	}
	defer server.Close()
	ctx, client := context.Background(), server.Client()
	defer client.Close()
	store, err := openStore(ctx, server)
	if err != nil {
		return err
	}
	defer store.Close()
	var all []fencing.Name
	for i := range 4096 { // some in every partition
		all = append(all, fencing.Name(fmt.Sprintf("idle/%d", i)))
		r := newRequest(all[i])
		r.TTL = time.Hour
		if _, err := store.Do(ctx, r); err != nil {
			return err
		}
	}
	for _, kind := range []struct {
		what string
		work func(int) error
	}{
		{"heartbeat of a gateway with waiters in all partitions", func(int) error { return store.Heartbeat(ctx, all) }},
		{"reaper's round with nothing due", func(int) error { _, err := store.Expire(ctx, 100); return err }},
	} {
		var cpu, in, out []float64
		for range rounds {
			s, err := spent(ctx, client, 200, 1, kind.work)
			if err != nil {
				return fmt.Errorf("%s: %w", kind.what, err)
			}
			cpu, in, out = append(cpu, s.cpu*1e6), append(in, s.in), append(out, s.out)
		}
		f.idle = append(f.idle, done{what: kind.what, cpu: median(cpu), in: median(in), out: median(out)})
	}
	return f.measureLooks(ctx, server, client)
}

// measureLooks has many idle gateways on one Redis for a while.
func (f *footprint) measureLooks(ctx context.Context, server *redistest.Server, client *goredis.Client) error {
	const gateways, seconds = 20, 5
	for range gateways {
		store, err := openStore(ctx, server)
		if err != nil {
			return err
		}
		defer store.Close()
		if err := store.Check(ctx); err != nil {
			return err
		}
	}
	before, err := take(ctx, client)
	if err != nil {
		return err
	}
	time.Sleep(seconds * time.Second)
	after, err := take(ctx, client)
	per := func(before, after float64) float64 { return (after - before) / gateways / seconds }
	f.idle = append(f.idle, done{
		what: "second of a gateway that does nothing", cpu: per(before.cpu, after.cpu) * 1e6,
		in: per(before.in, after.in), out: per(before.out, after.out),
	})
	return err
}

func (f *footprint) report(rounds int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d of each kind.\n\n| what Redis keeps | bytes |\n| --- | ---: |\n", things)
	for _, k := range f.kept {
		fmt.Fprintf(&b, "| %s | %.0f |\n", k.what, k.bytes)
	}
	fmt.Fprintf(&b, "\nMedians of %d rounds; %d callers, and one.\n\n| what Redis does | CPU, many callers | CPU, one | received | sent | AOF |\n| --- | ---: | ---: | ---: | ---: | ---: |\n", rounds, callers)
	for _, d := range f.done {
		fmt.Fprintf(&b, "| %s | %.1f µs | %.1f µs | %.0f B | %.0f B | %.0f B |\n", d.what, d.cpu, d.alone, d.in, d.out, d.aof)
	}
	b.WriteString("\n| what gateways do by themselves | CPU | received | sent |\n| --- | ---: | ---: | ---: |\n")
	for _, d := range f.idle {
		fmt.Fprintf(&b, "| %s | %.0f µs | %.0f B | %.0f B |\n", d.what, d.cpu, d.in, d.out)
	}
	b.WriteString("\n| nodes of a Cluster | a message costs its sender | and each other node |\n| ---: | ---: | ---: |\n")
	for _, m := range f.messages {
		fmt.Fprintf(&b, "| %d | %.1f µs | %.1f µs |\n", m.nodes, m.sender, m.other)
	}
	b.WriteString("\n| masters | partitions on the fullest | of a fair share | masters without any |\n| ---: | ---: | ---: | ---: |\n")
	for _, masters := range []int{1, 3, 6, 10, 20, 30, 50, 100, 256} {
		most, without := spread(masters)
		fmt.Fprintf(&b, "| %d | %d | %.2f | %d |\n", masters, most, float64(most*masters)/256, without)
	}
	return b.String()
}
