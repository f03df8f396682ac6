package history

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"fencepost/verify/check"
	"fencepost/verify/system"
)

// lookEvery is how often each name is looked at.
const lookEvery = 100 * time.Millisecond

// settled is how long the end of a run is looked at after the last client has gone.
const settled = 2500 * time.Millisecond

// Run has clients use a system while faults happen, and checks what they saw. An error
// means that there is no history: ctx ended, or a process could not be started.
func Run(ctx context.Context, cfg Config) (Report, error) {
	h, report, err := Record(ctx, &cfg)
	if err != nil {
		return report, err
	}
	begun := time.Now()
	report.Violations = Check(h, *cfg.Rules, cfg.Dir)
	report.Leavers, report.Kept, _ = h.keeps(cfg.Rules)
	report.Judged = h.calm()
	report.Checked = time.Since(begun)
	return report, nil
}

// Record is Run without the check.
func Record(ctx context.Context, cfg *Config) (h *History, report Report, err error) {
	if err := cfg.fill(); err != nil {
		return nil, report, err
	}
	if cfg.System == nil {
		options := cfg.Options
		options.Env = append(Env(options.Store), options.Env...)
		if cfg.System, err = system.Start(options); err != nil {
			return nil, report, err
		}
		defer func() {
			err = errors.Join(err, cfg.System.Close())
			cfg.System = nil
		}()
	}
	r := &run{cfg: cfg, began: time.Now(), random: rand.New(rand.NewPCG(cfg.Seed, 1)), harms: &check.Harms{}}
	for i := range cfg.Names {
		r.names = append(r.names, fmt.Sprintf("h%d/n%d", cfg.Seed, i))
	}
	if err := r.play(ctx); err != nil {
		return nil, report, err
	}
	return &r.history, r.report(), nil
}

// run is one run.
type run struct {
	cfg    *Config
	began  time.Time
	random *rand.Rand // of what happens before and beside the clients
	names  []string
	sent   atomic.Int64

	mu      sync.Mutex
	history History
	harms   *check.Harms
}

func (r *run) now() Time { return time.Since(r.began) }

func (r *run) play(ctx context.Context) error {
	var clients, others sync.WaitGroup
	beside, stop := context.WithCancel(ctx)
	defer stop()
	defer r.cfg.System.Watch(ctx)()
	for i, name := range r.names {
		l := looker{run: r, client: newClient(r, -1-i), name: name}
		others.Go(func() { l.look(beside) })
	}
	for i := range r.cfg.Clients {
		c := newClient(r, i)
		clients.Go(func() { c.live(ctx) })
	}
	var failed error
	quiet, end := context.WithCancel(ctx)
	others.Go(func() { failed = r.trouble(quiet) })
	clients.Wait()
	end()
	select {
	case <-time.After(settled):
	case <-ctx.Done():
	}
	stop()
	others.Wait()
	r.history.End = r.now()
	r.elections()
	slices.SortFunc(r.history.Ops, func(a, b Op) int { return a.ID - b.ID })
	return errors.Join(failed, ctx.Err())
}

// number returns the ID of the next operation.
func (r *run) number() int { return int(r.sent.Add(1)) }

func (r *run) record(op Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Ops = append(r.history.Ops, op)
}

func (r *run) report() Report {
	report := Report{
		Store: r.cfg.System.Kind, Seed: r.cfg.Seed, Clients: r.cfg.Clients, Names: len(r.names),
		Operations: len(r.history.Ops), Looks: len(r.history.Looks), Verdicts: len(r.history.Verdicts), Harms: r.harms, Took: r.history.End,
	}
	for i := range r.history.Ops {
		op := &r.history.Ops[i]
		switch op.Verdict {
		case Granted:
			report.Granted++
			if op.Verb == Acquire && op.Wait > 0 {
				report.Longest = max(report.Longest, op.Done-op.Sent)
			}
		case Unknown:
			report.Unknown++
		case Left:
			report.Left++
		}
	}
	return report
}

// looker looks at a name all the time, and asks its fence about the tokens that it has seen.
type looker struct {
	run    *run
	client *client
	name   string
}

func (l looker) look(ctx context.Context) {
	ticks := time.NewTicker(lookEvery)
	defer ticks.Stop()
	defer l.client.close()
	var tokens [2]int64 // the newest that was shown, and the one before
	for n := 0; ; n++ {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return
		}
		look, ok := l.client.inspect(ctx, n, l.name)
		if ok {
			l.run.mu.Lock()
			l.run.history.Looks = append(l.run.history.Looks, look)
			l.run.mu.Unlock()
		}
		for _, h := range look.Holders {
			if h.Token > tokens[0] {
				tokens[1], tokens[0] = tokens[0], h.Token
			}
		}
		token := tokens[n%4/3] // the older one each fourth time
		if token == 0 || !l.run.cfg.Rules.CurrentReads {
			continue
		}
		if judged, ok := l.client.judge(ctx, n+1, l.name, token); ok {
			l.run.mu.Lock()
			l.run.history.Verdicts = append(l.run.history.Verdicts, judged)
			l.run.mu.Unlock()
		}
	}
}
