package redistest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"
)

// Try runs what a program that is no test does with servers from Launch, after it:
// what would fail a test is its error.
func Try(do func()) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			err = r
		default:
			panic(r)
		}
	}()
	do()
	return nil
}

// Pause stops the process as it is, as PauseProcess does: its connections stay open in
// silence.
func (s *Server) Pause() error { return PauseProcess(s.process.Process) }

// Resume lets a process go on that was paused.
func (s *Server) Resume() error { return s.process.Process.Signal(syscall.SIGCONT) }

// PauseProcess stops a child of this process as it is (SIGSTOP), and returns when all of it
// stands: until then it may still answer. One that has ended meanwhile is no error.
func PauseProcess(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	for { // WNOWAIT leaves its end to who waits for that
		switch err := unix.Waitid(unix.P_PID, p.Pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil); {
		case errors.Is(err, unix.ECHILD):
			return nil
		case !errors.Is(err, unix.EINTR):
			return err
		}
	}
}

// Flush forgets all data (FLUSHALL), and returns how many keys that were.
func (s *Server) Flush() (keys int, err error) {
	client := s.Client()
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	var size *goredis.IntCmd
	_, err = client.TxPipelined(ctx, func(both goredis.Pipeliner) error {
		size = both.DBSize(ctx)
		return both.FlushAll(ctx).Err()
	})
	return int(size.Val()), err
}

// Time returns what the server's clock shows.
func (s *Server) Time() (time.Time, error) {
	client := s.Client()
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	return client.Time(ctx).Result()
}

// Written returns how many bytes the server has written for its replicas, or as a replica has from its master.
func (s *Server) Written() (bytes int, err error) {
	info, err := s.try("info", "replication").Text()
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(info, "\nmaster_repl_offset:")
	_, err = fmt.Sscan(rest, &bytes)
	return bytes, err
}

// Keys returns all keys of a pattern, in order.
func (s *Server) Keys(pattern string) ([]string, error) {
	keys, err := s.try("keys", pattern).Slice()
	all := make([]string, len(keys))
	for i, key := range keys {
		all[i], _ = key.(string)
	}
	slices.Sort(all)
	return all, err
}

// Delete deletes keys, as DEL by hand does, and returns how many there were.
func (s *Server) Delete(keys ...string) (removed int, err error) {
	args := []any{"del"}
	for _, key := range keys {
		args = append(args, key)
	}
	return s.try(args...).Int()
}

// DropClients closes the connections of all clients and subscribers, and returns how many there were.
func (s *Server) DropClients() (closed int, err error) {
	clients, err := s.try("client", "kill", "type", "normal").Int()
	if err != nil {
		return 0, err
	}
	subscribers, err := s.DropSubscribers()
	return clients + subscribers, err
}

// DropSubscribers closes the connections of all subscribers, and returns how many there were.
func (s *Server) DropSubscribers() (closed int, err error) {
	return s.try("client", "kill", "type", "pubsub").Int()
}

// FollowMaster has every server follow the master that the Sentinels name, and waits
// until it does. The Sentinels do that by themselves, but only seconds later.
func (s *Sentinel) FollowMaster() {
	s.t.Helper()
	s.HealReplication()
	wait(s.t, "all servers follow the master", func() bool {
		master := s.Master()
		connected := 0
		for _, server := range s.servers {
			switch role, is := server.role(); {
			case server == master:
			case is && server.follows(master):
				connected++
			case role != "":
				server.try("replicaof", "127.0.0.1", master.port)
			}
		}
		return connected == len(s.servers)-1
	})
}

// follows reports whether a replica has this master.
func (s *Server) follows(master *Server) bool {
	parts, err := s.try("role").Slice()
	if err != nil || len(parts) < 3 {
		return false
	}
	port, _ := parts[2].(int64)
	return int(port) == master.port
}

// Complete waits until all nodes run, believe that the Cluster is well, take none for
// failed, and all replicas are connected. One that is taken for failed may lose its
// place some seconds after it runs again.
func (c *Cluster) Complete() {
	c.t.Helper()
	wait(c.t, "the Cluster is complete", func() bool {
		masters, connected := 0, 0
		for _, one := range c.members {
			table := c.table(one)
			if !c.serves(one) || len(table) != len(c.members) {
				return false
			}
			for _, node := range table {
				if flags := strings.Split(node[2], ","); slices.Contains(flags, "fail") || slices.Contains(flags, "fail?") {
					return false
				}
			}
			switch role, is := one.role(); {
			case role == "master":
				masters++
			case is:
				connected++
			}
		}
		return masters == c.masters && connected == len(c.members)-c.masters
	})
}

// SlotInUse returns a slot that a master has keys of, chosen by that server at
// random; ok is false if it has none.
func (c *Cluster) SlotInUse(master *Server) (slot int, ok bool) {
	c.t.Helper()
	key, err := master.try("randomkey").Text()
	if err != nil {
		return 0, false
	}
	slot, err = master.try("cluster", "keyslot", key).Int()
	return slot, err == nil
}

// Addr returns host and port where the proxy listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Promoted waits until a replica of a master that is down has taken its place.
func (c *Cluster) Promoted(old *Server) {
	c.t.Helper()
	wait(c.t, "a replica takes over", func() bool {
		masters := 0
		for _, one := range c.members {
			if role, _ := one.role(); one != old && role == "master" && c.serves(one) {
				masters++
			}
		}
		return masters == c.masters
	})
}
