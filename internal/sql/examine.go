package sql

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"fencepost/internal/fencing"
)

// What is looked at, as the checks of findings.
const (
	checkAccess      = "access"      // whether the database can be asked all that a gateway asks
	checkClock       = "clock"       // how far its clock is from the gateway's
	checkLog         = "log"         // how large the log is
	checkLoss        = "loss"        // what is done about what was forgotten
	checkReplicas    = "replicas"    // what a fail-over forgets
	checkRole        = "role"        // whether it can be written to
	checkPersistence = "persistence" // what a crash forgets
	checkRules       = "rules"       // by which version of them the log is decided
	checkTimeouts    = "timeouts"    // whether it cuts off turns
	checkVersion     = "version"     // whether it is one that the promises are tested with
)

// Condition is how a store is, for whoever looks at it from outside.
type Condition struct {
	Findings []fencing.Finding
	Stats    fencing.Stats // if Unable is nil
	Unable   error         // why it could not serve now
}

// Examine looks at a store without being one of its gateways: it leaves nothing. An error says why the store can't be looked at.
func Examine(ctx context.Context, o Options) (Condition, error) {
	db, err := newDatabase(o.URL)
	if err != nil {
		return Condition{}, err
	}
	o.complete()
	connect := func() (connection, error) {
		ctx, cancel := context.WithTimeout(ctx, connectTimeout)
		defer cancel()
		conn, err := db.connect(ctx)
		if err != nil {
			return nil, err
		}
		return within(conn), nil
	}
	conn, err := connect()
	if err != nil {
		return Condition{}, err
	}
	defer conn.close()
	var c Condition
	m, err := load(ctx, conn, mark{}, &o)
	var b *begun
	if err == nil {
		b, err = conn.begin(ctx, math.MaxInt64, nil)
	}
	if err == nil {
		err = conn.abandon(ctx)
	}
	if err == nil {
		err = conn.tries(ctx, chunkSize, m.someRow())
	}
	if errors.Is(err, errNoSecond) { // it takes one
		if conn, err = connect(); err != nil {
			return Condition{}, err
		}
		defer conn.close()
	}
	inUse := time.Duration(0)
	if c.Unable = err; err == nil {
		c.Stats = m.Stats(b.now)
		inUse = m.State().Quarantine.Longest(b.now)
	} else if conn, err = connect(); err != nil { // after an error a connection is of no use
		return Condition{}, err
	} else {
		defer conn.close()
		if all, err := conn.holders(ctx); err == nil && inVain(c.Unable) && len(all) > 0 {
			c.Unable = lockedBy(*inWords(all))
		}
	}
	if c.Findings, err = examine(ctx, conn, &o, inUse); err != nil && c.Unable != nil { // that says more
		return c, nil
	}
	if c.Unable == nil && err == nil {
		_, by := m.heldBack(b.now, "", o.rulesEvery)
		c.Findings = append(c.Findings, rulesFinding(m.Rules(), by))
	}
	return c, err
}

// examine looks at how the server is set up, at its clock, and at the settings of the gateway.
func examine(ctx context.Context, conn connection, o *Options, inUse time.Duration) ([]fencing.Finding, error) {
	findings, err := conn.examine(ctx)
	if err != nil {
		return nil, err
	}
	before := o.clock()
	b, err := conn.read(ctx, math.MaxInt64)
	after := o.clock()
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return nil, err
	case err != nil:
		f := finding(checkAccess, "", "the log can't be read, so every request is answered 503: ", "see the log of the database server")
		if fault := fencing.FaultOf(err); fault != nil {
			f.Detail, f.Remedy = f.Detail+fault.Detail+" ("+fault.Err.Error()+")", fault.Remedy
		} else {
			f.Detail += err.Error()
		}
		findings = append(findings, f)
	default:
		findings = append(findings, clockFinding(b.now.Time().Sub(after), b.now.Time().Sub(before), o.MaxSkew))
	}
	return append(findings, lossFinding(&o.Quarantine, inUse)), nil
}

// clockFinding is about a clock that is ahead of the gateway's by between least and most. It goes by what the two differ for certain.
func clockFinding(least, most, allowed time.Duration) fencing.Finding {
	if certain := max(least, -most); allowed > 0 && certain > allowed {
		side := "ahead of"
		if most < 0 {
			side = "behind"
		}
		return finding(checkClock, "P1, P2",
			fmt.Sprintf("its clock is %s %s this gateway's, and %s is allowed: nothing is granted, and no lease is treated as expired",
				short(certain), side, short(allowed)),
			"synchronise both clocks, as by chrony or systemd-timesyncd")
	}
	return fine(checkClock, fmt.Sprintf("its clock and this gateway's differ by at most %s", short(max(most, -least))))
}

// lossFinding is about a setting of the gateway's own.
func lossFinding(q *Quarantine, inUse time.Duration) fencing.Finding {
	const remedy = "FENCEPOST_QUARANTINE=auto"
	inUse = min(max(inUse, q.Least), fencing.LongestQuarantine)
	switch {
	case q.Off:
		return finding(checkLoss, "P1", "quarantine is off: names whose leases the database has lost are granted again while their holders still believe they have them", remedy)
	case q.For > 0 && q.For < inUse:
		return finding(checkLoss, "P1", fmt.Sprintf("names whose leases the database has lost are granted again after %s, while some leases live for %s", q.For, inUse), remedy)
	}
	return fine(checkLoss, "if leases may have been lost, no new ones are granted until the lost ones have expired")
}

func fine(check, detail string) fencing.Finding {
	return fencing.Finding{Check: check, OK: true, Detail: detail}
}

// finding is about what endangers a promise, or is trouble where that is empty.
func finding(check, promise, detail, remedy string) fencing.Finding {
	return fencing.Finding{Check: check, Promise: promise, Detail: detail, Remedy: remedy}
}

// short rounds a difference for people: up, for it is told as a bound.
func short(d time.Duration) string {
	unit := time.Millisecond
	if d >= 10*time.Second {
		unit = time.Second
	}
	return (max(d, 0) + unit - 1).Truncate(unit).String()
}

// size tells a size for people.
func size(n int64) string {
	switch {
	case n < 1<<20:
		return fmt.Sprintf("%d kB", (n+1<<10-1)>>10)
	case n < 10<<30:
		return fmt.Sprintf("%d MB", n>>20)
	}
	return fmt.Sprintf("%d GB", n>>30)
}
