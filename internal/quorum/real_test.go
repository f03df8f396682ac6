package quorum

import (
	"context"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis"
	"fencepost/internal/redis/redistest"
)

// realSkew leaves room for a machine that is busy: a command that comes later is
// refused.
const realSkew = 400 * time.Millisecond

// servers is a quorum of real Redis processes, each behind a proxy.
type servers struct {
	t       *testing.T
	server  []*redistest.Server
	proxies []*redistest.Proxy
}

func startServers(t *testing.T, n int) *servers {
	t.Helper()
	f := &servers{t: t}
	for range n {
		server := redistest.Start(t)
		f.server = append(f.server, server)
		f.proxies = append(f.proxies, redistest.StartProxy(t, server.Addr()))
	}
	return f
}

// gateway returns a store on the servers, as one gateway has it.
func (f *servers) gateway(nodeTimeout time.Duration) *Store {
	f.t.Helper()
	var nodes []fencing.Node
	for _, p := range f.proxies {
		node, err := redis.Open(f.t.Context(), redis.Options{
			URL: p.URL(), Member: true, Logger: quiet, MaxSkew: realSkew, Quarantine: redis.QuarantinePolicy{Least: time.Second},
		})
		if err != nil {
			f.t.Fatal(err)
		}
		nodes = append(nodes, node)
	}
	s, err := Open(nodes, Options{MaxSkew: realSkew, NodeTimeout: nodeTimeout, LongestTTL: time.Second, Logger: quiet, tick: 50 * time.Millisecond})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if err := s.Close(); err != nil {
			f.t.Error(err)
		}
	})
	return s
}

// await waits until do succeeds.
func await(t *testing.T, what string, do func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := do(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, last)
		}
	}
}

func acquires(s *Store) func(context.Context) error {
	return func(ctx context.Context) error {
		r := request("await/" + fencing.Name(fencing.NewStamp()))
		_, err := s.Do(ctx, r)
		return err
	}
}

func TestRealQuorum(t *testing.T) {
	for _, n := range []int{3, 5} {
		f := startServers(t, n)
		s := f.gateway(250 * time.Millisecond)
		await(t, "a new quorum", acquires(s))
		r := request("a")
		first, err := s.Do(bg, r)
		if err != nil {
			t.Fatal(err)
		}
		r.Stamp = fencing.NewStamp()
		again, err := s.Do(bg, r)
		if err != nil || again.Holder.Token != first.Holder.Token {
			t.Fatalf("%+v, %v; want token %d", again, err, first.Holder.Token)
		}
		if _, err := s.Do(bg, request("a")); asError(err) == nil || asError(err).Code != fencing.CodeLocked {
			t.Fatalf("got %v", err)
		}
		if _, err := s.Do(bg, fencing.RenewRequest{Name: "a", Lease: r.Lease}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Do(bg, fencing.ReleaseRequest{Name: "a", Lease: r.Lease}); err != nil {
			t.Fatal(err)
		}
		out, err := s.Do(bg, fencing.HistoryRequest{Name: "a"})
		if err != nil || len(out.Past) != 1 || out.Past[0].Holder.Token != first.Holder.Token || out.Past[0].Reason != fencing.ReasonReleased {
			t.Fatalf("%+v, %v", out.Past, err)
		}
	}
}
