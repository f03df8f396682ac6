package crowd

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"fencepost/verify/check"
	"fencepost/verify/system"
)

// Readers is crowds of readers, far more than one step of a store serves
// (fencing.StepLimit), each with a writer behind it.
type Readers struct {
	Rounds int
	Crowds int // of a round
	Each   int // readers of a crowd
}

// late are the readers that come when the crowds are being served.
const late = 40

// servedTurn is one who was served: its place in the order of arrival, batch by batch, and
// its token.
type servedTurn struct {
	place  int
	writer bool
	token  int64
}

// readers is one round.
type readers struct {
	Readers
	r      *check.Result
	s      *system.System
	client *system.Client
	name   string

	mu     sync.Mutex
	turns  []servedTurn
	inside []int           // readers of each crowd that have the lock, or had it
	whole  []chan struct{} // closed when all of a crowd have it
	free   time.Time       // since when a crowd could have the lock
	widest time.Duration   // from then until all of it had it
}

// Run has readers and writers queue up behind a holder. When it lets go all readers of
// the first crowd must have the lock at the same time, within 2 s; then its writer, then
// the next crowd; and nobody who comes later overtakes anybody.
func (o Readers) Run(ctx context.Context, s *system.System, r *check.Result) error {
	client := system.NewClient(o.Crowds*(o.Each+1) + late)
	defer client.Close()
	done, widest := 0, time.Duration(0)
	for i := range o.Rounds {
		round := &readers{Readers: o, r: r, s: s, client: client, name: fmt.Sprintf("readers/%d", i), inside: make([]int, o.Crowds)}
		for range o.Crowds {
			round.whole = append(round.whole, make(chan struct{}))
		}
		if err := round.run(ctx); err != nil {
			return err
		}
		done, widest = done+len(round.turns), max(widest, round.widest)
		for _, g := range s.Gateways {
			if err := nothingLeft(ctx, client, g, round.name); err != nil {
				r.Violation("round %d: %v", i, err)
			}
		}
	}
	r.Reach("readers and writers", done, o.Rounds*(o.Crowds*(o.Each+1)+late))
	r.Count("longest until all of a crowd had the lock", widest)
	return nil
}

func (o *readers) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, served)
	defer cancel()
	first, err := o.client.Acquire(ctx, o.s.Gateways[0], o.name, "", `{"ttl_ms":600000}`)
	if err != nil || first.Status != 201 {
		return fmt.Errorf("a free lock was answered %s, %w", first, err)
	}
	var waiting sync.WaitGroup
	defer waiting.Wait()
	place, n := 0, 0
	for crowd := range o.Crowds {
		for begun := 0; begun < o.Each; begun += batch {
			at := place
			for range min(batch, o.Each-begun) {
				g := o.s.Gateways[n%len(o.s.Gateways)]
				waiting.Go(func() { o.reader(ctx, g, crowd, at) })
				n++
			}
			if err := awaitWaiting(ctx, o.client, o.s.Gateways[0], o.name, n); err != nil {
				return err
			}
			place++
		}
		g, at := o.s.Gateways[n%len(o.s.Gateways)], place
		waiting.Go(func() { o.writer(ctx, g, at) })
		n++
		if err := awaitWaiting(ctx, o.client, o.s.Gateways[0], o.name, n); err != nil {
			return err
		}
		place++
	}
	o.mu.Lock()
	o.free = time.Now()
	o.mu.Unlock()
	if a, err := o.client.Release(ctx, o.s.Gateways[0], o.name, first.Lease.ID); err != nil || a.Status != 204 {
		return fmt.Errorf("a release was answered %s, %w", a, err)
	}
	for i := range late {
		waiting.Go(func() { o.reader(ctx, o.s.Gateways[i%len(o.s.Gateways)], -1, place) })
	}
	waiting.Wait()
	slices.SortFunc(o.turns, func(a, b servedTurn) int { return int(a.token - b.token) })
	for i, t := range o.turns {
		if i > 0 && (t.place < o.turns[i-1].place || t.token == o.turns[i-1].token) {
			o.r.Violation("P5: %+v was served after %+v", t, o.turns[i-1])
		}
	}
	return nil
}

// turn waits for the lock, has during happen with it, and lets go.
func (o *readers) turn(ctx context.Context, g *system.Gateway, body string, t servedTurn, during func()) {
	a, err := o.client.Acquire(ctx, g, o.name, "", body)
	if err != nil || a.Status != 201 {
		o.r.Violation("P5: a waiter was answered %s, %v", a, err)
		return
	}
	t.token = a.Lease.Token
	o.mu.Lock()
	o.turns = append(o.turns, t)
	o.mu.Unlock()
	during()
	if a, err := o.client.Release(ctx, g, o.name, a.Lease.ID); err != nil || a.Status != 204 {
		o.r.Violation("a release was answered %s, %v", a, err)
	}
}

// reader keeps the lock until all readers of its crowd have it. Those that came late are
// of none.
func (o *readers) reader(ctx context.Context, g *system.Gateway, crowd, place int) {
	o.turn(ctx, g, `{"mode":"shared","ttl_ms":600000,"wait_ms":60000}`, servedTurn{place: place}, func() {
		if crowd < 0 {
			return
		}
		o.mu.Lock()
		if o.inside[crowd]++; o.inside[crowd] == o.Each {
			took := time.Since(o.free)
			if o.widest = max(o.widest, took); took > 2*time.Second {
				o.r.Violation("P5: it took %s until all of %d readers had the lock", took, o.inside[crowd])
			}
			close(o.whole[crowd])
		}
		o.mu.Unlock()
		select {
		case <-o.whole[crowd]:
		case <-time.After(5 * time.Second):
			o.mu.Lock()
			defer o.mu.Unlock()
			o.r.Violation("P5: after 5 s only %d of %d readers have the lock together", o.inside[crowd], o.Each)
		case <-ctx.Done():
		}
	})
}

func (o *readers) writer(ctx context.Context, g *system.Gateway, place int) {
	o.turn(ctx, g, `{"ttl_ms":600000,"wait_ms":60000}`, servedTurn{place: place, writer: true}, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.free = time.Now()
	})
}
