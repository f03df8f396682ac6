package redis

import (
	"strconv"
	"strings"
	"time"

	"fencepost/internal/fencing"
)

// QuarantinePolicy says for how long nothing new is granted when a Redis may have
// forgotten leases.
type QuarantinePolicy struct {
	Off bool          // never: loss is only logged and counted
	For time.Duration // 0: as long as the longest TTL in use, at most fencing.LongestQuarantine

	// Least is the shortest quarantine if For is 0: the TTL of leases that name
	// none. Default 30 s.
	Least time.Duration
}

// bounds returns how long a quarantine takes at least and at most; 0 and 0 is none.
func (p *QuarantinePolicy) bounds() (least, most time.Duration) {
	switch {
	case p.Off:
		return 0, 0
	case p.For > 0:
		return p.For, p.For
	}
	return min(p.Least, fencing.LongestQuarantine), fencing.LongestQuarantine
}

// length returns how long a quarantine takes where the longest TTL in use is that.
func (p *QuarantinePolicy) length(longest time.Duration) time.Duration {
	least, most := p.bounds()
	return min(max(longest, least), most)
}

// guard is what a partition remembers in order to be careful.
type guard struct {
	fencing.Quarantine
	layout     string
	partitions int
	born       fencing.Instant
}

// newFor is for how long a Cluster may be new: all its guards are written when the first
// gateways start, each when its master is first reached.
const newFor = time.Minute

// old reports whether a guard is one of a store that is not new any more.
func (g *guard) old(now time.Time) bool { return fencing.InstantOf(now).Sub(g.born) > newFor }

// defaultLeast is QuarantinePolicy.Least where it is not said.
const defaultLeast = 30 * time.Second

// decodeGuard reads a guard of this layout, with so many partitions.
func decodeGuard(text string, partitions int) (guard, error) {
	g := guard{}
	in := codec{rest: text}
	in.guard(&g)
	switch {
	case strings.IndexByte(text, 0) < 0 && strings.Contains(text, "\n"): // the layout before had lines
		return g, &metaError{field: "the layout", got: "3 or an older one", want: layoutVersion}
	case in.bad, strings.Trim(g.layout, "0123456789") != "":
		return g, errUnreadable
	case g.layout != layoutVersion:
		return g, &metaError{field: "the layout", got: g.layout, want: layoutVersion}
	case g.partitions != partitions:
		return g, &metaError{field: "the partition count", got: strconv.Itoa(g.partitions), want: strconv.Itoa(partitions)}
	}
	return g, nil
}
