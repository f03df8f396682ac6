package http

import (
	"net/http"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"

	"fencepost/internal/fencing"
)

// route is a path of the interface.
type route struct {
	pattern string // chi's
	path    string // as api/openapi.yaml writes it: the label of metrics and logs
	quiet   bool   // machines ask for it all the time: logged at debug
	methods map[string]func(*call)
}

func (s *Server) routeTable() []route {
	authorize := handle(decodeAuthorize, authorizeWrite)
	return []route{
		{pattern: "/locks/*", path: "/locks/{name}", methods: map[string]func(*call){
			"POST": serveAcquire, "PUT": handle(decodeRenew, renewLock),
			"DELETE": handle(decodeEnd, releaseLock), "GET": handle(decodeInspect, inspectLock),
		}},
		{pattern: "/locks", path: "/locks", methods: map[string]func(*call){
			"POST": handle(decodeAcquireSet, acquireLocks), "PUT": handle(decodeRenewSet, renewLocks),
			"DELETE": handle(decodeReleaseSet, releaseLocks), "GET": handle(decodeList, listLocks),
		}},
		{pattern: "/fences/*", path: "/fences/{name}", methods: map[string]func(*call){
			"GET": handle(decodeJudge, judgeToken), "POST": handle(decodeAdmit, admitToken),
		}},
		{pattern: "/authorize/*", path: "/authorize/{name}", methods: map[string]func(*call){
			"GET": authorize, "POST": authorize, "PUT": authorize, "PATCH": authorize, "DELETE": authorize, // proxies ask with that of the writer
		}},
		{pattern: "/history/*", path: "/history/{name}", methods: map[string]func(*call){"GET": handle(decodeHistory, getHistory)}},
		{pattern: "/events", path: "/events", methods: map[string]func(*call){"GET": watchEvents}},
		{pattern: "/livez", path: "/livez", quiet: true, methods: map[string]func(*call){"GET": livez}},
		{pattern: "/readyz", path: "/readyz", quiet: true, methods: map[string]func(*call){"GET": readyz}},
		{pattern: "/metrics", path: "/metrics", quiet: true, methods: map[string]func(*call){"GET": s.metricsPage()}},
		{pattern: "/openapi.yaml", path: "/openapi.yaml", methods: map[string]func(*call){"GET": openapi}},
		{pattern: "/", path: "/", methods: map[string]func(*call){"GET": page}},
		{pattern: "/assets/*", path: "/assets/{file}", methods: map[string]func(*call){"GET": asset}},
	}
}

// unroutedPath is the label of requests that matched no route.
const unroutedPath = "none"

// operation is a method of a route.
type operation struct {
	endpoint *endpoint
	quiet    bool
	serve    func(*call)
}

// operationKey names an operation.
type operationKey struct{ method, pattern string }

// addRoutes fills the router and the table of operations. HEAD goes wherever GET goes.
func (s *Server) addRoutes() {
	for _, rt := range s.routeTable() {
		if get, ok := rt.methods["GET"]; ok {
			rt.methods["HEAD"] = get
		}
		for method, serve := range rt.methods {
			s.mux.Method(method, rt.pattern, routed)
			s.operations[operationKey{method, rt.pattern}] = &operation{s.metrics.endpoint(rt.path, method), rt.quiet, serve}
		}
	}
	for _, method := range append(slices.Clone(knownMethods), otherMethod) {
		s.unrouted[method] = s.metrics.endpoint(unroutedPath, method)
	}
}

// routed is the handler of every route. It is never called: the router only finds the
// pattern of a path. To serve, it would copy each request for a context of its own.
var routed = http.NotFoundHandler()

// findOperation returns what a request asks for; nil if there is no such thing. The
// decoded path counts, so that a:b and a%3Ab, x/y and x%2Fy are one lock. Nothing is
// cleaned: what is left is for the grammar.
func (c *call) findOperation() *operation {
	routing := c.s.routings.Get().(*chi.Context)
	defer c.s.routings.Put(routing)
	routing.Reset()
	pattern := c.s.mux.Find(routing, c.r.Method, decodedPath(c.r))
	c.wildcard = routing.URLParam("*")
	return c.s.operations[operationKey{c.r.Method, pattern}]
}

// decodedPath is the path of a request; / where there is none ("OPTIONS *").
func decodedPath(r *http.Request) string {
	if r.URL.Path == "" {
		return "/"
	}
	return r.URL.Path
}

// knownMethods are the methods chi can route, and the labels a metric may have.
var knownMethods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"}

// otherMethod is the label of any other method.
const otherMethod = "other"

func methodLabel(method string) string {
	if slices.Contains(knownMethods, method) {
		return method
	}
	return otherMethod
}

// noRoute answers what matched no route: 404, or 405 with Allow where the path
// has other methods.
func noRoute(c *call) {
	path := decodedPath(c.r)
	var allowed []string
	for _, method := range knownMethods {
		if c.s.mux.Match(chi.NewRouteContext(), method, path) {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		c.writeError(&fencing.Error{Code: fencing.CodeNotFound, Detail: "there is nothing at this path; " + signpost(path)})
		return
	}
	allow := strings.Join(allowed, ", ")
	c.Header()["Allow"] = []string{allow}
	c.writeError(&fencing.Error{Code: fencing.CodeMethodNotAllowed, Detail: "this path has only " + allow})
}

// signpost says where to look instead of a path that is not there.
func signpost(path string) string {
	switch strings.Trim(path, "/") {
	case "health", "healthz", "healthcheck", "status", "ping", "alive", "live", "liveness", "ready", "readiness":
		return "/livez says whether the process answers, /readyz whether the gateway can serve"
	}
	if path == "/lock" || strings.HasPrefix(path, "/lock/") {
		return "a lock is at /locks/{name}"
	}
	return "/openapi.yaml says what there is"
}
