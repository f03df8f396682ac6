package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"fencepost/internal/fencing"

	goredis "github.com/redis/go-redis/v9"
)

// The checks of an examination, as Finding.Check.
const (
	checkAccess      = "access"      // whether the server answers, and lets itself be looked at
	checkClock       = "clock"       // how far its clock is from the gateway's
	checkDisk        = "disk"        // whether its last writes to disk went well
	checkLoss        = "loss"        // whether what was forgotten is waited for
	checkEviction    = "eviction"    // whether it drops keys to make room
	checkPersistence = "persistence" // what a restart forgets
	checkReplicas    = "replicas"    // whether enough replicas follow it
	checkRole        = "role"        // whether it is a master
	checkVersion     = "version"     // whether it is one that the promises are tested with
)

// circumstances are what a server is judged by beside what it says of itself.
type circumstances struct {
	node     string // Finding.Node
	failover bool   // Sentinel or a Cluster puts a replica in the place of a master that is lost
	sentinel bool   // it is Sentinel; a master of a Cluster that is cut off from most others stops by itself
	acks     int    // replicas that have to acknowledge a grant
	maxSkew  time.Duration
	clock    func() time.Time // the gateway's
}

// facts are what a server says of itself.
type facts struct {
	info   map[string]string // of INFO
	config map[string]string // of CONFIG GET; nil where that is not allowed

	// Its clock is ahead of the gateway's by something between the two, which is
	// as exact as the round trip was short; behind if negative.
	aheadLeast, aheadMost time.Duration
}

// settings are what no INFO tells. They need Redis 7: older ones take one at a time.
var settings = []any{"config", "get", "appendfsync", "no-appendfsync-on-rewrite", "save", "min-replicas-to-write", "min-replicas-max-lag"}

// Examine is fencing.Store.Examine. It looks at every master; one that does not
// answer is a finding. CodeUnavailable: none answers.
func (s *Store) Examine(ctx context.Context) ([]fencing.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, s.options.OperationTimeout)
	defer cancel()
	c := circumstances{
		failover: failsOver(s.topology.location), sentinel: s.topology.location.kind == kindSentinel, maxSkew: s.options.MaxSkew, acks: s.options.ReplicaAcks, clock: s.options.Clock,
	}
	now := s.topology.table.Load()
	if len(now.nodes) == 0 {
		return nil, s.unavailable(errNoMaster)
	}
	found, errs := make([][]fencing.Finding, len(now.nodes)), make([]error, len(now.nodes))
	_ = inParallel(len(now.nodes), func(i int) error {
		of := c
		if len(now.nodes) > 1 {
			of.node = now.nodes[i].addr
		}
		if found[i], errs[i] = examineNode(ctx, now.nodes[i].client, of); errs[i] != nil {
			found[i] = []fencing.Finding{of.noAccess(s.topology.diagnose(errs[i]))}
		}
		return nil
	})
	if !slices.Contains(errs, nil) {
		return nil, s.unavailable(now.nodes[0].at(errs[0]))
	}
	findings := slices.Concat(found...)
	if now.incomplete() {
		findings = append(findings, c.finding(checkAccess, false, "",
			"some slots have no master: requests for their locks are answered 503", "see what CLUSTER INFO says"))
	}
	if f := s.subscription.refusal.Load(); f != nil {
		findings = append(findings, c.finding(checkAccess, false, "",
			"messages from other gateways can't be received, so hand-overs are late and there are no events: "+f.Detail, f.Remedy))
	}
	return append(findings, s.lossFinding()), nil
}

// noAccess is about a server that can't be asked.
func (c *circumstances) noAccess(err error) fencing.Finding {
	if f := fencing.FaultOf(err); f != nil {
		return c.finding(checkAccess, false, "", f.Detail+": requests for locks kept there are answered 503", f.Remedy)
	}
	return c.finding(checkAccess, false, "", "it does not answer: requests for locks kept there are answered 503", "bring it back")
}

// lossFinding is about a setting of the gateway's own.
func (s *Store) lossFinding() fencing.Finding {
	f := fencing.Finding{Check: checkLoss, Promise: "P1", Remedy: "FENCEPOST_QUARANTINE=auto"}
	policy := &s.options.Quarantine
	inUse := min(max(s.guards.longest(), policy.Least), fencing.LongestQuarantine)
	switch {
	case policy.Off:
		f.Detail = "quarantine is off: names whose leases Redis has lost are granted again while their holders still believe they have them"
	case policy.For > 0 && policy.For < inUse:
		f.Detail = fmt.Sprintf("names whose leases Redis has lost are granted again after %s, while some leases live for %s", policy.For, inUse)
	default:
		f.OK, f.Promise, f.Remedy = true, "", ""
		f.Detail = "if leases may have been lost, no new ones are granted until the lost ones have expired"
	}
	return f
}

// examineNode looks at one server. An error is the failure to ask it.
func examineNode(ctx context.Context, client *goredis.Client, c circumstances) ([]fencing.Finding, error) {
	f, err := ask(ctx, client, c.clock)
	switch {
	case goredis.HasErrorPrefix(err, "NOPERM"):
		return []fencing.Finding{c.finding(checkAccess, false, "P1, P2",
			"the user lacks rights that the gateway needs, so this Redis could not be examined: "+err.Error(),
			"give the user the commands, keys and channels that docs/stores/redis.md lists, with ACL SETUSER")}, nil
	case err != nil:
		return nil, err
	}
	return c.findings(f), nil
}

// ask asks a server about itself. The clock is asked on a connection that has
// just been used, so that no dialling widens the bracket.
func ask(ctx context.Context, client *goredis.Client, clock func() time.Time) (*facts, error) {
	info, err := client.Info(ctx).Result()
	if err != nil {
		return nil, err
	}
	f := &facts{info: parseInfo(info)}
	sent := clock()
	there, err := client.Time(ctx).Result()
	if err != nil {
		return nil, err
	}
	f.aheadLeast, f.aheadMost = there.Sub(clock()), there.Sub(sent)

	config := goredis.NewMapStringStringCmd(ctx, settings...)
	var refused goredis.Error
	switch err := client.Process(ctx, config); {
	case err == nil:
		f.config = config.Val()
	case !errors.As(err, &refused):
		return nil, err
	}
	return f, nil
}

// parseInfo reads the fields of INFO.
func parseInfo(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[key] = value
		}
	}
	return fields
}

// findings says what the facts mean for the promises.
func (c *circumstances) findings(f *facts) []fencing.Finding {
	return []fencing.Finding{
		c.role(f), c.version(f), c.clockOf(f), c.eviction(f), c.persistence(f), c.disk(f), c.replicas(f),
	}
}

// fine is a finding that endangers nothing.
func (c *circumstances) fine(check, detail string) fencing.Finding {
	return c.finding(check, true, "", detail, "")
}

func (c *circumstances) finding(check string, ok bool, promise, detail, remedy string) fencing.Finding {
	return fencing.Finding{Node: c.node, Check: check, OK: ok, Promise: promise, Detail: detail, Remedy: remedy}
}
