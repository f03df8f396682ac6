package redistest

import (
	"context"
	"errors"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// settleTimeout bounds how long servers may take to agree on something.
const settleTimeout = 60 * time.Second

var errDown = errors.New("the server does not run")

// wait polls a condition that must come true within settleTimeout.
func wait(t testing.TB, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(settleTimeout)
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: that did not come true", what)
		}
	}
}

// do runs one command, which must succeed.
func (s *Server) do(t testing.TB, args ...any) *goredis.Cmd {
	t.Helper()
	cmd := s.try(args...)
	if err := cmd.Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return cmd
}

// each runs a command for each of some slots, all of which must succeed.
func (s *Server) each(t testing.TB, slots []int, args func(slot int) []any) []*goredis.Cmd {
	t.Helper()
	client := s.Client()
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	all := make([]*goredis.Cmd, len(slots))
	pipe := client.Pipeline()
	for i, slot := range slots {
		all[i] = pipe.Do(ctx, args(slot)...)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	return all
}

// try runs one command.
func (s *Server) try(args ...any) *goredis.Cmd {
	select {
	case <-s.exited: // the client would log that it can't dial
		cmd := goredis.NewCmd(context.Background(), args...)
		cmd.SetErr(errDown)
		return cmd
	default:
	}
	client := s.Client()
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	return client.Do(ctx, args...)
}

// role returns "master", "slave" or "" of a server that does not answer, and of a
// replica whether it is connected to its master.
func (s *Server) role() (role string, connected bool) {
	parts, err := s.try("role").Slice()
	if err != nil || len(parts) == 0 {
		return "", false
	}
	role, _ = parts[0].(string)
	return role, len(parts) > 3 && parts[3] == "connected"
}

// set configures the server. A Sentinel that makes it follow another master closes the
// connections of its clients, so it may have to be told again.
func (s *Server) set(t testing.TB, settings ...any) {
	t.Helper()
	var err error
	wait(t, "the server takes its configuration", func() bool {
		err = s.try(append([]any{"config", "set"}, settings...)...).Err()
		var refused goredis.Error
		return err == nil || errors.Is(err, errDown) || errors.As(err, &refused)
	})
	if err != nil {
		t.Fatalf("config set %v: %v", settings, err)
	}
}

// cut keeps a replica from its master from now on: the connection is closed, and
// no other is let in. What the master writes then is not replicated. A replica
// that is merely stopped would still apply it when it goes on.
func (s *Server) cut(t testing.TB) {
	t.Helper()
	s.set(t, "masteruser", "nobody", "masterauth", "wrong")
}

// heal undoes cut.
func (s *Server) heal(t testing.TB) {
	t.Helper()
	s.set(t, "masteruser", "", "masterauth", s.password())
}

// cutAll cuts the replicas off from their master and returns when it knows.
func cutAll(t testing.TB, master *Server, replicas []*Server) {
	t.Helper()
	for _, r := range replicas {
		r.cut(t)
	}
	wait(t, "the replicas are cut off", func() bool {
		master.try("client", "kill", "type", "replica")
		for _, r := range replicas {
			if _, connected := r.role(); connected {
				return false
			}
		}
		return true
	})
}
