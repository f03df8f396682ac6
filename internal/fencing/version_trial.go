//go:build rules2

package fencing

import "time"

const newest = 3

// trialTTL is the longest TTL of an acquire by this version.
const trialTTL = 5 * time.Minute

// trial refuses a long TTL where this version is in force.
func (t *step) trial(op AcquireRequest) *Error {
	if t.Rules >= newest && op.TTL > trialTTL {
		return invalid("ttl_ms", "is more than 5 minutes, which the newest version of the rules refuses")
	}
	return nil
}
