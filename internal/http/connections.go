package http

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fencepost/internal/fencing"
)

const (
	// MaxRefusals is how many connections beyond ConnectionOptions.Most are open at a
	// time at most, while they are told that there are too many.
	MaxRefusals = 32

	// refusalTime bounds a refusal: the request that comes before it, and its end.
	refusalTime = time.Second

	// refusalRate is how many connections a second beyond ConnectionOptions are answered,
	// and as many at once, and tlsRefusalRate how many handshakes are made for that; the
	// others are closed. A flood must not cost more than that.
	refusalRate    = 500
	tlsRefusalRate = 50

	// refusalLogged is how often refusals are logged at most.
	refusalLogged = time.Minute
)

// ConnectionOptions bounds the connections of a server.
type ConnectionOptions struct {
	Most          int // open at a time; at least 1
	MostPerClient int // from one address without its port; 0 is any number
	RatePerClient int // new ones a second from one address, and as many at once; 0 is any number

	// Keys says that the server has keys. Then those connections on which none was shown yet
	// are closed to make room: of one address there is a quarter of Most of them at most.
	Keys bool

	// TLS is that of the server, for refusals; nil if it has none.
	TLS *tls.Config

	Alive      func() error          // that of Options
	Registerer prometheus.Registerer // takes the metrics; nil keeps them to itself
	Logger     *slog.Logger          // required

	refusalTime time.Duration // in place of the usual one; for tests
}

// LimitConnections returns a listener for server that admits so many connections.
// One more is answered 503 with Retry-After and closed, as soon as its request has
// begun to arrive; GET /livez is answered all the same, since a full gateway may well be alive.
// Of a flood most are closed without an answer.
//
// What is open is not closed to make room: a connection on which nothing happens may be
// that of a holder who is about to renew. But with ConnectionOptions.Keys no holder has one
// on which no key was shown, so those are: first the oldest of a client that has as many as
// one may, then the oldest of all, and each that has been idle for seconds. So whoever has a
// key gets in. It takes the server's ConnState, and adds to its ConnContext.
func LimitConnections(server *http.Server, listener net.Listener, o ConnectionOptions) net.Listener {
	l := &limitedListener{
		Listener: listener, most: o.Most, mostPerClient: o.MostPerClient, log: o.Logger, answers: refusalRate, refusalTime: cmp.Or(o.refusalTime, refusalTime),
		clients: map[string]int{}, evicted: map[net.Conn]bool{}, now: time.Now, refusals: map[net.Conn]bool{}, refusing: make(chan struct{}, MaxRefusals), tls: withoutHTTP2(o.TLS),
		count: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fencepost_http_connections", Help: "Connections open now.",
		}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fencepost_http_connections_refused_total", Help: "Connections refused because a limit was reached: of all connections, of one client's, or of one client's rate.",
		}),
	}
	if o.TLS != nil {
		l.answers = tlsRefusalRate
	}
	if l.alive = o.Alive; l.alive == nil {
		l.alive = always
	}
	if o.RatePerClient > 0 {
		l.arrivals = newArrivals(o.RatePerClient)
	}
	if o.Keys {
		l.keyless = newKeyless(o.Most)
		server.ConnContext = l.withKeys(server.ConnContext)
	}
	limit := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "fencepost_http_connections_limit", Help: "Largest number of open connections: FENCEPOST_MAX_CONNECTIONS, or what the limit of open files allows.",
	})
	limit.Set(float64(o.Most))
	if o.Registerer != nil {
		o.Registerer.MustRegister(l.count, l.refused, limit)
	}
	server.ConnState = l.observe
	return l
}

// newArrivals allows each client so many connections a second, and as many at once. Those that
// come when there are as many networks as are told apart are bounded in number alone: by
// having addresses in many networks of its own, as in one /48 of IPv6, a client would
// otherwise use up what all others share.
func newArrivals(perSecond int) *rates {
	arrivals := newRates(time.Second/time.Duration(perSecond), perSecond)
	arrivals.spares = true
	return &arrivals
}

// limitedListener counts connections from Accept until net/http has closed them.
type limitedListener struct {
	net.Listener
	most, mostPerClient int
	log                 *slog.Logger
	refusing            chan struct{} // holds one for each refusal under way
	refusalTime         time.Duration
	tls                 *tls.Config  // of refusals; nil without TLS
	alive               func() error // Options.Alive
	count               prometheus.Gauge
	refused             prometheus.Counter
	arrivals            *rates           // nil without RatePerClient
	answers             int              // to refused connections, a second
	now                 func() time.Time // of what is idle; for tests

	work sync.WaitGroup // the refusals under way

	mu       sync.Mutex
	closed   bool
	refusals map[net.Conn]bool // that are under way
	open     int
	clients  map[string]int    // empty without mostPerClient
	keyless  *keyless          // nil without ConnectionOptions.Keys
	evicted  map[net.Conn]bool // closed to make room, and not counted any more
	sweeping bool              // a timer runs for those without a key that are idle
	logged   time.Time
	answered bucket
}

// Close stops accepting, breaks off the refusals under way, and waits for them.
func (l *limitedListener) Close() error {
	err := l.Listener.Close()
	l.mu.Lock()
	l.closed = true
	for conn := range l.refusals {
		conn.Close()
	}
	l.mu.Unlock()
	l.work.Wait()
	return err
}

// Accept returns the next connection that is admitted.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if setting, detail := l.admit(conn); setting != "" {
			l.refuse(conn, setting, detail)
			continue
		}
		return conn, nil
	}
}

// admit counts a connection, or returns which setting is against it, and what to say.
func (l *limitedListener) admit(conn net.Conn) (setting, detail string) {
	client := clientOf(conn.RemoteAddr().String())
	if l.arrivals != nil {
		if wait, _ := l.arrivals.note(client, time.Now()); wait > 0 {
			const setting = "FENCEPOST_MAX_CONNECTION_RATE_PER_CLIENT"
			return setting, "this address opens more than " + strconv.Itoa(l.arrivals.burst) + " connections a second, which is the limit (" + setting +
				"); a connection serves any number of requests"
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keyless != nil {
		l.makeRoom(client)
	}
	if l.open >= l.most {
		return tooMany("FENCEPOST_MAX_CONNECTIONS", l.most)
	}
	if l.mostPerClient > 0 {
		if l.clients[client] >= l.mostPerClient {
			return tooMany("FENCEPOST_MAX_CONNECTIONS_PER_CLIENT", l.mostPerClient)
		}
		l.clients[client]++
	}
	l.open++
	l.count.Set(float64(l.open))
	if l.keyless != nil {
		l.keyless.add(conn, networkOf(client))
	}
	return "", ""
}

// makeRoom closes a connection without a key where there is no place for one more of a client.
func (l *limitedListener) makeRoom(client string) {
	network := networkOf(client)
	oldest := l.keyless.oldestOf(network)
	if l.keyless.full(network) || l.mostPerClient > 0 && l.clients[client] >= l.mostPerClient && oldest != nil && clientOf(oldest.RemoteAddr().String()) == client {
		l.evict(oldest)
	}
	if l.open >= l.most {
		l.evict(l.keyless.oldest())
	}
}

// evict closes a connection without a key, and counts it no more; nil does nothing.
func (l *limitedListener) evict(conn net.Conn) {
	if conn == nil {
		return
	}
	l.forget(conn)
	l.evicted[conn] = true // net/http has yet to say that it is closed
	conn.Close()
}

// forget takes back what admit has counted.
func (l *limitedListener) forget(conn net.Conn) {
	l.open--
	l.count.Set(float64(l.open))
	if l.mostPerClient > 0 {
		client := clientOf(conn.RemoteAddr().String())
		if l.clients[client]--; l.clients[client] == 0 {
			delete(l.clients, client)
		}
	}
	if l.keyless != nil {
		l.keyless.remove(conn)
	}
}

// withKeys has the connection of each request tell when a key was shown on it.
func (l *limitedListener) withKeys(next func(context.Context, net.Conn) context.Context) func(context.Context, net.Conn) context.Context {
	return func(ctx context.Context, conn net.Conn) context.Context {
		ctx = next(ctx, conn)
		if c, ok := ctx.Value(connectionKey{}).(*connection); ok {
			c.showed = sync.OnceFunc(func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.keyless.remove(c.conn)
			})
		}
		return ctx
	}
}

// sweep closes those without a key that have been idle for too long, and comes back for the others.
func (l *limitedListener) sweep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	over, next := l.keyless.idlers(l.now())
	for _, conn := range over {
		l.evict(conn)
	}
	if l.sweeping = next > 0 && !l.closed; l.sweeping {
		time.AfterFunc(next, l.sweep)
	}
}

// rests notes what net/http says of a connection without a key.
func (l *limitedListener) rests(conn net.Conn, state http.ConnState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var since time.Time
	if state == http.StateIdle {
		since = l.now()
	}
	if l.keyless.rests(conn, since) && state == http.StateIdle && !l.sweeping {
		l.sweeping = true
		time.AfterFunc(idleWithoutKey, l.sweep)
	}
}

func tooMany(setting string, most int) (string, string) {
	return setting, strconv.Itoa(most) + " connections are open, which is the limit (" + setting + "); open connections stay open"
}

// observe is the server's ConnState.
func (l *limitedListener) observe(conn net.Conn, state http.ConnState) {
	conn = socketOf(conn)
	switch state {
	case http.StateClosed, http.StateHijacked:
	case http.StateIdle, http.StateActive:
		if l.keyless != nil {
			l.rests(conn, state)
		}
		return
	default:
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.evicted[conn] {
		delete(l.evicted, conn)
		return
	}
	l.forget(conn)
}

// refuse answers and closes a connection, aside. When that is done for too many
// already, it only closes it.
func (l *limitedListener) refuse(conn net.Conn, setting, detail string) {
	l.refused.Inc()
	log, answer := l.attention(time.Now())
	if log {
		l.log.Warn("connections are refused", slog.String("setting", setting), slog.String("client", clientOf(conn.RemoteAddr().String())), slog.String("detail", detail))
	}
	if !answer {
		conn.Close()
		return
	}
	select {
	case l.refusing <- struct{}{}:
	default:
		conn.Close()
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		conn.Close()
		return
	}
	l.refusals[conn] = true
	l.work.Go(func() {
		answered := conn
		if l.tls != nil {
			answered = tls.Server(conn, l.tls) // its handshake is part of the first read
		}
		answerRefused(answered, l.refusalTime, detail, l.alive)
		l.mu.Lock()
		delete(l.refusals, conn)
		l.mu.Unlock()
		conn.Close()
		<-l.refusing
	})
}

// withoutHTTP2 returns the settings for who speaks HTTP/1.1 only.
func withoutHTTP2(config *tls.Config) *tls.Config {
	if config == nil {
		return nil
	}
	only := config.Clone()
	only.NextProtos = []string{"http/1.1"}
	if current := config.GetConfigForClient; current != nil {
		only.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			c, err := current(hello)
			return withoutHTTP2(c), err
		}
	}
	return only
}

// attention says whether one more refusal is logged, and whether it is answered.
func (l *limitedListener) attention(now time.Time) (log, answer bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if log = now.Sub(l.logged) >= refusalLogged; log {
		l.logged = now
	}
	return log, l.answered.take(now, time.Second/time.Duration(l.answers), l.answers) == 0
}

// answerRefused waits for the begin of a request: a client that is answered before it
// has asked takes the answer for nonsense. Closing with bytes unread would reset the
// connection, and destroy the answer on its way, so the rest is read as well.
func answerRefused(conn net.Conn, within time.Duration, detail string, alive func() error) {
	conn.SetDeadline(time.Now().Add(within))
	request := make([]byte, 1<<10)
	n, err := conn.Read(request)
	if err != nil {
		return
	}
	if _, err := conn.Write(refusal(request[:n], detail, alive)); err != nil {
		return
	}
	if half, ok := conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		io.CopyN(io.Discard, conn, maxBodyBytes)
	}
}

// refusal is the answer to a request that begins so.
func refusal(request []byte, detail string, isAlive func() error) []byte {
	if bytes.HasPrefix(request, []byte("GET /livez ")) || bytes.HasPrefix(request, []byte("GET /livez?")) {
		err := isAlive()
		if err == nil {
			return rawAnswer("200 OK", jsonType[0], "", []byte(alive))
		}
		detail = err.Error()
	}
	c := call{}
	e := &fencing.Error{Code: fencing.CodeUnavailable, Detail: detail}
	body := append(c.appendProblem(nil, e), '}', '\n')
	return rawAnswer("503 Service Unavailable", problemType[0], "Retry-After: 1\r\n", body)
}

func rawAnswer(status, contentType, more string, body []byte) []byte {
	head := "HTTP/1.1 " + status + "\r\nCache-Control: no-store\r\nConnection: close\r\nContent-Length: " + strconv.Itoa(len(body)) +
		"\r\nContent-Type: " + contentType + "\r\n" + more + "\r\n"
	return append([]byte(head), body...)
}
