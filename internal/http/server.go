package http

import (
	"cmp"
	"context"
	"io/fs"
	stdlog "log"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"fencepost/internal/auth"
	"fencepost/internal/fencing"
	"fencepost/internal/session"
	"fencepost/internal/watchdog"
)

const (
	// maxBodyBytes is the largest request body.
	maxBodyBytes = 16 << 10

	// writeTimeout bounds the writing of one answer, counted from its first byte.
	// http.Server.WriteTimeout would count the waiting too, and kill grants.
	writeTimeout = 10 * time.Second

	// maxStreamsPerConnection bounds the requests under way on one connection of HTTP/2.
	maxStreamsPerConnection = 250

	// checkTimeout bounds the store round trip of /readyz, so that a probe gets
	// an answer before it gives up.
	checkTimeout = 2 * time.Second

	// probeInterval is for how long the answer to a probe does for others.
	probeInterval = 250 * time.Millisecond

	// heartbeat is how often a stream has something to say at least.
	heartbeat = 15 * time.Second
)

// Options is what a Server needs. Watchdog and Bounds are required.
type Options struct {
	Watchdog *watchdog.Watchdog
	Bounds   fencing.Bounds

	// How many requests of one client (an address without its port) may wait at a
	// time, and how many streams it may have open; 0 is any number.
	MaxWaitersPerClient int
	MaxStreamsPerClient int

	// How many requests a second one principal may make, and as many at once, and how many
	// of its requests may be under way, without those that wait and streams. A principal is
	// a name of Keys; without keys, or where none is needed, an address. 0 is any number.
	// Renewals and releases use up the same rate, and are refused at four times either bound.
	MaxRequestRatePerPrincipal int
	MaxRequestsPerPrincipal    int

	// AllowedHosts are the names a Host header may have: "name" with any port,
	// or "name:port", or "*" for any. Empty: localhost, 127.0.0.1 and [::1]; see DefaultHosts.
	// CheckHost says whether an entry is one; any other is left out.
	AllowedHosts []string

	// Keys says who may do what; nil lets everybody do everything.
	Keys *auth.Keys

	Alive func() error // why the process is to be started again, nil if it need not: it must not wait; nil: it never need

	Page      fs.FS  // index.html and what lies beside it; nil serves no page
	StoreKind string // for /readyz?verbose
	Version   string // for /readyz?verbose

	Gatherer   prometheus.Gatherer   // what /metrics shows; nil makes it 404
	Registerer prometheus.Registerer // takes this package's metrics; nil keeps them to itself
	Logger     *slog.Logger          // nil discards
	Audit      *slog.Logger          // takes the lines of the audit; nil is Logger

	LogFinding func() fencing.Finding // how the log is, for /readyz?verbose; nil says nothing of it

	// ReserveAudit sets room aside for a line of the audit (MostAuditBytes), and returns where it goes and what gives the room back. Its
	// error refuses the break or eviction that the line is about. Nil: the line goes to Audit.
	ReserveAudit func() (to *slog.Logger, done func(), err error)

	TracerProvider trace.TracerProvider // takes the spans of requests; nil makes none

	now       func() time.Time              // for tests; nil is time.Now
	takeBack  func(fencing.TakeBackRequest) // for tests; nil is the watchdog's TakeBackLater
	heartbeat time.Duration                 // for tests; 0 is heartbeat

	writeTimeout time.Duration // for tests; 0 is writeTimeout
}

// Server answers HTTP requests. Make one with New.
type Server struct {
	dog       *watchdog.Watchdog
	sessions  *session.Sessions
	bounds    fencing.Bounds
	origins   *origins
	page      fs.FS
	small     map[string][]byte // of the page, in gzip
	storeKind string
	version   string
	gatherer  prometheus.Gatherer
	log       *slog.Logger
	audit     *slog.Logger
	logFound  func() fencing.Finding

	reserveAudit func() (*slog.Logger, func(), error)

	now       func() time.Time
	wall      wallClock
	alive     func() error
	heartbeat time.Duration

	writeTimeout time.Duration

	metrics    *metrics
	tracer     trace.Tracer // nil without Options.TracerProvider
	mux        *chi.Mux
	operations map[operationKey]*operation
	unrouted   map[string]*endpoint // by method label
	calls      sync.Pool            // of *call
	routings   sync.Pool            // of *chi.Context
	clients    clients
	requests   requests
	gate       gate
	leavers    leavers
	places     places
	paces      paces
	probed     probed
	watching   atomic.Int32 // streams of events
	draining   atomic.Bool
}

// New returns a Server. It registers its metrics, and panics if that was done
// before with the same registerer.
func New(o Options) *Server {
	s := &Server{
		dog: o.Watchdog, bounds: o.Bounds,
		page: o.Page, small: compress(o.Page), storeKind: o.StoreKind, version: o.Version, gatherer: o.Gatherer,
		log: o.Logger, now: o.now, heartbeat: cmp.Or(o.heartbeat, heartbeat), writeTimeout: cmp.Or(o.writeTimeout, writeTimeout),
		clients:    clients{most: [allowances]int{o.MaxWaitersPerClient, o.MaxStreamsPerClient}, has: map[string][allowances]int{}},
		requests:   requests{rate: o.MaxRequestRatePerPrincipal, most: o.MaxRequestsPerPrincipal, by: map[requester]*usage{}},
		gate:       gate{keys: o.Keys, failures: newFailures(), refusals: newFailures()},
		metrics:    newMetrics(o.Registerer),
		mux:        chi.NewRouter(),
		operations: map[operationKey]*operation{},
		unrouted:   map[string]*endpoint{},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.audit, s.reserveAudit, s.logFound = cmp.Or(o.Audit, s.log), o.ReserveAudit, o.LogFinding
	if s.alive = o.Alive; s.alive == nil {
		s.alive = always
	}
	s.origins = newOrigins(o.AllowedHosts, s.log)
	if o.TracerProvider != nil {
		s.tracer = o.TracerProvider.Tracer(tracerScope)
	}
	if s.now == nil {
		s.now = time.Now
	}
	s.gate.now = s.now
	if s.wall = s.dog.Capabilities().WallTime; s.wall == nil {
		s.wall = fencing.Instant.Time
	}
	s.sessions = session.New(s.dog, session.Options{Logger: s.log, TakeBack: o.takeBack})
	s.places = places{dog: s.dog, now: s.now, fresh: s.heartbeat, names: map[fencing.Name]*queue{}}
	s.paces = paces{dog: s.dog, now: s.now, names: map[fencing.Name]*reading{}}
	s.calls.New = func() any { return new(call) }
	s.routings.New = func() any { return chi.NewRouteContext() }
	s.addRoutes()
	return s
}

// always is an Options.Alive.
func always() error { return nil }

// Handler returns the handler that serves everything.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serve) }

// Drain makes /readyz answer 503 and refuses new leases from now on; renewals
// and releases are still served. Requests that wait are answered, streams end.
// It may be called more than once.
func (s *Server) Drain() {
	s.draining.Store(true)
	s.dog.Drain()
}

// NewHTTPServer returns an http.Server with the limits this package counts on:
// 10 s for the whole request, 2 min idle, 16 KiB of headers. (A limit of its own
// for the headers would cost another deadline a request.) It has no WriteTimeout:
// each answer sets its own deadline. A request whose body has been read may take
// as long as it likes: net/http takes the read deadline off then.
func NewHTTPServer(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:        handler,
		ReadTimeout:    10 * time.Second,
		IdleTimeout:    2 * time.Minute,
		MaxHeaderBytes: 16 << 10,
		ConnContext:    withConnection,
		ErrorLog:       stdlog.New(&errorLog{log: log}, "", 0),

		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxStreamsPerConnection,
			MaxReceiveBufferPerConnection: 1 << 20,
			MaxReceiveBufferPerStream:     4 * maxBodyBytes,
			WriteByteTimeout:              writeTimeout, // who reads nothing at all is let go

			// A peer that is gone without a word is noticed, though nothing is to be written.
			SendPingTimeout: heartbeat,
			PingTimeout:     heartbeat,
		},

		// net/http would answer "OPTIONS *" by itself, past the Host allow-list.
		DisableGeneralOptionsHandler: true,
	}
}

const (
	// noticedBurst is how many lines of net/http are logged at once, and noticedInterval
	// how long it takes until there may be one more.
	noticedBurst    = 10
	noticedInterval = 10 * time.Second
)

// errorLog takes what net/http says of its connections, which is the doing of clients:
// they may have it say any number of lines, before they have shown a key. Handshakes that
// fail, and what is too much, are debug.
type errorLog struct {
	log *slog.Logger

	mu      sync.Mutex
	noticed bucket
}

func (l *errorLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	level := slog.LevelWarn
	if strings.HasPrefix(text, "http: TLS handshake error") || !l.mayNotice(time.Now()) {
		level = slog.LevelDebug
	}
	l.log.Log(context.Background(), level, text)
	return len(line), nil
}

func (l *errorLog) mayNotice(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.noticed.take(now, noticedInterval, noticedBurst) == 0
}
