package http

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
	"fencepost/internal/watchdog"
)

// discard is a ResponseWriter that costs as little as one can, with what
// net/http's own has.
type discard struct {
	header http.Header
	status int
}

func (w *discard) Header() http.Header              { return w.header }
func (w *discard) WriteHeader(status int)           { w.status = status }
func (w *discard) Write(b []byte) (int, error)      { return len(b), nil }
func (w *discard) FlushError() error                { return nil }
func (w *discard) SetWriteDeadline(time.Time) error { return nil }
func (w *discard) reset()                           { clear(w.header); w.status = 0 }
func (w *discard) want(b *testing.B, status int) {
	if w.status != status {
		b.Fatalf("status %d", w.status)
	}
}

const benchID = "01JZ0000000000000000000000.EXAMPLE-EXAMPLE-EXAMPLE"

// pair runs an acquire and a release through a handler.
func pair(b *testing.B, handler http.Handler, acquired int) {
	b.Helper()
	const body = `{"ttl_ms":30000,"owner":"worker-7"}`
	w := &discard{header: http.Header{}}
	post := httptest.NewRequest("POST", "http://localhost/locks/orders/42", nil)
	post.ContentLength = int64(len(body))
	reader := strings.NewReader(body)
	post.Body = io.NopCloser(reader)
	del := httptest.NewRequest("DELETE", "http://localhost/locks/orders/42", nil)
	del.Body = http.NoBody
	b.ReportAllocs()
	for b.Loop() {
		// A fresh id each time: one that has ended is never granted again.
		id := fencing.NewLeaseID(time.Now()).Reveal()
		post.Header["Lease-Id"] = []string{id}
		del.Header["Lease-Id"] = post.Header["Lease-Id"]
		reader.Reset(body)
		w.reset()
		handler.ServeHTTP(w, post)
		w.want(b, acquired)
		w.reset()
		handler.ServeHTTP(w, del)
		w.want(b, 204)
	}
}

func modelStore() fencing.Store {
	return fencingtest.NewModel(func() fencing.Instant { return fencing.InstantOf(time.Now()) })
}

func benchServer(store fencing.Store, log *slog.Logger) http.Handler {
	return New(Options{Watchdog: watchdog.New(store, watchdog.Options{}), Bounds: fencing.DefaultBounds(),
		Registerer: prometheus.NewRegistry(), Logger: log}).Handler()
}

// BenchmarkPair is an acquire and a release, against a bare chi handler that
// reads the body and answers the same JSON.
func BenchmarkPair(b *testing.B) {
	quiet := slog.New(slog.NewJSONHandler(io.Discard, nil))
	b.Run("bare-chi", func(b *testing.B) { pair(b, bareChi(), 201) })
	b.Run("store-alone", func(b *testing.B) { storeAlone(b) })
	b.Run("gateway", func(b *testing.B) { pair(b, benchServer(modelStore(), quiet), 201) })
	b.Run("gateway-every-line-logged", func(b *testing.B) {
		pair(b, benchServer(modelStore(), slog.New(slog.NewJSONHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug}))), 201)
	})
}

func storeAlone(b *testing.B) {
	store := modelStore()
	b.ReportAllocs()
	for b.Loop() {
		id := fencing.NewLeaseID(time.Now())
		store.Do(b.Context(), fencing.AcquireRequest{Name: "orders/42", Lease: id, Stamp: fencing.NewStamp(),
			Mode: fencing.ModeExclusive, Hold: 1, TTL: 30 * time.Second, Owner: "worker-7"})
		store.Do(b.Context(), fencing.ReleaseRequest{Name: "orders/42", Lease: id})
	}
}

func bareChi() http.Handler {
	answer := []byte(`{"name":"orders/42","lease_id":"` + benchID + `","owner":"worker-7","mode":"exclusive","fencing_token":1795184727477314,` +
		`"hold":1,"ttl_ms":30000,"acquired_at":"2026-11-20T14:00:00.123Z","expires_at":"2026-11-20T14:00:30.123Z","expires_in_ms":29998,` +
		`"renew_in_ms":10000,"waited_ms":0}`)
	mux := chi.NewRouter()
	mux.Post("/locks/*", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(201)
		w.Write(answer)
	})
	mux.Delete("/locks/*", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(204) })
	return mux
}

// BenchmarkPairTCP is the same over 64 loopback connections: what a request
// costs in all.
func BenchmarkPairTCP(b *testing.B) {
	quiet := slog.New(slog.NewJSONHandler(io.Discard, nil))
	for _, c := range []struct {
		name    string
		handler http.Handler
	}{{"bare-chi", bareChi()}, {"gateway", benchServer(modelStore(), quiet)}} {
		b.Run(c.name, func(b *testing.B) {
			ts := httptest.NewUnstartedServer(nil)
			ts.Config = NewHTTPServer(c.handler, quiet)
			ts.Start()
			defer ts.Close()
			address := ts.Listener.Addr().String()
			var connections atomic.Int64
			b.SetParallelism(64 / runtime.GOMAXPROCS(0))
			b.RunParallel(func(pb *testing.PB) { pairsOverTCP(b, pb, address, connections.Add(1)) })
		})
	}
}

// pairsOverTCP drives one connection, each with a name of its own.
func pairsOverTCP(b *testing.B, pb *testing.PB, address string, connection int64) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		b.Error(err)
		return
	}
	defer conn.Close()
	const body = `{"ttl_ms":30000,"owner":"worker-7"}`
	answers := bufio.NewReader(conn)
	for pb.Next() {
		head := fmt.Sprintf("/locks/orders/%d HTTP/1.1\r\nHost: localhost\r\nLease-Id: %s\r\n", connection, fencing.NewLeaseID(time.Now()).Reveal())
		for _, request := range []string{"POST " + head + "Content-Length: 35\r\n\r\n" + body, "DELETE " + head + "\r\n"} {
			if _, err := io.WriteString(conn, request); err != nil {
				b.Error(err)
				return
			}
			resp, err := http.ReadResponse(answers, nil)
			if err != nil {
				b.Error(err)
				return
			}
			io.Copy(io.Discard, resp.Body)
			if resp.StatusCode >= 300 {
				b.Errorf("status %d", resp.StatusCode)
				return
			}
		}
	}
}
