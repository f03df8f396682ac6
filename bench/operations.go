package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"fencepost/internal/fencing"
	"fencepost/internal/redis"
	"fencepost/internal/redis/redistest"
)

// measureDone runs one operation after the other, several rounds of each.
func (f *footprint) measureDone(rounds int) error {
	server, err := redistest.Run("--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0", "--save", "")
	if err != nil {
		return err
	}
	defer server.Close()
	ctx, client := context.Background(), server.Client()
	defer client.Close()
	var stores [2]*redis.Store
	for i := range stores {
		if stores[i], err = openStore(ctx, server); err != nil {
			return err
		}
		defer stores[i].Close()
	}
	held, near, far := &row{ctx: ctx, stores: stores[:1]}, &row{ctx: ctx, stores: stores[:1]}, &row{ctx: ctx, stores: stores[:]}
	for _, kind := range []struct {
		what  string
		start func(i int) error
		work  func(i int) error
	}{
		{"acquire and release", nil, func(i int) error { return storePair(stores[0], i%names) }},
		{"renewal", held.take("held"), held.renew},
		{"admission of a token that was admitted before", nil, held.admit},
		{"refused acquire", nil, held.refused},
		{"look at a held lock", nil, held.inspect},
		{"turn: hand-off at one gateway, and a new place", near.queue("near"), near.turn},
		{"turn: hand-off between two gateways, and a new place", far.queue("far"), far.turn},
	} {
		if kind.start != nil {
			if err := each(names, 1, kind.start); err != nil {
				return fmt.Errorf("%s: %w", kind.what, err)
			}
		}
		var all [5][]float64
		for range rounds {
			busy, err := spent(ctx, client, 20_000, callers, kind.work)
			if err != nil {
				return fmt.Errorf("%s: %w", kind.what, err)
			}
			alone, err := spent(ctx, client, 4_000, 1, kind.work)
			if err != nil {
				return fmt.Errorf("%s: %w", kind.what, err)
			}
			for i, v := range []float64{busy.cpu, alone.cpu, busy.in, busy.out, busy.aof} {
				all[i] = append(all[i], v)
			}
		}
		f.done = append(f.done, done{kind.what, median(all[0]) * 1e6, median(all[1]) * 1e6, median(all[2]), median(all[3]), median(all[4])})
	}
	return nil
}

// spent returns what Redis uses for one of n pieces of work.
func spent(ctx context.Context, client *goredis.Client, n, goroutines int, work func(int) error) (sample, error) {
	before, err := take(ctx, client)
	if err != nil {
		return sample{}, err
	}
	if err := each(n, goroutines, work); err != nil {
		return sample{}, err
	}
	after, err := take(ctx, client)
	per := func(before, after float64) float64 { return (after - before) / float64(n) }
	return sample{
		cpu: per(before.cpu, after.cpu), in: per(before.in, after.in), out: per(before.out, after.out), aof: per(before.aof, after.aof),
	}, err
}

// row is a number of names under way. Each name is used by one goroutine at a time.
type row struct {
	ctx     context.Context
	stores  []*redis.Store
	holder  [names]fencing.AcquireRequest
	token   [names]fencing.Token
	waiter  [names]fencing.AcquireRequest
	waiting [names]int // the store at which the waiter is
}

func (w *row) take(kind string) func(int) error {
	return func(i int) error {
		w.holder[i] = newRequest(fencing.Name(fmt.Sprintf("%s/%d", kind, i)))
		w.holder[i].TTL = time.Hour
		out, err := w.stores[0].Do(w.ctx, w.holder[i])
		w.token[i] = out.Holder.Token
		return err
	}
}

func (w *row) renew(i int) error {
	h := &w.holder[i%names]
	_, err := w.stores[0].Do(w.ctx, fencing.RenewRequest{Name: h.Name, Lease: h.Lease})
	return err
}

func (w *row) admit(i int) error {
	i %= names
	_, err := w.stores[0].Do(w.ctx, fencing.AdmitRequest{Name: w.holder[i].Name, Token: w.token[i], Slot: fencing.NoSlot})
	return err
}

func (w *row) refused(i int) error {
	_, err := w.stores[0].Do(w.ctx, newRequest(w.holder[i%names].Name))
	var refusal *fencing.Error
	if !errors.As(err, &refusal) || refusal.Code != fencing.CodeLocked {
		return fmt.Errorf("not refused: %w", err)
	}
	return nil
}

func (w *row) inspect(i int) error {
	_, err := w.stores[0].Do(w.ctx, fencing.InspectRequest{Name: w.holder[i%names].Name})
	return err
}

// queue takes each name, and has the last store wait for it.
func (w *row) queue(kind string) func(int) error {
	take := w.take(kind)
	return func(i int) error { return errors.Join(take(i), w.join(i, len(w.stores)-1)) }
}

func (w *row) join(i, store int) error {
	w.waiter[i], w.waiting[i] = newRequest(w.holder[i].Name), store
	w.waiter[i].TTL, w.waiter[i].Wait = time.Hour, time.Hour
	_, err := w.stores[store].Do(w.ctx, w.waiter[i])
	return err
}

// turn has the holder let go, the waiter take over, and the former holder's gateway
// wait.
func (w *row) turn(i int) error {
	i %= names
	from, to := len(w.stores)-1-w.waiting[i], w.waiting[i]
	if _, err := w.stores[from].Do(w.ctx, fencing.ReleaseRequest{Name: w.holder[i].Name, Lease: w.holder[i].Lease}); err != nil {
		return err
	}
	w.holder[i] = w.waiter[i]
	if from != to {
		h := &w.holder[i]
		if _, err := w.stores[to].Do(w.ctx, fencing.ConfirmRequest{Name: h.Name, Lease: h.Lease, Stamp: h.Stamp}); err != nil {
			return err
		}
	}
	return w.join(i, from)
}
