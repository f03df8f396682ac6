package clients

import (
	"syscall"

	"fencepost/internal/redis/redistest"
)

// fault is what goes wrong between a holder and its gateway.
type fault struct {
	name   string
	inject func(l *lane, h holder) (heal func() error, err error)

	healLate    bool // it is undone once the next one has the lock, for lack of a renewal or a release
	reaches     bool // requests get to the gateway all the same
	stopsHolder bool
}

// faults returns those that a holder can have.
func faults(kind Holder) []fault {
	all := []fault{
		{name: "gateway killed", healLate: true, inject: func(l *lane, _ holder) (func() error, error) {
			g := l.s.Gateways[0]
			return g.Start, g.Kill()
		}},
		{name: "gateway stopped", healLate: true, inject: func(l *lane, _ holder) (func() error, error) {
			g := l.s.Gateways[0]
			return g.Resume, g.Pause()
		}},
		{name: "Redis stopped", inject: func(l *lane, _ holder) (func() error, error) {
			server := l.s.Servers[0]
			return server.Resume, server.Pause()
		}},
		{name: "Redis killed", inject: func(l *lane, _ holder) (func() error, error) {
			server := l.s.Servers[0]
			return server.Restart, server.Kill()
		}},
		{name: "answers held back", healLate: true, reaches: true, inject: func(l *lane, _ holder) (func() error, error) {
			release := l.front.Hold()
			return func() error { release(); return nil }, nil
		}},
		{name: "network cut", healLate: true, inject: func(l *lane, _ holder) (func() error, error) {
			l.front.Cut(true)
			return func() error { l.front.Cut(false); return nil }, nil
		}},
	}
	if kind == Lockctl {
		all = append(all, fault{name: "lockctl stopped", stopsHolder: true, inject: func(_ *lane, h holder) (func() error, error) {
			lockctl := h.(*command).cmd.Process
			return func() error { return lockctl.Signal(syscall.SIGCONT) }, redistest.PauseProcess(lockctl)
		}})
	}
	return all
}
