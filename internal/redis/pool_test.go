package redis

import (
	"runtime"
	"testing"

	"fencepost/internal/redis/redistest"

	goredis "github.com/redis/go-redis/v9"
)

// A pool that a stall has filled keeps its connections: they must not be large.
func TestConnectionsAreSmall(t *testing.T) {
	const most = 64 << 10 // bytes of a connection
	s := open(t, Options{URL: redistest.Start(t).SocketURL()})
	client := s.topology.nodes()[0].client
	before := inUse()
	var taken []*goredis.Conn
	for range s.options.PoolSize {
		conn := client.Conn()
		taken = append(taken, conn)
		if err := conn.Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, conn := range taken {
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
	added := s.options.PoolSize - 2 // some were there before
	if got := int(s.PoolStats().Idle); got < added {
		t.Fatalf("%d connections are idle, want %d", got, s.options.PoolSize)
	}
	if got := (inUse() - before) / added; got > most {
		t.Errorf("a connection keeps %d bytes, want %d at most", got, most)
	}
}

// inUse returns the bytes of the heap that are in use.
func inUse() int {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}
