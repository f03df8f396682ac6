package client

import "time"

// instant is a moment by every clock there is.
type instant struct {
	t    time.Time     // by the monotonic and the wall clock
	boot time.Duration // by a clock that runs on while the machine is suspended; 0 where there is none
}

func now() instant { return instant{time.Now(), sinceBoot()} }

// since returns how much time has passed since then, by the clock that has seen most of
// it: the monotonic clock stands still while the machine is suspended, and the clock since
// boot while a virtual machine is. A wall clock that is set forward makes leases end
// early, which is safe.
func (i instant) since(then instant) time.Duration {
	return max(i.t.Sub(then.t), i.t.Round(0).Sub(then.t.Round(0)), i.boot-then.boot)
}
