package http

import (
	"net/http"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"

	"fencepost/internal/auth"
	"fencepost/internal/fencing"
)

// route is a path of the interface.
type route struct {
	pattern string // chi's
	path    string // as api/openapi.yaml writes it: the label of metrics and logs
	quiet   bool   // machines ask for it all the time: logged at debug
	methods map[string]method
}

// method is what a method of a path needs and does.
type method struct {
	access
	serve func(*call)
}

func (s *Server) routeTable() []route {
	anyone, read, lock := needs(auth.Anyone), needs(auth.Read), needs(auth.Lock)
	nameRead, nameLock, nameFence := onName(auth.Read), onName(auth.Lock), onName(auth.Fence)
	authorize := method{nameFence, handle(decodeAuthorize, authorizeWrite)}
	return []route{
		{pattern: "/locks/*", path: "/locks/{name}", methods: map[string]method{
			"POST": {nameLock, serveAcquire}, "PUT": {ofHolder(nameLock), handle(decodeRenew, renewLock)},
			"DELETE": {toEnd, handle(decodeEnd, releaseLock)}, "GET": {nameRead, handle(decodeInspect, inspectLock)},
		}},
		{pattern: "/locks", path: "/locks", methods: map[string]method{
			"POST": {lock, serveAcquireSet}, "PUT": {ofHolder(lock), handle(decodeRenewSet, renewLocks)},
			"DELETE": {ofHolder(onNames(auth.Lock)), handle(decodeReleaseSet, releaseLocks)}, "GET": {read, handle(decodeList, listLocks)},
		}},
		{pattern: "/queues/*", path: "/queues/{name}", methods: map[string]method{"DELETE": {onName(auth.Admin), handle(decodeEvict, evictWaiter)}}},
		{pattern: "/fences/*", path: "/fences/{name}", methods: map[string]method{
			"GET": {nameFence, handle(decodeJudge, judgeToken)}, "POST": {nameFence, handle(decodeAdmit, admitToken)},
		}},
		{pattern: "/authorize/*", path: "/authorize/{name}", methods: map[string]method{
			"GET": authorize, "POST": authorize, "PUT": authorize, "PATCH": authorize, "DELETE": authorize, // proxies ask with that of the writer
		}},
		{pattern: "/history/*", path: "/history/{name}", methods: map[string]method{"GET": {nameRead, handle(decodeHistory, getHistory)}}},
		{pattern: "/events", path: "/events", methods: map[string]method{"GET": {read, watchEvents}}},
		{pattern: "/livez", path: "/livez", quiet: true, methods: map[string]method{"GET": {anyone, livez}}},
		{pattern: "/readyz", path: "/readyz", quiet: true, methods: map[string]method{"GET": {toProbe, readyz}}},
		{pattern: "/metrics", path: "/metrics", quiet: true, methods: map[string]method{"GET": {read, s.metricsPage()}}},
		{pattern: "/openapi.yaml", path: "/openapi.yaml", methods: map[string]method{"GET": {anyone, openapi}}},
		{pattern: "/", path: "/", methods: map[string]method{"GET": {anyone, page}}}, // it asks for a key by itself
		{pattern: "/assets/*", path: "/assets/{file}", methods: map[string]method{"GET": {anyone, asset}}},
	}
}

// unroutedPath is the label of requests that matched no route.
const unroutedPath = "none"

// operation is a method of a route.
type operation struct {
	endpoint *endpoint
	quiet    bool
	method
}

// operationKey names an operation.
type operationKey struct{ method, pattern string }

// addRoutes fills the router and the table of operations. HEAD goes wherever GET goes.
func (s *Server) addRoutes() {
	for _, rt := range s.routeTable() {
		if get, ok := rt.methods["GET"]; ok {
			rt.methods["HEAD"] = get
		}
		for name, method := range rt.methods {
			s.mux.Method(name, rt.pattern, routed)
			s.operations[operationKey{name, rt.pattern}] = &operation{s.metrics.endpoint(rt.path, name), rt.quiet, method}
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
	c.writeError(&fencing.Error{Code: fencing.CodeMethodNotAllowed, Detail: "this path supports only " + allow})
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
	return "see /openapi.yaml"
}
