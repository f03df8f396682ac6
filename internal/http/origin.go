package http

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"fencepost/internal/fencing"
)

// anyHost in a list of hosts lets every request through.
const anyHost = "*"

// CheckHost says what is wrong with an entry of Options.AllowedHosts; nil if
// nothing is.
func CheckHost(entry string) error {
	_, err := parseHost(entry)
	return err
}

// DefaultHosts are the Hosts to answer to where nobody has said which: the loopback names and,
// if the address that is listened on is an IP address, that one, with any port.
//
// That opens nothing to DNS rebinding. There a page of evil.example has its own name point at the
// gateway, and asks by that name: its Host is evil.example. A browser that sends an IP address as Host
// was given that address in the URL, which no name can be pointed at; a page that it came from is
// another origin, and can't read the answer, nor change anything (http.CrossOriginProtection).
// An address that stands for all of the machine's (0.0.0.0, [::], none) adds nothing: nobody has
// said there by which ones clients may ask.
func DefaultHosts(listen string) []string {
	hosts := []string{"localhost", "127.0.0.1", "[::1]"}
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return hosts
	}
	ip, err := netip.ParseAddr(host)
	if err != nil || ip.Unmap().IsUnspecified() {
		return hosts
	}
	return append(hosts, ip.WithZone("").Unmap().String()) // no client sends a zone as Host (RFC 6874, 3)
}

// parseHost returns an entry of a list of hosts as a Host header has it, in
// lower case, and an IPv6 address as canonical has it.
func parseHost(entry string) (string, error) {
	host := strings.ToLower(strings.TrimSpace(entry))
	if host == anyHost {
		return host, nil
	}
	if host == "" {
		return "", fmt.Errorf("%q is empty; an entry is a host like locks.example, or host:port, or %s", entry, anyHost)
	}
	if strings.Contains(host, "/") {
		return "", fmt.Errorf("%q is a URL or a path; leave only its host or host:port", entry)
	}
	if isIPv6(host) {
		return canonical("[" + host + "]"), nil
	}
	name, port := host, ""
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		name, port = host[:i], host[i:]
		if n, err := strconv.ParseUint(port[1:], 10, 16); err != nil || n == 0 {
			return "", fmt.Errorf("%q has a port that is not a number from 1 to 65535", entry)
		}
	}
	if inner, ok := strings.CutPrefix(name, "["); ok {
		if inner, ok = strings.CutSuffix(inner, "]"); !ok || !isIPv6(inner) {
			return "", fmt.Errorf("%q has brackets around what is no IPv6 address", entry)
		}
		return canonical(name) + port, nil
	}
	if name == "" || strings.Trim(name, hostBytes) != "" {
		return "", fmt.Errorf("%q is not a host: it may have letters of ASCII, digits, dots and dashes, or be an IP address", entry)
	}
	return host, nil
}

// hostBytes may be in a host's name. The underscore is no letter of DNS, but
// container networks have names with it.
const hostBytes = "abcdefghijklmnopqrstuvwxyz0123456789.-_"

func isIPv6(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Is6() && ip.Zone() == ""
}

// canonical returns a host, of which an IPv6 address in brackets as it is written in one way only (RFC 5952), or as
// the IPv4 address that it stands for.
func canonical(host string) string {
	inner, open := strings.CutPrefix(host, "[")
	inner, closed := strings.CutSuffix(inner, "]")
	if !open || !closed || !isIPv6(inner) {
		return host
	}
	ip := netip.MustParseAddr(inner).Unmap()
	if ip.Is4() {
		return ip.String()
	}
	return "[" + ip.String() + "]"
}

// hostList is the set of Hosts served, in lower case: "name" for any port, or
// "name:port", or anyHost. It is what stands between a loopback server and a web
// page whose name has been rebound to 127.0.0.1.
type hostList map[string]bool

// newHostList leaves out entries that CheckHost refuses.
func newHostList(allowed []string) hostList {
	if len(allowed) == 0 {
		allowed = DefaultHosts("")
	}
	list := make(hostList, len(allowed))
	for _, entry := range allowed {
		if host, err := parseHost(entry); err == nil {
			list[host] = true
		}
	}
	return list
}

func (l hostList) allows(host string) bool {
	if l[anyHost] {
		return true
	}
	host = strings.ToLower(host)
	if l[host] {
		return true
	}
	name, port := host, ""
	if i := strings.LastIndexByte(host, ':'); i > 0 && i < len(host)-1 && strings.Trim(host[i+1:], "0123456789") == "" {
		name, port = host[:i], host[i:]
	}
	name = canonical(name)
	return l[name] || l[name+port]
}

// Values of headers that every answer shares. net/http only reads them.
var (
	noStore    = []string{"no-store"}
	noSniff    = []string{"nosniff"}
	noReferrer = []string{"no-referrer"}
	closes     = []string{"close"}

	// onlyTLS has browsers come to this name over TLS only, for 30 days (RFC 6797): also to
	// other ports of it, so that a longer time would be hard to take back.
	onlyTLS = []string{"max-age=2592000"}
)

func setSecurityHeaders(h http.Header, r *http.Request) {
	if r.TLS != nil {
		h["Strict-Transport-Security"] = onlyTLS
	}
	// A request with Content-Length as well has to end its connection (RFC 9112, 6.1), for somebody between may
	// have gone by that. net/http does not tell which one has it, and of HTTP/1.0 not that it was chunked, so all
	// that may be do; few are.
	if len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1) {
		h["Connection"] = closes
	}
	h["Cache-Control"] = noStore
	h["X-Content-Type-Options"] = noSniff
	h["Referrer-Policy"] = noReferrer
}

// origins are the rules about where requests may come from.
type origins struct {
	hosts       hostList
	crossOrigin *http.CrossOriginProtection
	log         *slog.Logger
	logged      rates // refusals of Hosts that the log has
}

func newOrigins(allowed []string, log *slog.Logger) *origins {
	return &origins{newHostList(allowed), http.NewCrossOriginProtection(), log, newRates(hostRefusalLogged, 1)}
}

const (
	// hostRefusalLogged is how often the log has a Host that was refused to one client at most.
	hostRefusalLogged = time.Minute

	// maxHostLogged is how much of it: the longest name (RFC 1035, 2.3.4) and a port.
	maxHostLogged = 260
)

// check refuses what must not even be routed: a Host that is not served here, unless the path is a probe's,
// and a browser's request on behalf of another site.
func (o *origins) check(r *http.Request, now time.Time, probe bool) error {
	if !probe && !o.hosts.allows(r.Host) {
		if client := clientOf(r.RemoteAddr); o.logs(client, now) {
			o.log.LogAttrs(r.Context(), slog.LevelWarn, "a request is refused: its Host is not served here",
				slog.String("host", r.Host[:min(len(r.Host), maxHostLogged)]), slog.String("client", client), slog.String("setting", "FENCEPOST_ALLOWED_HOSTS"))
		}
		return &fencing.Error{Code: fencing.CodeMisdirected,
			Detail: "this gateway does not serve this Host; add it to FENCEPOST_ALLOWED_HOSTS of the gateway"}
	}
	if err := o.crossOrigin.Check(r); err != nil {
		return &fencing.Error{Code: fencing.CodeForbidden, Detail: "a web page of another origin may not change locks"}
	}
	return nil
}

// logs reports whether the log has this refusal to a client.
func (o *origins) logs(client string, now time.Time) bool {
	wait, _ := o.logged.note(client, now)
	return wait == 0
}

// OnlyHosts puts the rules of Server before another handler: the Hosts it
// answers to (allowed is as Options.AllowedHosts), no requests by pages of other
// origins that could change something, and the headers of every answer. A
// refusal is 421 or 403, in plain text; the log has the Host of a 421.
func OnlyHosts(allowed []string, log *slog.Logger, next http.Handler) http.Handler {
	origins := newOrigins(allowed, log)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setSecurityHeaders(w.Header(), r)
		var refused *fencing.Error
		if errors.As(origins.check(r, time.Now(), false), &refused) {
			http.Error(w, refused.Detail, problems[refused.Code].status)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isProbe reports whether a request is a probe: an orchestrator asks by the
// address of the container, which no list knows, and there is nothing to protect.
// What ?verbose tells of the store is to be protected.
func isProbe(r *http.Request) bool {
	return r.URL.Path == "/livez" || r.URL.Path == "/readyz" && !r.URL.Query().Has("verbose")
}
