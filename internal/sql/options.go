package sql

import (
	"cmp"
	"log/slog"
	"time"

	"fencepost/internal/fencing"
)

// Quarantine says for how long nothing new is granted where the database may have forgotten leases.
type Quarantine struct {
	Off bool          // never: loss is only logged and counted
	For time.Duration // 0: as long as the longest TTL in use, at most fencing.LongestQuarantine

	// Least is the shortest quarantine if For is 0: the TTL of leases that name none. Default 30 s.
	Least time.Duration
}

// bounds returns how long a quarantine takes at least and at most; 0 and 0 is none.
func (q *Quarantine) bounds() (least, most time.Duration) {
	switch {
	case q.Off:
		return 0, 0
	case q.For > 0:
		return q.For, q.For
	}
	return min(q.Least, fencing.LongestQuarantine), fencing.LongestQuarantine
}

// Options says where and how to open a store.
type Options struct {
	URL        string        // see CheckURL
	Version    string        // of the gateway: the log says which one wrote it
	MaxSkew    time.Duration // the largest difference allowed between the clocks of gateway and database; 0 is any
	MaxHolders int           // of one name: see fencing.Guard; 0 is any number
	Quarantine Quarantine
	Logger     *slog.Logger // nil discards

	clock      func() time.Time       // for tests: the gateway's; nil is the machine's
	now        func() fencing.Instant // for tests: in place of the database's clock
	server     func(string) string    // for tests: what the database says of which it is
	stepLimit  int                    // for tests: see fencing.Guard
	aloneAfter time.Duration          // for tests: see aloneAfter; less than 0 is never
	rules      int                    // for tests: the newest that the gateway knows; 0 is fencing.NewestRules
	rulesEvery time.Duration          // for tests; 0 is rulesEvery
	hinted     time.Duration          // for tests; 0 is hintedEvery
	snapshotAt int                    // for tests: bytes of the log after which a snapshot takes its place; 0 is snapshotAfter
	smallState int                    // for tests; 0 is smallState
	smallParts int                    // for tests; 0 is smallChunks
	tidyAfter  time.Duration          // for tests; 0 is claimFor
	keptFor    time.Duration          // for tests; 0 is keptFor
	closesIn   time.Duration          // for tests; 0 is closeTimeout
	wrap       func(database) database
}

// complete sets what is not set.
func (o *Options) complete() {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.aloneAfter == 0 {
		o.aloneAfter = aloneAfter
	}
	o.snapshotAt = cmp.Or(o.snapshotAt, snapshotAfter)
	o.smallState, o.smallParts = cmp.Or(o.smallState, smallState), cmp.Or(o.smallParts, smallChunks)
	o.tidyAfter, o.keptFor, o.closesIn = cmp.Or(o.tidyAfter, claimFor), cmp.Or(o.keptFor, keptFor), cmp.Or(o.closesIn, closeTimeout)
	o.rules, o.rulesEvery = cmp.Or(o.rules, fencing.NewestRules), cmp.Or(o.rulesEvery, rulesEvery)
	o.hinted = cmp.Or(o.hinted, hintedEvery)
	if o.clock == nil {
		o.clock = time.Now
	}
	if o.Quarantine.Least == 0 {
		o.Quarantine.Least = 30 * time.Second
	}
}
