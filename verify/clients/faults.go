package clients

import (
	"syscall"

	"fencepost/internal/redis/redistest"
	"fencepost/verify/system"
)

// fault is what goes wrong between a holder and its gateway.
type fault struct {
	name   string
	inject func(l *lane, h holder) (*system.Harm, error)

	healLate    bool // it is undone once the next one has the lock, for lack of a renewal or a release
	reaches     bool // requests get to the gateway all the same
	stopsHolder bool
}

// faults returns those that a holder can have.
func faults(kind Holder) []fault {
	all := []fault{
		{name: "gateway killed", healLate: true, inject: func(l *lane, _ holder) (*system.Harm, error) { return l.s.Gateways[0].Crash() }},
		{name: "gateway stopped", healLate: true, inject: func(l *lane, _ holder) (*system.Harm, error) { return l.s.Gateways[0].Freeze() }},
		{name: "Redis stopped", inject: func(l *lane, _ holder) (*system.Harm, error) {
			server := l.s.Servers[0]
			return system.Paused("Redis", server.Resume, server.Pid()), server.Pause()
		}},
		{name: "Redis killed", inject: func(l *lane, _ holder) (*system.Harm, error) {
			server := l.s.Servers[0]
			return system.Killed("Redis", server.Restart, server.Pid()), server.Kill()
		}},
		{name: "answers held back", healLate: true, reaches: true, inject: func(l *lane, _ holder) (*system.Harm, error) {
			seen, release := system.Since(l.front.Late), l.front.Hold()
			return system.NewHarm("link of the holder", "answers held back", seen, func() error { release(); return nil }), nil
		}},
		{name: "network cut", healLate: true, inject: func(l *lane, _ holder) (*system.Harm, error) {
			seen := system.Since(l.front.Broken)
			l.front.Cut(true)
			return system.NewHarm("link of the holder", "connections closed or refused", seen, func() error { l.front.Cut(false); return nil }), nil
		}},
	}
	if kind == Lockctl {
		all = append(all, fault{name: "lockctl stopped", stopsHolder: true, inject: func(_ *lane, h holder) (*system.Harm, error) {
			lockctl := h.(*command).cmd.Process
			return system.Paused("lockctl", func() error { return lockctl.Signal(syscall.SIGCONT) }, lockctl.Pid), redistest.PauseProcess(lockctl)
		}})
	}
	return all
}
