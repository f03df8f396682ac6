package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"fencepost/client"
	"fencepost/internal/lines"
)

// lookInterval is how often the queue is looked at while somebody watches.
const lookInterval = time.Second

// queueView shows who holds a lock and the place in its queue in one line of a terminal.
type queueView struct {
	public  atomic.Pointer[string] // of the lease id that waits
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// showQueue begins, if there is a terminal to show it on.
func (c *call) showQueue(ctx context.Context, name string) *queueView {
	v := &queueView{}
	ctx, v.cancel = context.WithCancel(ctx)
	f, ok := c.err.(*os.File)
	if c.quiet || !ok || !isTerminal(f) {
		return v
	}
	out := lines.New(f, 2, 1<<10) // a terminal may be stopped
	v.running.Go(func() {
		tick := time.NewTicker(lookInterval)
		defer tick.Stop()
		defer out.Close(endOfView)
		defer fmt.Fprint(out, "\r\033[K")
		begun := time.Now()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			if l, err := c.client.Inspect(ctx, name); err == nil {
				fmt.Fprintf(out, "\r\033[K%.*s", width, v.line(l, time.Since(begun)))
			} else if ctx.Err() == nil {
				fmt.Fprintf(out, "\r\033[K%.*s", width, name+": "+err.Error())
			}
		}
	})
	return v
}

// endOfView bounds how long it is waited until the line is taken away.
const endOfView = 100 * time.Millisecond

// width is how much of a line is shown: a longer one would not be written over.
const width = 79

// as says which waiter this is.
func (v *queueView) as(public string) { v.public.Store(&public) }

// stop takes the line away.
func (v *queueView) stop() {
	v.cancel()
	v.running.Wait()
}

func (v *queueView) line(l client.Lock, waited time.Duration) string {
	place := fmt.Sprintf("%d wait", l.Waiting)
	if public := v.public.Load(); public != nil {
		for _, w := range l.Waiters {
			if w.Lease == *public {
				place = fmt.Sprintf("number %d of %d", w.Position, l.Waiting)
				if w.EstimatedWait > 0 {
					place += ", " + estimate(w.EstimatedWait) + " more,"
				}
			}
		}
	}
	return fmt.Sprintf("%s: %s for %s; %s", l.Name, place, short(waited), heldBy(l.Holders, l.HolderCount, millis(l.Delayed)))
}

// heldBy says who holds a lock, or for how long nobody is granted it.
func heldBy(holders []client.Holder, count int, delayed time.Duration) string {
	if len(holders) == 0 && delayed > 0 {
		return fmt.Sprintf("free, but delayed for %s", short(delayed))
	}
	return "held by " + holdersOf(holders, count)
}

// holdersOf says who holds a lock, for how long, and when the first lease ends.
func holdersOf(holders []client.Holder, count int) string {
	if len(holders) == 0 {
		return "nobody"
	}
	h := holders[0]
	text, left := fmt.Sprintf("%s for %s, ", printable(h.Owner), short(time.Since(h.AcquiredAt))), short(time.Duration(h.ExpiresIn)*time.Millisecond)
	if h.Left {
		text += "released in " + left
	} else {
		text += left + " left unless renewed"
	}
	if count > 1 {
		text += fmt.Sprintf(", and %d more", count-1)
	}
	return text
}

// short rounds a duration to what people read.
func short(d time.Duration) string {
	if d < 10*time.Second {
		return max(0, d).Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// printable replaces an owner that is empty.
func printable(owner string) string {
	if owner == "" {
		return "(no owner)"
	}
	return visible(owner)
}

// visible shows what of a text can't be seen, as \u202e: who may set an owner could else have
// a terminal show another one, or two different ones look the same.
func visible(text string) string {
	if !strings.ContainsFunc(text, hidden) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		switch {
		case !hidden(r):
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// hidden reports whether a character takes no room, changes the order of others, or is a blank
// that is no space.
func hidden(r rune) bool {
	return !unicode.IsPrint(r) || unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) || r == '\u2800'
}
