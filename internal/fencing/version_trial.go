//go:build rules2

package fencing

import "time"

const newest = 2

// trialTTL is the longest TTL of an acquire by version 2.
const trialTTL = 5 * time.Minute

// trial refuses a long TTL where version 2 is in force.
func (t *step) trial(op AcquireRequest) *Error {
	if t.Rules >= 2 && op.TTL > trialTTL {
		return invalid("ttl_ms", "is more than 5 minutes, which version 2 of the rules refuses")
	}
	return nil
}
