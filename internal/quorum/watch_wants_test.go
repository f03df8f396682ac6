package quorum

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// picky is a sink that wants one name.
type picky struct {
	*account
	name fencing.Name
}

func (p picky) Wants(name fencing.Name) bool { return name == p.name }

// lookUps counts how often the nodes were asked for a name's history: nothing else reads
// a list.
func (f *servers) lookUps() (n int) {
	f.t.Helper()
	for _, server := range f.server {
		client := server.Client()
		stats, err := client.Info(bg, "commandstats").Result()
		if err := errors.Join(err, client.Close()); err != nil {
			f.t.Fatal(err)
		}
		if _, line, is := strings.Cut(stats, "cmdstat_lrange:calls="); is {
			var calls int
			if _, err := fmt.Sscanf(line, "%d,", &calls); err != nil {
				f.t.Fatal(err)
			}
			n += calls
		}
	}
	return n
}

// A gateway that watches one name for an attached lease does not look at the others, and
// tells what happens to that one; who wants them all later hears of what is new.
func TestOnlyWantedNamesAreLookedAt(t *testing.T) {
	const others = 1_000
	f := startServers(t, 3)
	s, other := f.gateway(2*time.Second), f.gateway(2*time.Second) // a busy machine is not what this is about
	await(t, "a new quorum", acquires(s))
	heard := picky{&account{told: map[string]time.Time{}}, "kept"}
	defer other.Watch(heard)()
	turn := func(name fencing.Name) fencing.Token {
		r := request(name)
		out, err := s.Acquire(bg, r)
		if err != nil {
			t.Error(err)
			return 0
		}
		if _, err := s.Release(bg, fencing.ReleaseRequest{Name: name, Lease: r.Lease}); err != nil {
			t.Error(err)
		}
		return out.Holder.Token
	}
	told := func(who *account) func(context.Context) error {
		return func(context.Context) error {
			event := fmt.Sprint(fencing.EventReleased, turn("kept"))
			deadline := time.Now().Add(time.Second)
			for who.missing(map[string]time.Time{event: {}}) > 0 {
				if time.Now().After(deadline) {
					return errors.New("a release is not told")
				}
				if !other.pause(time.Millisecond) {
					return errClosed
				}
			}
			return nil
		}
	}
	await(t, "the first event", told(heard.account))
	before := f.lookUps()
	var running sync.WaitGroup
	names := make(chan int)
	for range 4 {
		running.Go(func() {
			for i := range names {
				turn(fencing.Name(fmt.Sprint("other/", i)))
			}
		})
	}
	for i := range others {
		names <- i
	}
	close(names)
	running.Wait()
	if n := f.lookUps() - before; n > 2*len(f.server) { // of the name that is wanted one or two may have been under way
		t.Errorf("%d look-ups while %d names that nobody wants were taken and let go", n, others)
	}
	await(t, "another event", told(heard.account))

	all := &account{told: map[string]time.Time{}}
	defer other.Watch(all)()
	token := turn("other/1")
	await(t, "what is new of another name", func(context.Context) error {
		if all.missing(map[string]time.Time{fmt.Sprint(fencing.EventReleased, token): {}}) > 0 {
			return errors.New("it is not told")
		}
		return nil
	})
}
