package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/oklog/ulid/v2"
	goredis "github.com/redis/go-redis/v9"

	"fencepost/internal/fencing"
	"fencepost/internal/redis"
)

// answer is what an acquire returns; the baselines return the same JSON.
type answer struct {
	Name         string `json:"name"`
	LeaseID      string `json:"lease_id"`
	FencingToken int64  `json:"fencing_token"`
	Mode         string `json:"mode"`
	Owner        string `json:"owner"`
	Hold         int    `json:"hold"`
	TTL          int64  `json:"ttl_ms"`
	ExpiresIn    int64  `json:"expires_in_ms"`
	RenewIn      int64  `json:"renew_in_ms"`
	Waited       int64  `json:"waited_ms"`
	AcquiredAt   string `json:"acquired_at"`
	ExpiresAt    string `json:"expires_at"`
}

func newAnswer(name, lease, owner string, token, ttl int64) answer {
	now := time.Now().UTC()
	const millis = "2006-01-02T15:04:05.000Z"
	return answer{
		Name: name, LeaseID: lease, FencingToken: token, Mode: "exclusive", Owner: owner, Hold: 1,
		TTL: ttl, ExpiresIn: ttl, RenewIn: ttl / 3,
		AcquiredAt: now.Format(millis), ExpiresAt: now.Add(time.Duration(ttl) * time.Millisecond).Format(millis),
	}
}

func newLease() string {
	var secret [16]byte
	rand.Read(secret[:])
	return ulid.MustNew(ulid.Now(), rand.Reader).String() + "." + base64.RawURLEncoding.EncodeToString(secret[:])
}

type order struct {
	TTL   int64  `json:"ttl_ms"`
	Owner string `json:"owner"`
}

// serveBaseline is a server process of its own: it announces its address on
// standard output and serves until it is killed.
func serveBaseline(kind, storeURL string) error {
	router := chi.NewRouter()
	switch kind {
	case "bare":
		bare(router)
	case "naive":
		store, err := redis.Open(context.Background(), redis.Options{
			URL: storeURL, MaxSkew: time.Second, Uncoalesced: true, PoolSize: poolSize,
		})
		if err != nil {
			return err
		}
		naive(router, store)
	case "parking":
		parking(router)
	case "fifo":
		fifo().serve(router)
	case "postgres", "mariadb":
		table, err := openTable(kind, storeURL)
		if err != nil {
			return err
		}
		table.serve(router)
	case "minimal", "polling":
		options, err := goredis.ParseURL(storeURL)
		if err != nil {
			return err
		}
		options.PoolSize = poolSize
		if kind == "polling" {
			polling(goredis.NewClient(options)).serve(router)
		} else {
			minimal(goredis.NewClient(options)).serve(router)
		}
	default:
		return fmt.Errorf("no baseline %q", kind)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, listener.Addr())
	return http.Serve(listener, router)
}

// locks take and give back the locks of a baseline. serve has the handlers, which all of them share.
type locks struct {
	// take takes a lock for a lease, and returns its fencing token, if it has one. false: another one has the lock.
	take func(ctx context.Context, name, lease string, in order) (token int64, taken bool, err error)

	// give gives one back, and reports whether the lease had it.
	give func(ctx context.Context, name, lease string) (bool, error)
}

// serve answers acquires and releases.
func (l locks) serve(router chi.Router) {
	router.Post("/locks/*", func(w http.ResponseWriter, r *http.Request) {
		var in order
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		name, lease := chi.URLParam(r, "*"), newLease()
		token, taken, err := l.take(r.Context(), name, lease, in)
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		case !taken:
			http.Error(w, "locked", http.StatusLocked)
		default:
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusCreated)
			json.NewEncoder(w).Encode(newAnswer(name, lease, in.Owner, token, in.TTL))
		}
	})
	router.Delete("/locks/*", func(w http.ResponseWriter, r *http.Request) {
		done, err := l.give(context.WithoutCancel(r.Context()), chi.URLParam(r, "*"), r.Header.Get("Lease-Id"))
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		case !done:
			http.Error(w, "lost", http.StatusPreconditionFailed)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	})
}

// bare answers without any lock: what net/http, chi and JSON alone cost.
func bare(router chi.Router) {
	router.Post("/locks/*", func(w http.ResponseWriter, r *http.Request) {
		var in order
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		name := chi.URLParam(r, "*")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		json.NewEncoder(w).Encode(newAnswer(name, newLease(), in.Owner, time.Now().UnixMicro(), in.TTL))
	})
	router.Delete("/locks/*", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) })
}

// poolSize is a connection a client: nothing waits for the pool.
const poolSize = 256

// naive does the same work as the gateway, as one would write it first: the
// standard JSON, one FCALL a request.
func naive(router chi.Router, store fencing.Store) {
	router.Post("/locks/*", func(w http.ResponseWriter, r *http.Request) {
		var in order
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		request := newRequest(fencing.Name(chi.URLParam(r, "*")))
		request.Owner, request.TTL = in.Owner, time.Duration(in.TTL)*time.Millisecond
		out, err := store.Do(r.Context(), request)
		if err != nil {
			http.Error(w, err.Error(), http.StatusLocked)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		json.NewEncoder(w).Encode(newAnswer(string(request.Name), request.Lease.Reveal(), in.Owner, int64(out.Holder.Token), in.TTL))
	})
	router.Delete("/locks/*", func(w http.ResponseWriter, r *http.Request) {
		lease, err := fencing.ParseLeaseID(r.Header.Get("Lease-Id"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_, err = store.Do(r.Context(), fencing.ReleaseRequest{Name: fencing.Name(chi.URLParam(r, "*")), Lease: lease})
		if err != nil {
			http.Error(w, err.Error(), http.StatusPreconditionFailed)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
}

// The minimal gateway: the two scripts everybody writes, one EVALSHA a request.
// It has no retry, no tombstones, no list, no guard, and loses its counters.
var (
	minimalAcquire = goredis.NewScript(`
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return redis.call('INCR', KEYS[2])
end
return 0`)
	minimalRelease = goredis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0`)
)

func minimal(client *goredis.Client) locks {
	return locks{
		take: func(ctx context.Context, name, lease string, in order) (int64, bool, error) {
			token, err := minimalAcquire.Run(ctx, client, []string{"lock:" + name, "token:" + name}, lease, in.TTL).Int64()
			return token, token > 0, err
		},
		give: func(ctx context.Context, name, lease string) (bool, error) {
			done, err := minimalRelease.Run(ctx, client, []string{"lock:" + name}, lease).Int64()
			return done > 0, err
		},
	}
}

// pollInterval is how often the polling gateway asks Redis for a waiting client.
const pollInterval = 50 * time.Millisecond

// polling is the minimal gateway with the waiting that most libraries have: it
// asks again and again.
func polling(client *goredis.Client) locks {
	l := minimal(client)
	once := l.take
	l.take = func(ctx context.Context, name, lease string, in order) (int64, bool, error) {
		for {
			token, taken, err := once(ctx, name, lease, in)
			if taken || err != nil {
				return token, taken, err
			}
			select {
			case <-time.After(pollInterval):
			case <-ctx.Done():
				return 0, false, ctx.Err()
			}
		}
	}
	return l
}

// parking reads a request and keeps it until its client leaves: what a waiting
// connection costs at least. It also says how many wait.
func parking(router chi.Router) {
	var waiting atomic.Int64
	router.Get("/locks/*", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"waiting":%d}`, waiting.Load())
	})
	router.Post("/locks/*", func(w http.ResponseWriter, r *http.Request) {
		var in order
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		waiting.Add(1)
		<-r.Context().Done()
		waiting.Add(-1)
	})
}
