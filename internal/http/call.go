package http

import (
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"fencepost/internal/auth"
	"fencepost/internal/fencing"
	"fencepost/internal/session"
)

// call is one request under way, and the http.ResponseWriter of its answer.
type call struct {
	http.ResponseWriter
	s        *Server
	r        *http.Request
	endpoint *endpoint
	wildcard string // what stands for the * of the route's pattern
	quiet    bool
	id       fencing.Stamp // see requestID
	start    time.Time

	status int          // 0 until the header is written
	code   fencing.Code // of the answer, for log and metrics
	lease  fencing.LeasePublic
	cause  error // of a 5xx, for the log

	session *session.Session // of a POST for leases, from before the store is asked; else nil

	denied    bool            // by keys, which the audit tells of
	limited   bool            // refused for its principal asks for too much
	principal *auth.Principal // nil: everybody may do this
	scope     auth.Scope      // that it needs
	asked     []fencing.Name  // the names it needs
	inPath    [1]fencing.Name // room for them

	entered [allowances]bool // see enter
	usage   *usage           // that counts it; see throttle
	parked  bool             // it has waited in a queue
	waited  time.Duration    // from its start until the wait was over
	gone    bool             // the client has left before the answer

	openStream prometheus.Gauge // counts the stream that the answer is; nil if it is none

	span, waitSpan trace.Span // of the request, and of its time in a queue; nil where there is none

	in, out []byte // the request body, the answer
}

// maxKept bounds the buffers that an idle call keeps.
const maxKept = 64 << 10

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	c := s.begin(w, r)
	defer c.end()
	c.route()
}

func (s *Server) begin(w http.ResponseWriter, r *http.Request) *call {
	c := s.calls.Get().(*call)
	*c = call{
		ResponseWriter: w, s: s, r: r, endpoint: s.unrouted[methodLabel(r.Method)],
		start: s.now(), code: fencing.CodeOK, in: c.in[:0], out: c.out[:0],
	}
	return c
}

// route has the router serve the request, unless it must not even be routed.
func (c *call) route() {
	o, err := c.admit()
	switch {
	case err != nil:
		c.writeError(err)
	case o == nil:
		noRoute(c)
	default:
		c.startSpan()
		o.serve(c)
	}
}

// admit returns what a request asks for, nil if there is no such thing, or why it is refused.
// Who asks comes first, then whether that is too much: also of what is forbidden or not there.
func (c *call) admit() (*operation, error) {
	var access access
	err := c.s.origins.check(c.r, c.start, isProbe(c.r))
	var o *operation
	if err == nil {
		o = c.findOperation()
	}
	if o != nil {
		c.endpoint, c.quiet, access = o.endpoint, o.quiet, o.access
		if unknown := c.identify(access); unknown != nil {
			return nil, unknown
		}
	}
	if limited := c.throttle(access); limited != nil {
		return nil, limited
	}
	if o != nil && err == nil {
		err = c.authorize(access)
	}
	return o, err
}

// requestID names the request in the log and in problems, and is the stamp of its
// acquire. It is made when it is first asked for: most requests need none.
func (c *call) requestID() fencing.Stamp {
	if c.id == "" {
		c.id = fencing.NewStamp()
	}
	return c.id
}

// end takes back what was not delivered, answers a panic, counts and logs.
func (c *call) end() {
	s := c.s
	panicked := recover()
	c.endSession()
	c.leave(allowedWaiters)
	c.leave(allowedStreams)
	c.leaveRequest()
	if c.openStream != nil {
		c.openStream.Dec()
	}
	broken := false
	if panicked != nil && panicked != http.ErrAbortHandler {
		s.log.LogAttrs(c.r.Context(), slog.LevelError, "panic while serving a request",
			slog.String("request_id", string(c.requestID())), slog.Any("panic", panicked), slog.String("stack", string(debug.Stack())))
		broken = c.status != 0
		c.code = codeInternal
		if !broken {
			c.writeInternalError()
		}
	}
	elapsed := s.now().Sub(c.start)
	c.endpoint.count(c.code)
	if c.openStream == nil { // how long a stream takes is its client's choice
		c.endpoint.observe(elapsed - c.waited)
	}
	c.logLine(elapsed)
	c.endSpan()

	*c = call{in: kept(c.in), out: kept(c.out)}
	s.calls.Put(c)
	if broken || panicked == http.ErrAbortHandler {
		panic(http.ErrAbortHandler) // half an answer must not look like a whole one
	}
}

func kept(b []byte) []byte {
	if cap(b) > maxKept {
		return nil
	}
	return b[:0]
}

// endSession has what was not told be taken back, and what hangs on the request be released.
func (c *call) endSession() {
	if of := c.session; of != nil {
		c.session = nil
		if of.Close() {
			c.s.metrics.takenBack.Inc()
		}
	}
}

// elapsed returns the time since the request arrived.
func (c *call) elapsed() time.Duration { return c.s.now().Sub(c.start) }

// logLine writes the request's line. What happens all day long on a healthy
// gateway (success, a lock that is held, clients that leave, probes) is debug: a
// line costs about as much CPU as a fifth of a request. So is what a gateway says
// to all its waiters when it shuts down, and to all who ask while the store is in
// quarantine: the store logs when that begins and ends, and refusals are counted. Of a Host that
// is refused there is another line.
func (c *call) logLine(elapsed time.Duration) {
	level := slog.LevelInfo
	switch {
	case c.denied, c.limited, c.quiet, c.status < 300, c.gone,
		c.code == fencing.CodeLocked, c.code == fencing.CodeWaitTimeout, c.code == fencing.CodeDraining,
		c.code == fencing.CodeQuarantined, c.code == fencing.CodeMisdirected:
		level = slog.LevelDebug
	case c.status >= 500:
		level = slog.LevelWarn
	}
	ctx := c.r.Context()
	if !c.s.log.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 12)
	attrs = append(attrs,
		slog.String("request_id", string(c.requestID())), slog.String("method", c.endpoint.method),
		slog.String("route", c.endpoint.path), slog.Int("status", c.status), slog.String("code", string(c.code)),
		slog.Float64("duration_ms", float64(elapsed.Microseconds())/1000))
	attrs = append(attrs, principalAttrs(c.principal)...)
	if c.parked {
		attrs = append(attrs, slog.Int64("waited_ms", c.waited.Milliseconds()))
	}
	if c.lease != "" {
		attrs = append(attrs, slog.String("lease", string(c.lease)))
	}
	if id := c.traceID(); id != "" {
		attrs = append(attrs, slog.String("trace_id", id))
	}
	if c.cause != nil {
		attrs = append(attrs, slog.String("error", c.cause.Error()))
	}
	c.s.log.LogAttrs(ctx, level, "request", attrs...)
}

// WriteHeader notes the status and gives the answer its deadline.
func (c *call) WriteHeader(status int) {
	if c.status == 0 && status >= 200 {
		c.status = status
		setSecurityHeaders(c.Header(), c.r)
		c.setWriteDeadline()
	}
	c.ResponseWriter.WriteHeader(status)
}

// setWriteDeadline gives the answer its time. net/http forgets the deadline after
// every request, so it is set for each.
func (c *call) setWriteDeadline() {
	if w, ok := c.ResponseWriter.(interface{ SetWriteDeadline(time.Time) error }); ok {
		w.SetWriteDeadline(time.Now().Add(c.s.writeTimeout))
	}
}

// clearWriteDeadline takes it off again. Over HTTP/2 it would end a stream that has
// nothing to say, whatever became of what it has said.
func (c *call) clearWriteDeadline() {
	if w, ok := c.ResponseWriter.(interface{ SetWriteDeadline(time.Time) error }); ok {
		w.SetWriteDeadline(time.Time{})
	}
}

// Write writes a part of the body.
func (c *call) Write(b []byte) (int, error) {
	if c.status == 0 {
		c.WriteHeader(http.StatusOK)
	}
	return c.ResponseWriter.Write(b)
}

// Unwrap serves http.ResponseController.
func (c *call) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// send writes a whole answer. Its Content-Length is set so that a flush does not
// turn it into chunks.
func (c *call) send(status int, contentType []string, body []byte) error {
	if status == http.StatusNoContent {
		c.WriteHeader(status)
		return nil
	}
	h := c.Header()
	h["Content-Type"] = contentType
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	c.WriteHeader(status)
	if c.r.Method == http.MethodHead {
		return nil
	}
	_, err := c.Write(body)
	return err
}

// flush hands the answer to the network and says whether that went well.
func (c *call) flush() error {
	return http.NewResponseController(c.ResponseWriter).Flush()
}
