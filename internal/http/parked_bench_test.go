//go:build linux

package http

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"golang.org/x/sys/unix"

	"fencepost/internal/fencing"
	"fencepost/internal/watchdog"
)

// BenchmarkParked is the memory of thousands of requests that wait, each over its own
// connection, against a bare handler that reads the body and parks: with net/http
// alone, and behind chi. One run of each is all there is to measure; RSS is what the
// kernel says.
func BenchmarkParked(b *testing.B) {
	const requests = 9_000 // both ends of the connections are this process's: 20,000 descriptors have to do
	quiet := slog.New(slog.NewJSONHandler(io.Discard, nil))
	b.Run("bare-net-http", func(b *testing.B) {
		var bare parking
		measureParked(b, NewHTTPServer(&bare, quiet), requests, func() int { return int(bare.parked.Load()) })
	})
	b.Run("bare-chi", func(b *testing.B) {
		var bare parking
		mux := chi.NewRouter()
		mux.Post("/locks/*", bare.ServeHTTP)
		measureParked(b, NewHTTPServer(mux, quiet), requests, func() int { return int(bare.parked.Load()) })
	})
	b.Run("gateway", func(b *testing.B) {
		store := modelStore()
		dog := watchdog.New(store, watchdog.Options{})
		defer dog.Stop()
		server := New(Options{Watchdog: dog, Bounds: fencing.DefaultBounds(), Logger: quiet})
		if _, err := store.Do(b.Context(), fencing.AcquireRequest{Name: "orders/42", Lease: fencing.NewLeaseID(time.Now()),
			Stamp: fencing.NewStamp(), Mode: fencing.ModeExclusive, Hold: 1, TTL: time.Hour}); err != nil {
			b.Fatal(err)
		}
		measureParked(b, NewHTTPServer(server.Handler(), quiet), requests, func() int {
			out, err := store.Do(b.Context(), fencing.InspectRequest{Name: "orders/42"})
			if err != nil {
				b.Fatal(err)
			}
			return out.Lock.Waiting
		})
		server.Drain()
	})
}

// parking reads a request and keeps it until its connection is closed.
type parking struct{ parked atomic.Int64 }

func (p *parking) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	p.parked.Add(1)
	<-r.Context().Done()
}

// measureParked opens so many connections, sends a request over each, and reports
// what that has added to the process when all are parked.
func measureParked(b *testing.B, server *http.Server, requests int, parked func() int) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go server.Serve(listener)
	defer server.Close()
	const body = `{"ttl_ms":30000,"wait_ms":60000,"owner":"worker-7"}`
	request := []byte("POST /locks/orders/42 HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\nContent-Type: application/json\r\nContent-Length: " +
		strconv.Itoa(len(body)) + "\r\n\r\n" + body)
	clients := make([]int, 0, requests) // file descriptors: they cost this process no memory
	defer func() {
		for _, fd := range clients {
			unix.Close(fd)
		}
	}()
	address := &unix.SockaddrInet4{Port: listener.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}
	rss, heap, stacks := memory(b)
	for len(clients) < requests {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			b.Fatal(err)
		}
		clients = append(clients, fd)
		if err := unix.Connect(fd, address); err != nil {
			b.Fatal(err)
		}
		if _, err := unix.Write(fd, request); err != nil {
			b.Fatal(err)
		}
	}
	for deadline := time.Now().Add(time.Minute); parked() < requests; {
		if time.Now().After(deadline) {
			b.Fatalf("%d of %d wait", parked(), requests)
		}
		<-time.After(10 * time.Millisecond)
	}
	rssNow, heapNow, stacksNow := memory(b)
	each := func(before, after uint64) float64 { return (float64(after) - float64(before)) / float64(requests) }
	b.ReportMetric(each(rss, rssNow), "RSS-B/request")
	b.ReportMetric(each(heap, heapNow), "heap-B/request")
	b.ReportMetric(each(stacks, stacksNow), "stack-B/request")
	b.ReportMetric(0, "ns/op")
}

// memory returns what the process has resident, and the heap and stacks in use.
func memory(b *testing.B) (rss, heap, stacks uint64) {
	for range 4 { // stacks shrink by a half at a time
		runtime.GC()
	}
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kilobytes, err := strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return kilobytes << 10, stats.HeapAlloc, stats.StackInuse
}
