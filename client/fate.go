package client

import "errors"

// kind is what a request is, as far as it matters to what follows its answer.
type kind int

const (
	toAsk     kind = iota // whatever does not wait: an acquire, a look, a fence, a break
	toWait                // an acquire that waits for others, or a stream of events
	toRelease             // a release, or a renewal that the caller is told of
	toRenew               // a renewal of a Lease: it goes on until the lease is over
	kindsOfCalls
)

// outcome is what a request came to, as far as it matters to what follows.
type outcome int

const (
	noError      outcome = iota // or ErrExpired: it was granted
	lostLease                   // 412, for the token too
	wrongRequest                // 400, 409: it is at fault, or contradicts what the lease has
	heldLock                    // 423
	otherRefusal                // any other code of a gateway, about the request
	tooMany                     // 429 with a gateway's code; quarantined: nothing is granted now
	notAllowed                  // 401, 403, 421 with a gateway's code: this gateway does not know the key, or its own name
	redirected                  // 3xx
	proxyPage                   // 4xx without a code of ours: of what stands before a gateway
	noAnswer                    // nothing, 5xx, what no gateway says: what was done is unknown, or the gateway can't serve
	kindsOfOutcomes
)

// fate is what follows.
type fate int

const (
	final  fate = iota // the caller is told
	stay               // the same address is asked again
	later              // the next address is asked, as long as the caller waits
	next               // the next address is asked, as long as the patience lasts
	others             // so it is; but what all addresses have refused is told, unless the call was served before
)

// patient reports whether the patience bounds how long it goes on.
func (f fate) patient() bool { return f == next || f == others }

// fates is the table of docs/clients.md.
var fates = [kindsOfOutcomes][kindsOfCalls]fate{
	//            toAsk  toWait  toRelease toRenew
	noError:      {final, final, final, final},
	lostLease:    {final, final, final, final},
	wrongRequest: {final, final, final, stay},
	otherRefusal: {final, final, next, next},
	heldLock:     {final, stay, next, next},
	tooMany:      {others, later, next, next},
	notAllowed:   {others, others, next, next},
	redirected:   {others, others, next, next},
	proxyPage:    {others, next, next, next},
	noAnswer:     {next, next, next, next},
}

// fate says what follows an error of a call of this kind, or its success.
func (k kind) fate(err error) fate { return fates[outcomeOf(err)][k] }

// outcomeOf sorts what a request came to.
func outcomeOf(err error) outcome {
	if err == nil || errors.Is(err, ErrExpired) {
		return noError
	}
	e := refusal(err)
	if e == nil {
		return noAnswer
	}
	switch e.Code {
	case CodeLeaseLost, CodeStaleToken:
		return lostLease
	case CodeInvalidRequest, CodeUnsupportedByStore, CodeConflict, CodeReplaced:
		return wrongRequest
	case CodeLocked, CodeWaitTimeout:
		return heldLock
	case CodeNotFound, CodeMethodNotAllowed, CodeTooLarge, CodeLeaseIDRequired:
		return otherRefusal
	case CodeTooManyRequests, CodeQuarantined:
		return tooMany
	case CodeUnauthenticated, CodeForbidden, CodeMisdirected:
		return notAllowed
	case CodeUnavailable, CodeClockSkew, CodeNotReplicated, CodeDraining:
		return noAnswer
	}
	switch { // it has no code of ours
	case e.Status >= 500:
		return noAnswer
	case e.Status >= 400:
		return proxyPage
	}
	return redirected
}

// untold reports whether an error leaves open what a request has done.
func untold(err error) bool {
	switch outcomeOf(err) {
	case noAnswer, proxyPage:
		return true
	}
	return false
}

// worth ranks errors of several gateways: what a gateway refuses says more than its being unable to serve, that more than
// the page of a proxy, and that more than no answer.
func worth(err error) int {
	switch o, e := outcomeOf(err), refusal(err); {
	case o == tooMany || o == notAllowed:
		return 3
	case o == noAnswer && e != nil && e.Code != "":
		return 2
	case e != nil:
		return 1
	}
	return 0
}
