package http

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"fencepost/internal/auth"
	"fencepost/internal/fencing"
)

// access says what a request needs: a scope, and of what stands in its path that it is a
// name which the principal may use. Names that stand elsewhere are for permit.
type access struct {
	scope   func(*http.Request) auth.Scope
	named   bool
	listed  bool // names stand in its query
	holding bool // of a lease that is held, to renew or release it: see throttle
}

// needs is the access of what takes one scope.
func needs(scope auth.Scope) access {
	return access{scope: func(*http.Request) auth.Scope { return scope }}
}

// onName is needs, of the name in the path.
func onName(scope auth.Scope) access {
	a := needs(scope)
	a.named = true
	return a
}

// onNames is needs, of the names in the query.
func onNames(scope auth.Scope) access {
	a := needs(scope)
	a.listed = true
	return a
}

// ofHolder is the access of what holders ask.
func ofHolder(a access) access {
	a.holding = true
	return a
}

// toEnd is the access of DELETE /locks/{name}: If-Match breaks somebody else's lease.
var toEnd = access{named: true, holding: true, scope: func(r *http.Request) auth.Scope {
	if len(r.Header["If-Match"]) > 0 {
		return auth.Admin
	}
	return auth.Lock
}}

// toProbe is the access of /readyz. What ?verbose tells of the store is not for everybody.
var toProbe = access{scope: func(r *http.Request) auth.Scope {
	if isProbe(r) {
		return auth.Anyone
	}
	return auth.Read
}}

// identify says who a request is from, where that matters, or refuses who can't be told.
// Without keys everybody may do everything.
func (c *call) identify(a access) error {
	scope := a.scope(c.r)
	if c.s.gate.keys == nil || scope == auth.Anyone {
		return nil
	}
	principal, refusal, quiet := c.s.gate.admit(c.r)
	if refusal != nil {
		c.denied = true
		if !quiet {
			c.noteNames(a)
			c.auditRefusal(refusal, principal)
		}
		if refusal.Code == fencing.CodeTooManyRequests {
			c.holdBack()
		}
		return refusal
	}
	c.principal, c.scope = principal, scope
	connectionOf(c.r).showedKey()
	return nil
}

// authorize refuses a request that its principal may not make.
func (c *call) authorize(a access) error {
	if c.principal == nil {
		return nil
	}
	if refusal := withoutScope(c.principal, c.scope); refusal != nil {
		c.noteNames(a)
		return c.refuseAccess(refusal)
	}
	if a.named {
		c.noteNames(a)
		return c.permit(c.asked...)
	}
	return nil
}

// noteNames notes the names that stand in the URL. Those of a body are not read of who is refused before.
func (c *call) noteNames(a access) {
	switch {
	case a.named:
		c.inPath[0] = fencing.Name(c.wildcard)
		c.asked = c.inPath[:]
	case a.listed:
		for _, name := range c.r.URL.Query()["name"] {
			c.asked = append(c.asked, fencing.Name(name))
		}
	}
}

// permit refuses a request unless its principal may use all the names. It is for what
// the path does not tell, and stands before anything is done.
func (c *call) permit(names ...fencing.Name) error {
	c.asked = names
	return c.refuseAccess(c.checkNames())
}

// stillPermitted checks again, for a request that takes long: the key may have expired, or
// its line may have changed.
func (c *call) stillPermitted() error {
	if c.principal == nil {
		return nil
	}
	principal, err := c.s.gate.keys.Current(c.principal)
	if err == nil && certificateEnded(c.r, c.principal) {
		err = errCertificateExpired
	}
	if err != nil {
		return c.refuseAccess(unauthenticated(err))
	}
	c.principal = principal
	if refusal := withoutScope(principal, c.scope); refusal != nil {
		return c.refuseAccess(refusal)
	}
	return c.refuseAccess(c.checkNames())
}

func (c *call) checkNames() error {
	if c.principal == nil {
		return nil
	}
	for _, name := range c.asked {
		if !c.principal.Names().Cover(string(name)) {
			return &fencing.Error{Code: fencing.CodeForbidden, Detail: "the key of " + c.principal.Name + " may use only names of " +
				c.principal.Names().String() + ", and this name is not one of them"}
		}
	}
	return nil
}

// covers reports whether the principal of a request may hear of a name.
func (c *call) covers(name fencing.Name) bool {
	return c.principal == nil || c.principal.Names().Cover(string(name))
}

// refuseAccess notes a refusal in the audit, and returns it.
func (c *call) refuseAccess(err error) error {
	if err != nil {
		c.denied = true
		c.auditRefusal(err, c.principal)
	}
	return err
}

// mayWait returns what tells, at any time and from any goroutine, whether the principal of
// a request may still have what it waits for; nil if everybody may.
func (c *call) mayWait() func() bool {
	principal, scope, asked, keys := c.principal, c.scope, slices.Clone(c.asked), c.s.gate.keys
	if principal == nil {
		return nil
	}
	return func() bool {
		now, err := keys.Current(principal)
		return err == nil && now.Has(scope) && !slices.ContainsFunc(asked, func(name fencing.Name) bool { return !now.Names().Cover(string(name)) })
	}
}

// errWithdrawn ends a wait whose principal may not have the lock any more.
var errWithdrawn = &fencing.Error{Code: fencing.CodeUnauthenticated, Detail: "the key was removed or changed while the request waited"}

// gate lets requests in by their keys, and bounds those without.
type gate struct {
	keys     *auth.Keys // nil: everybody may do everything
	failures rates
	refusals rates // of who has a key that does not do: bounds what the audit says of them
	now      func() time.Time
}

// admit says who a request is from, or why it is refused; principal is nil then or, of a key
// that has expired, whose it is. A client that fails too often is told to slow down; quiet
// says that it was told before, which is not for the audit again.
func (g *gate) admit(r *http.Request) (principal *auth.Principal, refusal *fencing.Error, quiet bool) {
	principal, err := authenticate(r, g.keys)
	if err == nil {
		return principal, nil, false
	}
	if wait, first := g.failures.note(clientOf(r.RemoteAddr), g.now()); wait > 0 {
		return nil, &fencing.Error{Code: fencing.CodeTooManyRequests, RetryAfter: wait,
			Detail: "too many requests from this address had no valid key"}, !first
	}
	return principal, unauthenticated(err), false
}

func unauthenticated(err error) *fencing.Error {
	return &fencing.Error{Code: fencing.CodeUnauthenticated, Err: err, Detail: err.Error()}
}

// withoutScope returns the refusal of a principal that has not a scope; nil if it has.
func withoutScope(p *auth.Principal, scope auth.Scope) *fencing.Error {
	if p.Has(scope) {
		return nil
	}
	return &fencing.Error{Code: fencing.CodeForbidden, Detail: "the key of " + p.Name + " lacks the scope " + scope.String() + ", which this request needs"}
}

// OnlyKeys puts the keys of a gateway before other handlers: scope says which one a
// request needs. A refusal is 401, 403 or 429, in plain text, and in the audit; so is what
// the scope admin lets somebody do. Without keys it returns next.
func OnlyKeys(keys *auth.Keys, log *slog.Logger, scope func(*http.Request) auth.Scope, next *http.ServeMux) http.Handler {
	if keys == nil {
		return next
	}
	g := gate{keys: keys, now: time.Now, failures: newFailures()}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		needed, route := scope(r), unroutedPath
		if _, pattern := next.Handler(r); pattern != "" {
			_, route, _ = strings.Cut(pattern, " ")
		}
		principal, refusal, quiet := g.admit(r)
		if refusal == nil {
			refusal = withoutScope(principal, needed)
		}
		if refusal == nil {
			if needed == auth.Admin && route != unroutedPath {
				audit(log, slog.LevelInfo, append(auditAttrs(r, "profile", principal), slog.String("route", route)))
			}
			next.ServeHTTP(w, r)
			return
		}
		if !quiet {
			audit(log, slog.LevelWarn, append(auditAttrs(r, "refused", principal), slog.String("route", route),
				slog.String("code", string(refusal.Code)), slog.String("reason", refusal.Detail)))
		}
		status := problems[refusal.Code].status
		if refusal.Code == fencing.CodeUnauthenticated {
			w.Header()["Www-Authenticate"] = bearerChallenge
		}
		if after := retryAfter(refusal, status); after > 0 {
			w.Header().Set("Retry-After", strconv.FormatInt(ceilTo(after, time.Second), 10))
		}
		http.Error(w, refusal.Detail, status)
	})
}

var (
	errNoCredentials      = errors.New("this request needs a key: Authorization: Bearer fp_…")
	errNotBearer          = errors.New("the request must have exactly one Authorization header, with Bearer and a key")
	errCertificateUnknown = errors.New("the keys file has no line for the certificate's name")
	errCertificateUnnamed = errors.New("the certificate has no DNS name; a common name counts only if the certificate has no other names")
	errCertificateExpired = errors.New("the certificate has expired")
)

// authenticate returns who a request is from: whom its key lets in or, without one, the
// certificate of its connection. Of a key that has expired it returns whose it was.
func authenticate(r *http.Request, keys *auth.Keys) (*auth.Principal, error) {
	switch values := r.Header["Authorization"]; len(values) {
	case 0:
		return byCertificate(r, keys)
	case 1:
		scheme, key, found := strings.Cut(values[0], " ")
		if !found || !strings.EqualFold(scheme, "Bearer") {
			return nil, errNotBearer
		}
		return keys.Key(strings.TrimSpace(key))
	}
	return nil, errNotBearer
}

func byCertificate(r *http.Request, keys *auth.Keys) (*auth.Principal, error) {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return nil, errNoCredentials
	}
	name := certificateName(r.TLS.VerifiedChains[0][0])
	if name == "" {
		return nil, errCertificateUnnamed
	}
	principal, err := keys.Certificate(name)
	switch {
	case errors.Is(err, auth.ErrUnknown):
		return nil, errCertificateUnknown
	case err == nil && certificateEnded(r, principal):
		err = errCertificateExpired
	}
	return principal, err
}

// certificateName returns the name of a client's certificate: its first DNS name or, of one
// that says of no other kind of name whose it is, its common name (RFC 6125, 6.4.4: an
// authority may let people choose that freely). Empty: it has none.
func certificateName(leaf *x509.Certificate) string {
	switch {
	case len(leaf.DNSNames) > 0:
		return leaf.DNSNames[0]
	case slices.ContainsFunc(leaf.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(alternativeNames) }):
		return "" // of kinds that crypto/x509 does not read as well, as an otherName
	}
	return leaf.Subject.CommonName
}

// alternativeNames is the extension subjectAltName (RFC 5280, 4.2.1.6).
var alternativeNames = asn1.ObjectIdentifier{2, 5, 29, 17}

// certificateEnded reports whether the certificate that let a principal in has expired
// since its connection began.
func certificateEnded(r *http.Request, principal *auth.Principal) bool {
	return principal.ID == "" && time.Now().After(r.TLS.VerifiedChains[0][0].NotAfter)
}
