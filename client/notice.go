package client

import "time"

// Notice says that an administrator is going to break a lease (Client.BreakWithNotice): what
// its holder was told stays true, and no renewal lets it live for longer than Left.
type Notice struct {
	Name   string        // which of the lease's names it is about
	Left   time.Duration // how long the lease can be held at most from now on, by this process's own clocks
	Reason string        // why, in the words of who breaks it, if they said
}

// noticeSlack is how far apart the deadline of a lease that a notice bounds and the end of the
// notice may be: both are rounded down.
const noticeSlack = 100 * time.Millisecond

// given is a notice, and when the lease ends by it.
type given struct {
	Notice
	news
}

// Notice returns the notice that the lease was given, if it was. The lease's context is
// cancelled before it is over as before the end of any lease, with ErrNoticeOver; until
// then all is as before, so that there is time to finish and to release it.
func (l *Lease) Notice() (n Notice, given bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.notice == nil {
		return n, false
	}
	n = l.notice.Notice
	n.Left = l.notice.remaining(l.c.now())
	return n, true
}

// takeNotice notes what an answer or an event says of a notice. The caller holds the mutex, or
// is the only one to know the lease. Who is to be told of it is told once a notice: another
// end that is sooner by a second is another one.
func (l *Lease) takeNotice(g granted, said news) {
	n, left, is := g.notice()
	if !is {
		return
	}
	was := l.notice
	said.left = left
	l.notice = &given{n, said}
	n.Left = said.remaining(said.read)
	if was != nil && was.Name == n.Name && was.Reason == n.Reason && was.remaining(said.read)-n.Left < time.Second || l.told == nil {
		return
	}
	l.c.goes(func() { l.told(n) })
}

// noticed takes over an event that says no more than a notice.
func (l *Lease) noticed(g granted, n news) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.takeNotice(g, n)
}
