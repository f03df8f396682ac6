package fence

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"strconv"
	"strings"
)

// Header is the header that carries the fencing token of a request: the token, and for a
// permit its slot as a parameter, as in
//
//	Fencing-Token: 1795184727477314
//	Fencing-Token: 1795184727477314;slot=3
const Header = "Fencing-Token"

// Handler admits the token of every request that may write (any but GET, HEAD, OPTIONS
// and TRACE) before next serves it, and nothing else for the same resource until next
// has returned, in which time next must have written. resource names what a request writes;
// nil is the path of its URL without the slash before it, as [Dir] has it. A path that is not
// clean (a part that is empty, . or .., a slash at the end) is refused then: what next
// takes for the same thing would have a mark of its own.
//
// It answers, with a problem in JSON (RFC 9457) that has a code,
//
//	400 invalid_request         the header or the resource is none
//	412 stale_token             the token is stale; fencing_token and highest_admitted say how far
//	428 fencing_token_required  there is no header
//	503 unavailable             the guard could not keep the token, or the client has left while it waited
//
// The guard bounds what is guarded: with a [Memory] this process, with a [Dir] this
// machine. For data in a database a handler calls [SQL.Admit] in its own transaction.
//
// While next serves a request other requests for its resource wait, for its body too:
// bound the time by http.Server.ReadTimeout, or let next read the body first and call
// [Guard] itself, with [ParseHeader].
func Handler(guard Guard, resource func(*http.Request) string, next http.Handler) http.Handler {
	if resource == nil {
		resource = cleanPath
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
			next.ServeHTTP(w, r)
			return
		}
		values := r.Header.Values(Header)
		switch {
		case len(values) == 0:
			refuse(w, problem{Status: http.StatusPreconditionRequired, Code: "fencing_token_required",
				Detail: "A write needs the header " + Header + " with the fencing token of the lock that protects it."})
			return
		case len(values) > 1:
			refuse(w, problem{Status: http.StatusBadRequest, Code: "invalid_request", Detail: "There is more than one header " + Header + "."})
			return
		}
		token, slot, err := ParseHeader(values[0])
		if err == nil {
			err = guard.Do(r.Context(), resource(r), token, slot, func() error {
				next.ServeHTTP(w, r)
				return nil
			})
		}
		if err != nil {
			refuse(w, problemOf(err))
		}
	})
}

// cleanPath returns the path of the request's URL without the slash before it; "", which is no
// resource, where it is not clean.
func cleanPath(r *http.Request) string {
	name, rooted := strings.CutPrefix(r.URL.Path, "/")
	if !rooted || name == "." || !fs.ValidPath(name) {
		return ""
	}
	return name
}

// ParseHeader reads the value of a Fencing-Token header; without a slot it is NoSlot. The
// error wraps ErrInvalid.
func ParseHeader(value string) (token int64, slot int, err error) {
	digits, parameter, permit := strings.Cut(value, ";")
	if token, err = ParseToken(digits); err != nil || !permit {
		return token, NoSlot, err
	}
	digits, ok := strings.CutPrefix(strings.TrimLeft(parameter, " "), "slot=")
	slot, err = strconv.Atoi(digits)
	if !ok || err != nil || slot < 0 || slot > MaxSlot || strconv.Itoa(slot) != digits {
		return 0, 0, errParameter
	}
	return token, slot, nil
}

var errParameter = &invalidError{"the only parameter of " + Header + " is slot, from 0 to " + strconv.Itoa(MaxSlot)}

// invalidError is an ErrInvalid with a text of its own.
type invalidError struct{ text string }

func (e *invalidError) Error() string { return e.text }
func (e *invalidError) Unwrap() error { return ErrInvalid }

// problem is an answer that refuses.
type problem struct {
	Type    string `json:"type"`
	Title   string `json:"title"`
	Status  int    `json:"status"`
	Code    string `json:"code"`
	Detail  string `json:"detail"`
	Token   int64  `json:"fencing_token,omitempty"`
	Highest int64  `json:"highest_admitted,omitempty"`
}

func problemOf(err error) problem {
	if stale, ok := errors.AsType[*StaleError](err); ok {
		return problem{Status: http.StatusPreconditionFailed, Code: "stale_token", Detail: stale.Error(), Token: stale.Token, Highest: stale.Highest}
	}
	if errors.Is(err, ErrInvalid) {
		return problem{Status: http.StatusBadRequest, Code: "invalid_request", Detail: err.Error()}
	}
	return problem{Status: http.StatusServiceUnavailable, Code: "unavailable", Detail: "The fencing token could not be admitted; nothing was written."}
}

func refuse(w http.ResponseWriter, p problem) {
	p.Type, p.Title = "urn:fencepost:problem:"+p.Code, http.StatusText(p.Status)
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}
