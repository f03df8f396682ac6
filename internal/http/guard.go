package http

import (
	"net/http"
	"strings"

	"fencepost/internal/fencing"
)

// hostList is the set of Hosts served, in lower case: "name" for any port, or
// "name:port". It is what stands between a loopback server and a web page whose
// name has been rebound to 127.0.0.1.
type hostList map[string]bool

func newHostList(allowed []string) hostList {
	if len(allowed) == 0 {
		allowed = []string{"localhost", "127.0.0.1", "[::1]"}
	}
	list := make(hostList, len(allowed))
	for _, host := range allowed {
		host = strings.ToLower(strings.TrimSpace(host))
		if strings.Count(host, ":") > 1 && !strings.HasPrefix(host, "[") {
			host = "[" + host + "]" // a bare IPv6 address
		}
		list[host] = true
	}
	return list
}

func (l hostList) allows(host string) bool {
	host = strings.ToLower(host)
	if l[host] {
		return host != ""
	}
	i := strings.LastIndexByte(host, ':')
	if i <= 0 || i == len(host)-1 || strings.Trim(host[i+1:], "0123456789") != "" {
		return false
	}
	return l[host[:i]]
}

// Values of headers that every answer shares. net/http only reads them.
var (
	noStore    = []string{"no-store"}
	noSniff    = []string{"nosniff"}
	noReferrer = []string{"no-referrer"}
)

func setSecurityHeaders(h http.Header) {
	h["Cache-Control"] = noStore
	h["X-Content-Type-Options"] = noSniff
	h["Referrer-Policy"] = noReferrer
}

// guard refuses what must not even be routed: a Host that is not served here,
// and a browser's request on behalf of another site.
func (c *call) guard() error {
	if !c.s.hosts.allows(c.r.Host) && !isProbe(c.r.URL.Path) {
		return &fencing.Error{Code: fencing.CodeMisdirected,
			Detail: "this Host is not served here; FENCEPOST_ALLOWED_HOSTS lists those that are"}
	}
	if err := c.s.crossOrigin.Check(c.r); err != nil {
		return &fencing.Error{Code: fencing.CodeForbidden, Detail: "a page of another origin may not change locks"}
	}
	return nil
}

// isProbe reports whether a path is for probes: an orchestrator asks by the
// address of the container, which no list knows, and there is nothing to protect.
func isProbe(path string) bool { return path == "/livez" || path == "/readyz" }
