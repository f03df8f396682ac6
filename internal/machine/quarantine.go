package machine

import (
	"log/slog"
	"math"
	"time"

	"fencepost/internal/fencing"
)

// QuarantineLog has the log of a gateway say when the quarantine of a restored copy begins, and when it is over.
type QuarantineLog struct {
	told fencing.Instant // until when it was said to last; 0 if it was said to be over
}

// Tell says what has changed at now, and returns how long nothing more will: more than any pause, if there is no quarantine. The caller
// holds the lock that guards the machine.
func (q *QuarantineLog) Tell(log *slog.Logger, m *Machine, now fencing.Instant) time.Duration {
	until := m.state.Quarantine.Until
	switch {
	case until > now && until != q.told:
		log.Warn("the data is a restored copy: no new leases are granted until those that it does not have must be over; leases in it can be renewed",
			"until", m.walls.Time(until), "for", until.Sub(now).Round(time.Millisecond).String())
		q.told = until
	case until <= now && q.told != 0:
		log.Info("the quarantine of the restored copy is over: new leases are granted")
		q.told = 0
	}
	if until > now {
		return until.Sub(now)
	}
	return math.MaxInt64
}
