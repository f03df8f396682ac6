package fencetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"
)

// Options say how the storage is attacked. The zero value is for storage without permits
// that does not know which tokens were issued.
type Options struct {
	Rounds  int    // of random and concurrent writes, each; 0: 20
	Writers int    // that write at once, 2 to 1,000; 0: 8
	Seed    uint64 // of what is random; 0: the time

	// Permits attacks with slots as well.
	Permits bool

	// Issue returns n tokens, each higher than the one before, that were issued for a resource.
	// Nil makes them up, as high as a gateway's and one after the other, and once up to the
	// highest that there may be: that is for storage that does not ask who issued them.
	Issue func(ctx context.Context, resource string, n int) ([]int64, error)

	// KnowsIssued says that the storage has to refuse tokens that Issue did not return.
	KnowsIssued bool

	madeUp bool // there was no Issue
}

// defaults of Options.
const (
	defaultRounds  = 20
	defaultWriters = 8
	maxWriters     = 1000
	repeats        = 3 // of each of the writers at once, and of a write whose answer is lost
)

func (o Options) complete() (Options, error) {
	if o.Rounds == 0 {
		o.Rounds = defaultRounds
	}
	if o.Writers == 0 {
		o.Writers = defaultWriters
	}
	if o.Rounds < 0 || o.Writers < 2 || o.Writers > maxWriters {
		return o, fmt.Errorf("rounds (%d) must be positive, and writers (%d) from 2 to %d", o.Rounds, o.Writers, maxWriters)
	}
	if o.Seed == 0 {
		o.Seed = uint64(time.Now().UnixNano())
	}
	if o.Issue == nil {
		if o.KnowsIssued {
			return o, errors.New("KnowsIssued needs Issue")
		}
		o.madeUp = true
		o.Issue = from(realToken)
	}
	return o, nil
}

const (
	// realToken is as high as what a gateway issues, microseconds since 1970: storage that
	// cuts tokens off at 32 bits, or keeps a float of 32 bits or 14 digits, takes it for its neighbours.
	realToken = 1795184727477314

	// half is where the lower 32 bits begin again, and half of it where they change their sign: every
	// 36 minutes storage that keeps these alone takes what is newer for stale.
	half = 1 << 32

	maxToken = 1<<53 - 1
)

// from makes tokens up, each the neighbour of the one before.
func from(first int64) func(context.Context, string, int) ([]int64, error) {
	return func(_ context.Context, _ string, n int) ([]int64, error) {
		tokens := make([]int64, n)
		for i := range tokens {
			tokens[i] = first + int64(i)
		}
		return tokens, nil
	}
}

// run is one attack as a whole.
type run struct {
	Options
	ctx     context.Context
	storage Storage
	random  *rand.Rand
	name    string // begin of the names of all resources
	report  *Report
	now     *Tally // of what is under way
	values  int
}

// Attack writes to the storage what it should admit and what it should refuse, and looks
// what came of it: answers, and what is stored then. An error says that the storage could
// not be attacked; what got through is in the report.
func Attack(ctx context.Context, storage Storage, o Options) (*Report, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	r := &run{Options: o, ctx: ctx, storage: storage, random: rand.New(rand.NewPCG(o.Seed, 0)), report: &Report{Seed: o.Seed}}
	r.name = "attack-" + strconv.FormatUint(rand.Uint64(), 36) // of its own, whatever the seed is
	for _, a := range r.attacks() {
		r.report.Tallies = append(r.report.Tallies, Tally{Attack: a.name})
		r.now = &r.report.Tallies[len(r.report.Tallies)-1]
		if err := a.run(); err != nil {
			return r.report, fmt.Errorf("%s: %w", a.name, err)
		}
		if err := ctx.Err(); err != nil {
			return r.report, err
		}
	}
	return r.report, nil
}

// attack is one kind of attack.
type attack struct {
	name string
	run  func() error
}

func (r *run) attacks() []attack {
	all := []attack{
		{"newer", func() error { return r.play(issued(1, 2, 5, 9)) }},
		{"equal", func() error { return r.play(issued(3, 3, 3, 5, 5)) }},
		{"repeated", r.repeated},
		{"stale", func() error { return r.play(append(issued(8), stale(7, 1, 4)...)) }},
		{"newer after stale", func() error { return r.play(append(append(issued(4), stale(3, 3, 2)...), issued(4, 5, 9)...)) }},
		{"reordered", r.reordered},
		{"no tokens", r.with(1, r.noTokens)}, // low ones, so that what is forged is above them
		{"unissued", r.unissued},
		{"concurrent", r.concurrent},
	}
	if r.madeUp {
		all = append(all, attack{"32 bits", r.halves})
		all = append(all, attack{"highest", r.with(maxToken-8, func() error {
			return r.play(append(issued(1, 8), append(stale(7, 1), issued(8, 9, 9)...)...))
		})})
	}
	if r.Permits {
		all = append(all, attack{"permits", func() error { return r.play(permits) }})
	}
	return all
}

// step is a write of a script: token is the place of an issued one, from 1.
type step struct {
	token int
	slot  int
	admit bool
}

const noSlot = -1

func issued(tokens ...int) (steps []step) {
	for _, token := range tokens {
		steps = append(steps, step{token, noSlot, true})
	}
	return steps
}

func stale(tokens ...int) (steps []step) {
	for _, token := range tokens {
		steps = append(steps, step{token, noSlot, false})
	}
	return steps
}

// permits write side by side, each fenced for its slot; a lease without slot is below
// none of them, and none below it.
var permits = []step{
	{2, 0, true}, {4, 1, true}, {2, 0, true}, {3, 1, false}, {4, 1, true}, {3, noSlot, false}, {3, 0, true}, {2, 0, false},
	{6, noSlot, true}, {5, 0, false}, {5, 1, false}, {5, 2, false}, {6, 0, true}, {7, 1, true}, {6, noSlot, false}, {8, noSlot, true},
}

// play plays a script on a new resource.
func (r *run) play(steps []step) error {
	resource, tokens, err := r.resource(9)
	if err != nil {
		return err
	}
	stored := ""
	for _, s := range steps {
		want := refused
		if s.admit {
			want = admitted
		}
		if stored, err = r.try(Write{Resource: resource, Token: strconv.FormatInt(tokens[s.token-1], 10), Slot: s.slot}, stored, want); err != nil {
			return err
		}
	}
	return nil
}

// repeated does what a holder does whose answers are lost: it sends the same write again.
func (r *run) repeated() error {
	resource, tokens, err := r.resource(2)
	stored := ""
	for _, token := range tokens {
		w := r.plain(resource, token)
		w.Value = r.value()
		for range repeats {
			if err == nil {
				stored, err = r.write(w, stored, admitted)
			}
		}
	}
	return err
}

// halves writes tokens beside those where the lower 32 bits begin again, and where their sign changes.
func (r *run) halves() (err error) {
	for _, last := range []int64{realToken/half*half + half, realToken/half*half + half/2} {
		if err == nil {
			err = r.with(last-4, func() error {
				return r.play(append(issued(3, 4, 5), append(stale(4), issued(5, 9)...)...))
			})()
		}
	}
	return err
}

// with is an attack with other tokens, where they are made up.
func (r *run) with(first int64, run func() error) func() error {
	return func() error {
		if before := r.Issue; r.madeUp {
			defer func() { r.Issue = before }()
			r.Issue = from(first)
		}
		return run()
	}
}

// reordered writes tokens as messages come that overtook each other, some of them twice.
func (r *run) reordered() error {
	for range r.Rounds {
		resource, tokens, err := r.resource(12)
		if err != nil {
			return err
		}
		order := append(slices.Clone(tokens), tokens[:4]...)
		r.random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		var highest int64
		stored := ""
		for _, token := range order {
			want := refused
			if token >= highest {
				want, highest = admitted, token
			}
			if stored, err = r.try(Write{Resource: resource, Token: strconv.FormatInt(token, 10), Slot: noSlot}, stored, want); err != nil {
				return err
			}
		}
	}
	return nil
}

// none are texts that are no fencing tokens.
var none = []string{
	"0", "-1", "-9007199254740991", "9007199254740992", "9223372036854775807", "9223372036854775808", "99999999999999999999999",
	"", "token", "NaN", "Infinity", "1e3", "0x10", "5.5", "1 OR 1=1", "' OR ''='", "null", "true", "٣",
}

// noTokens forges what is no token; the storage has to go on as if nothing had come.
func (r *run) noTokens() error {
	resource, tokens, err := r.resource(2)
	if err != nil {
		return err
	}
	stored, err := r.try(r.plain(resource, tokens[0]), "", admitted)
	for _, text := range none {
		if err == nil {
			stored, err = r.try(Write{Resource: resource, Token: text, Slot: noSlot}, stored, notAdmitted)
		}
	}
	for _, token := range tokens { // and none of them has shut out a holder
		if err == nil {
			stored, err = r.try(r.plain(resource, token), stored, admitted)
		}
	}
	return err
}

// unissued forges tokens above all that were issued.
func (r *run) unissued() error {
	for _, forged := range []func(highest int64) int64{
		func(highest int64) int64 { return highest + 1 },
		func(int64) int64 { return maxToken },
	} {
		resource, tokens, err := r.resource(1)
		if err != nil {
			return err
		}
		stored, err := r.try(r.plain(resource, tokens[0]), "", admitted)
		if err != nil {
			return err
		}
		want := either
		if r.KnowsIssued {
			want = notAdmitted
		}
		token := forged(tokens[0])
		before := r.now.Admitted
		if _, err = r.try(r.plain(resource, token), stored, want); err != nil {
			return err
		}
		if r.now.Admitted > before && want == either {
			r.report.note("%d was admitted, which was never issued: it shuts out all holders until tokens pass it. "+
				"Only the issuer of the tokens can tell; make sure that nobody else may write", token)
		}
	}
	return nil
}

func (r *run) plain(resource string, token int64) Write {
	return Write{Resource: resource, Token: strconv.FormatInt(token, 10), Slot: noSlot}
}

// resource returns the name of a new one, and tokens for it.
func (r *run) resource(tokens int) (string, []int64, error) {
	r.report.resources++
	name := fmt.Sprintf("%s-%d", r.name, r.report.resources)
	issued, err := r.Issue(r.ctx, name, tokens)
	if err == nil && (len(issued) != tokens || !slices.IsSorted(issued) || len(slices.Compact(slices.Clone(issued))) != tokens) {
		err = fmt.Errorf("%d tokens were issued that do not grow: %d", tokens, issued)
	}
	return name, issued, err
}
