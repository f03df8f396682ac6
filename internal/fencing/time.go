package fencing

import "time"

// Instant is a moment on the store's clock in microseconds since 1970-01-01
// UTC. It stays below 2^53 until 2255, so a Lua number holds it exactly.
type Instant int64

// InstantOf returns t as an Instant, rounded down to a microsecond.
func InstantOf(t time.Time) Instant { return Instant(t.UnixMicro()) }

// Time returns i as a time in UTC.
func (i Instant) Time() time.Time { return time.UnixMicro(int64(i)).UTC() }

// Add returns i moved by d, which is rounded towards zero to a microsecond.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d/time.Microsecond) }

// Sub returns the time from j to i.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i-j) * time.Microsecond }
