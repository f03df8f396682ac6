package sessions

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"fencepost/verify/check"
	"fencepost/verify/system"
)

// together sends pairs and triples of POSTs, to one gateway and to several.
func (l *load) together(ctx context.Context, groups int) error {
	for from := 0; from < groups && ctx.Err() == nil; from += batch {
		all := make([]*group, min(batch, groups-from))
		for i := range all {
			var err error
			if all[i], err = l.group(from + i); err != nil {
				return err
			}
		}
		_ = each(len(all), len(all), func(i int) error {
			what := map[int]string{2: "pairs", 3: "triples"}[len(all[i].streams)] + fmt.Sprintf(" for %d names", len(all[i].names))
			several := l.settle(all[i])
			var none error
			if errors.Is(several, errNone) {
				none, several = several, nil
			}
			l.note(what+" of which none was left", none)
			l.note(what+" of which several were left", several)
			all[i].close()
			l.note(what+" that held something after all had closed", l.free(ctx, l.s.Gateways[0], all[i], time.Second))
			return nil
		})
		l.r.Reach("pairs and triples", len(all), len(all))
	}
	return ctx.Err()
}

// group sends the requests of one together, and returns when each was answered.
func (l *load) group(n int) (*group, error) {
	random := l.r.Random(n)
	g := newGroup(random, fmt.Sprintf("streams/together/%d/", n), 1+random.IntN(l.most), ttl)
	if random.IntN(4) == 0 {
		g.ttl = long
	}
	g.streams = make([]*conn, 2+n%4/3)
	first, apart := random.IntN(len(l.s.Gateways)), random.IntN(2)
	if err := each(len(g.streams), len(g.streams), func(i int) (err error) {
		g.streams[i], err = g.send(l.s.Gateways[(first+i*apart)%len(l.s.Gateways)], len(g.names))
		return err
	}); err != nil {
		return nil, err
	}
	for _, c := range g.streams {
		await(patience, func() bool { return len(c.said()) > 0 })
	}
	g.since = time.Now()
	return g, nil
}

// free waits until no name of a group is held, for so long and what a busy machine takes.
func (l *load) free(ctx context.Context, at *system.Gateway, g *group, within time.Duration) error {
	return (&session{client: l.client, prefix: g.prefix}).free(ctx, at, within+slack)
}

// leave has clients close or reset a few milliseconds after an attaching POST. Half of them have an
// older stream with the same lease id, which they close as well.
func (l *load) leave(ctx context.Context, clients int) error {
	for from := 0; from < clients && ctx.Err() == nil; from += batch {
		all, what := make([]*group, min(batch, clients-from)), make([]string, batch)
		if err := each(len(all), side, func(i int) (err error) {
			random := l.r.Random(1_000_000 + from + i)
			all[i] = newGroup(random, fmt.Sprintf("streams/leave/%d/", from+i), 1+random.IntN(l.most), long)
			what[i], err = l.leaver(random, all[i])
			return err
		}); err != nil {
			return err
		}
		<-time.After(3 * time.Second)
		_ = each(len(all), len(all), func(i int) error {
			l.note(what[i], l.free(ctx, l.s.Gateways[0], all[i], 0))
			return nil
		})
		l.r.Reach("clients that left on the way", len(all), len(all))
	}
	if clients > 0 && ctx.Err() == nil {
		l.r.Harms.Add("clients leave", check.Harm{To: "connections", What: "that had no answer", N: int(l.untold.Load())})
	}
	return ctx.Err()
}

// leaver is one client; it returns what it did.
func (l *load) leaver(random *rand.Rand, g *group) (what string, err error) {
	what = "leases left behind by FIN"
	reset := random.IntN(2) == 0
	if reset {
		what = "leases left behind by RST"
	}
	if random.IntN(2) == 0 {
		what += " of a second POST"
		if err := g.open(pick(random, l.s.Gateways), len(g.names)); err != nil {
			return "", err
		}
		defer func() {
			system.Pause(time.Duration(random.Int64N(int64(most / 3))))
			g.close()
		}()
	}
	c, err := g.send(pick(random, l.s.Gateways), len(g.names))
	if err != nil {
		return "", err
	}
	system.Pause(time.Duration(random.Int64N(int64(most))))
	if len(c.said()) == 0 {
		l.untold.Add(1)
	}
	if reset {
		err = c.conn.SetLinger(0)
	}
	return fmt.Sprintf("%s for %d names", what, len(g.names)), errors.Join(err, c.kill())
}

func pick[T any](random *rand.Rand, all []T) T { return all[random.IntN(len(all))] }

// want is that a request is carried out.
func want(a system.Answer, err error) error {
	if err == nil && a.Status >= http.StatusMultipleChoices {
		err = fmt.Errorf("the answer is %s", a)
	}
	return err
}

// gains opens a session of a and b, and a stream of it that waits for c too, which another holds:
// let releases it.
func (l *load) gains(ctx context.Context, random *rand.Rand, prefix string, ttl time.Duration) (g *group, let func() error, err error) {
	g = newGroup(random, prefix, 3, ttl)
	held, err := l.client.Acquire(ctx, pick(random, l.s.Gateways), g.names[2], "", `{"ttl_ms":600000}`)
	if err = want(held, err); err != nil {
		return g, nil, err
	}
	let = func() error { return want(l.client.Release(ctx, l.s.Gateways[0], g.names[2], held.Lease.ID)) }
	if err := g.open(pick(random, l.s.Gateways), 2); err != nil {
		return g, nil, errors.Join(err, let())
	}
	g.wait = patience
	newer, err := g.send(pick(random, l.s.Gateways), 3)
	if err != nil {
		return g, nil, errors.Join(err, let())
	}
	g.streams = append(g.streams, newer)
	if !await(patience, func() bool { return len(newer.said()) > 0 }) {
		err = errors.New("who waits is told nothing")
	}
	return g, let, err
}

// gain has a session wait for a name for longer than its TTL, release another, and close.
func (l *load) gain(ctx context.Context, random *rand.Rand, prefix string) error {
	bounded, cancel := context.WithTimeout(ctx, 2*long)
	defer cancel()
	g, let, err := l.gains(bounded, random, prefix, ttl)
	defer func() {
		g.close()
		l.note("sessions that held something after all had closed", l.free(ctx, l.s.Gateways[0], g, time.Second))
	}()
	if err != nil {
		return err
	}
	<-time.After(3 * ttl)
	older, newer := g.streams[0], g.streams[1]
	if err := errors.Join(let(), newer.await()); err != nil {
		return err
	}
	g.since = time.Now()
	before, now := older.told().tokens(), newer.told().tokens()
	if len(now) != 3 || now[g.names[0]] != before[g.names[0]] || now[g.names[1]] != before[g.names[1]] {
		return fmt.Errorf("granted %v, and had %v", now, before)
	}
	if err := errors.Join(l.settle(g), want(l.client.Release(bounded, pick(random, l.s.Gateways), g.names[0], g.leaseID))); err != nil {
		return err
	}
	if !await(bound+slack, func() bool {
		return slices.ContainsFunc(newer.said(), func(e event) bool { return e.kind == "released" && e.Name == g.names[0] })
	}) {
		return errors.New("the stream does not say that a name was released")
	}
	if last, over := ended(newer.said()); over {
		return fmt.Errorf("the rest of a session ended with %s %s", last.kind, last.Code)
	}
	return nil
}

// breaks has a name broken that a session has while it waits for another, which is then free. Where
// there are proxies the store answers late.
func (l *load) breaks(ctx context.Context, n int) error {
	for _, g := range l.s.Gateways {
		for _, p := range g.Proxies {
			seen := system.Since(p.Late)
			p.Delay(late)
			defer func() {
				p.Delay(0)
				delayed, _ := seen()
				l.r.Harms.Add("slow store", check.Harm{To: "links of " + g.Name, What: "answers delayed", N: delayed})
			}()
		}
	}
	l.r.Reach("sessions with a broken name", n, n)
	return each(n, side, func(i int) error {
		random := l.r.Random(3_000_000 + i)
		bounded, cancel := context.WithTimeout(ctx, 2*long)
		defer cancel()
		g, let, err := l.gains(bounded, random, fmt.Sprintf("streams/break/%d/", i), long)
		defer g.close()
		if err != nil {
			return err
		}
		older, newer := g.streams[0], g.streams[1]
		err = want(l.client.Break(bounded, l.s.Gateways[0], g.names[1], older.told().tokens()[g.names[1]]))
		system.Pause(time.Duration(random.Int64N(int64(2 * late))))
		if err = errors.Join(err, let()); err != nil {
			return err
		}
		if !await(bound+slack, func() bool {
			_, one := ended(older.said())
			_, other := ended(newer.said())
			return one && other
		}) {
			err = errors.New("a stream goes on")
		}
		l.note("sessions with a broken name of which a stream went on", err)
		g.close()
		l.note("sessions with a broken name that held something after all had closed", l.free(ctx, l.s.Gateways[0], g, time.Second))
		return ctx.Err()
	})
}

// cutMessages closes the connections of all subscribers of the store: gateways that have just lost theirs have to be back.
func (l *load) cutMessages(ctx context.Context) error {
	return each(len(l.s.Servers), len(l.s.Servers), func(i int) error {
		harm, err := system.AtOnce(fmt.Sprint("Redis ", i+1), "connections closed", l.s.Servers[i].DropSubscribers)
		if err != nil {
			return err
		}
		did, err := harm.End(ctx)
		l.r.Harms.Add("pub/sub cut", did)
		return err
	})
}

// lose has a gateway miss that its streams are replaced at another: messages are cut, or it stands
// still. Then it kills the other. Every third lease has a long TTL, and is closed before.
func (l *load) lose(ctx context.Context, round int, how string) (err error) {
	random := l.r.Random(4_000_000 + round)
	n := random.IntN(len(l.s.Gateways))
	at, other := l.s.Gateways[n], l.s.Gateways[(n+1)%len(l.s.Gateways)]
	groups := make([]*group, 12)
	for i := range groups {
		groups[i] = newGroup(random, fmt.Sprintf("streams/%s/%d/%d/", how[:3], round, i), 1+random.IntN(l.most), 3*ttl)
		if i%3 == 0 {
			groups[i].ttl = long
		}
		defer groups[i].close()
	}
	open := func(i int) error { return groups[i].open(other, len(groups[i].names)) }
	if err := each(len(groups), side, func(i int) error { return groups[i].open(at, len(groups[i].names)) }); err != nil {
		return err
	}
	over, resume := time.Now(), func() error { return nil }
	if how == "pub/sub cut" {
		err = each(len(groups), 1, func(i int) error { return errors.Join(l.cutMessages(ctx), open(i)) })
	} else {
		over = over.Add(500*time.Millisecond + time.Duration(random.Int64N(int64(4500*time.Millisecond))))
		var harm *system.Harm
		if harm, err = at.Freeze(); err == nil {
			resume = func() error {
				did, err := harm.End(ctx)
				l.r.Harms.Add(how, did)
				return err
			}
			err = each(len(groups), side, open)
		}
	}
	<-time.After(time.Until(over))
	if err = errors.Join(err, resume()); err != nil {
		return err
	}
	back := time.Now()
	_ = each(len(groups), len(groups), func(i int) error {
		groups[i].since = back
		l.note(how+": leases of which not one stream was left", l.settle(groups[i]))
		if groups[i].ttl == long {
			groups[i].close()
			l.note(how+": leases held after all had closed", l.free(ctx, at, groups[i], time.Second))
		}
		return nil
	})
	pid := other.PID()
	if err := other.Kill(); err != nil {
		return err
	}
	l.r.Harms.Add("gateway killed", other.Ended(pid))
	_ = each(len(groups), len(groups), func(i int) error {
		if groups[i].ttl != long {
			l.note(how+": leases that outlived the gateway of their newest stream", l.free(ctx, at, groups[i], 3*ttl))
		}
		return nil
	})
	l.r.Reach("rounds of "+how, 1, 1)
	if err := other.Start(); err != nil {
		return err
	}
	return l.s.AwaitReady(2 * patience)
}
