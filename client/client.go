package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// answerTimeout bounds how long an answer may take, beside the time that a request
	// asks to wait: a gateway that is stopped is noticed by nothing else.
	answerTimeout = 3 * time.Second

	defaultPatience = 15 * time.Second

	minBackoff = 50 * time.Millisecond
	maxBackoff = 2 * time.Second

	// closeTimeout bounds how long Close waits for what undoes acquires that it has ended.
	closeTimeout = time.Second

	// maxAnswer bounds what is read of an answer: a page of 1,000 locks with 10 holders
	// each and all the metadata they may have is below it.
	maxAnswer = 64 << 20
)

// Options are the settings of a Client.
type Options struct {
	// Addresses are URLs of gateways that share a store, like http://127.0.0.1:8080. The
	// one that answered last is asked first; the others are tried in turn.
	Addresses []string

	// Owner is a label for people: who is this? Default: host name and process id. At
	// most 256 bytes.
	Owner string

	// Patience is how long gateways may fail to serve a call before it gives up with ErrUnreachable, from when the
	// first request was sent that failed. After a share of it, 3 s at most, without an answer the next gateway is
	// asked; so it is after what another one may not answer, as the table in docs/clients.md says. Default: 15 s. A
	// call gives up at once where no gateway lets this client in: all refuse its key, or are no gateways, and none has
	// served the call before (a release goes on), or this client was never answered and can't trust the certificate of
	// any. Later it goes on, as a key or a certificate may be being replaced.
	Patience time.Duration

	// Key is sent to gateways that have keys. It goes to every one of the addresses, over
	// http in the clear.
	Key string

	// KeyFunc is asked for the key before each request, in place of Key, for keys that are replaced while the client
	// runs, and after a refusal, which counts for no other key than the one that was sent. An error is that of the
	// request, which is made again as after no answer. It must not block, and is called by many goroutines at a time.
	KeyFunc func() (string, error)

	// TLS is for gateways at https addresses. Default: the system's certificates. Its GetClientCertificate can show
	// a certificate that was replaced.
	TLS *tls.Config

	// TLSFunc is asked before each request, in place of TLS, for authorities that are replaced while the client runs:
	// once it returns another pointer than before, new connections are made with that. Otherwise it is as KeyFunc.
	TLSFunc func() (*tls.Config, error)

	// Transport sends the requests, for those who need a unix socket, a proxy or measurements of their own. TLS has to
	// be nil then. It has to end a request with its context, and bound how long a connection takes to be made; with
	// HTTP/2 it has to ask connections whether they are alive. A bound on the connections to a gateway
	// (http.Transport.MaxConnsPerHost) must leave room for requests beside those that are late, of which a lease has up
	// to seven. Close leaves its connections open; those that are idle are closed after a request that was not answered,
	// if it has CloseIdleConnections, so that the next one does not take another that has died. Default: HTTP/1.1, with
	// the proxy of the environment.
	Transport http.RoundTripper

	// Header is added to every request.
	Header http.Header

	// Inject adds to the header of a request what its context says, such as the trace that it
	// belongs to; with OpenTelemetry
	//
	//	func(ctx context.Context, header http.Header) {
	//		propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(header))
	//	}
	//
	// The context has the values of the one that the caller gave, also where the request is
	// made later, as a renewal is. Inject must not block, and is called by many goroutines at
	// a time.
	Inject func(ctx context.Context, header http.Header)
}

// Client asks gateways. It is made by New. Many goroutines may use one.
type Client struct {
	options Options
	http    *http.Client
	current atomic.Uint32 // counts the changes of address; the address is this modulo their number
	now     func() instant
	heard   atomic.Bool   // a gateway has answered
	late    atomic.Int32  // attempts that are left running
	undoes  time.Duration // undoTimeout, but in tests
	closes  time.Duration // closeTimeout, but in tests

	ctx     context.Context // ends with Close
	cancel  context.CancelCauseFunc
	mu      sync.Mutex // between begin and Close
	running sync.WaitGroup
	leases  ownLeases // those that may be counted on

	arrived  []watched     // to be watched, and not known to watchAll yet; mu guards it
	watching bool          // watchAll runs; mu guards it
	arrivals chan struct{} // has a value when a lease has arrived
}

// New returns a client. It asks nothing yet.
func New(o Options) (*Client, error) {
	if len(o.Addresses) == 0 {
		return nil, errors.New("client: no addresses of gateways; one is like http://127.0.0.1:8080")
	}
	addresses := make([]string, len(o.Addresses))
	for i, address := range o.Addresses {
		u, err := url.Parse(address)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
			if at := strings.LastIndexByte(address, '@'); at >= 0 {
				address = "…" + address[at:] // before it there may be a password
			}
			return nil, fmt.Errorf("client: the address %q is not like http://127.0.0.1:8080 or https://locks.example", address)
		}
		addresses[i] = strings.TrimRight(address, "/")
	}
	if err := checkKey(o.Key); err != nil {
		return nil, err
	}
	if o.Patience < 0 {
		return nil, fmt.Errorf("client: Options.Patience is %s; it must not be negative", o.Patience)
	}
	if err := checkText("Options.Owner", o.Owner, maxOwnerBytes); err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	o.Addresses = addresses
	o.Patience = cmp.Or(o.Patience, defaultPatience)
	if o.Owner == "" {
		host, _ := os.Hostname()
		o.Owner = host + ":" + strconv.Itoa(os.Getpid())
	}
	switch {
	case o.Transport != nil && (o.TLS != nil || o.TLSFunc != nil):
		return nil, errors.New("client: Options has both a Transport and TLS; the Transport has to know the certificates")
	case o.TLS != nil && o.TLSFunc != nil, o.Key != "" && o.KeyFunc != nil:
		return nil, errors.New("client: Options has a function for what it also has: TLS and TLSFunc, or Key and KeyFunc")
	}
	transport := o.Transport
	switch {
	case transport != nil:
	case o.TLSFunc != nil:
		transport = &replaced{options: o}
	default:
		transport = o.transport()
	}
	c := &Client{options: o, now: now, undoes: undoTimeout, closes: closeTimeout, http: &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // a lease id is for one gateway only
	}}
	c.arrivals = make(chan struct{}, 1)
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	return c, nil
}

// checkKey refuses what can't be a key.
func checkKey(key string) error {
	if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("client: the key has characters that no key has, perhaps a newline at its end")
	}
	return nil
}

// transport returns that of a client without one of its own.
func (o *Options) transport() *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(true) // with HTTP/2 a connection that has died silently would outlive its requests
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: answerTimeout}).DialContext,
		TLSClientConfig:     o.TLS,
		TLSHandshakeTimeout: answerTimeout,
		Protocols:           &protocols,
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true,
	}
}

// Close ends the leases, acquires and streams that the client has under way, and returns when their goroutines have
// ended. Other calls go on until they are answered, or their context ends. The contexts of its leases are cancelled. It
// does not release leases, for their work may not have stopped yet: they end by their TTL. (Attached ones are released
// by their gateway when the connection closes.) What an acquire may have been granted that it ends, or that its caller
// has ended, is released before Close returns; it waits for that for a second at most. It may be called twice, and not
// by a function that the client calls (OnLeaseID, OnNotice, OnRenewalsFail, Options.Inject).
func (c *Client) Close() error {
	if c.made() != nil {
		return nil
	}
	c.mu.Lock()
	c.cancel(ErrClosed)
	c.mu.Unlock()
	c.running.Wait()
	if c.options.Transport == nil {
		c.http.CloseIdleConnections()
	}
	return nil
}

// made refuses the zero Client.
func (c *Client) made() error {
	if c.ctx == nil {
		return errNotNew
	}
	return nil
}

// begin has Close wait until c.running.Done is called, and reports false once it was called.
func (c *Client) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return false
	}
	c.running.Add(1)
	return true
}

// goes runs f in a goroutine that Close waits for, and reports false once it was called.
func (c *Client) goes(f func()) bool {
	if !c.begin() {
		return false
	}
	go func() {
		defer c.running.Done()
		f()
	}()
	return true
}

// call is a request to whichever gateway.
type call struct {
	kind         kind
	method, path string // the path with its query
	leaseID      string
	patience     time.Duration // in place of Options.Patience; 0: that
	ifMatch      string
	lastEvent    string
	stream       bool                // the answer is a stream of events
	body         any                 // nil: none
	gone         func(doubtful bool) // is told when an attempt of it has ended, and whether it may still be carried out; nil: nobody is
	read         reader
}

// answer is what a gateway has answered.
type answer struct {
	response *http.Response // its body is read
	body     []byte
	sent     instant // before the request was sent
}

// ask sends a call once, to the gateway of a turn. After an error that another gateway may not have the next call
// goes to the next one.
func (c *Client) ask(ctx context.Context, turn uint32, r call, timeout time.Duration) (answer, error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	a, err := c.exchange(limited, turn, r)
	if err == nil {
		err = r.accept(a)
	}
	c.judge(ctx, turn, r.kind, err)
	return a, err
}

// exchange sends a call to the gateway of a turn, and reads the answer, which is a success or an error.
func (c *Client) exchange(ctx context.Context, turn uint32, r call) (answer, error) {
	response, sent, err := c.send(ctx, turn, r)
	a := answer{response: response, sent: sent}
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	if a.body, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer)); err == nil && response.StatusCode >= 300 {
		err = problemOf(response, a.body)
	}
	return a, err
}

// judge goes on to the next gateway after an error that another one may not have, unless
// the caller has ended the call, or another call has gone on already. Where nothing was answered the next request gets
// a connection of its own: what has broken one that was idle may have broken all of them, in silence.
func (c *Client) judge(ctx context.Context, turn uint32, k kind, err error) {
	if ctx.Err() != nil {
		return
	}
	if f := k.fate(err); f != final && f != stay {
		c.current.CompareAndSwap(turn, turn+1)
	}
	if worth(err) == 0 && untold(err) {
		c.http.CloseIdleConnections()
	}
}

// send sends a call to the gateway of a turn.
func (c *Client) send(ctx context.Context, turn uint32, r call) (*http.Response, instant, error) {
	if ctx.Err() != nil {
		return nil, instant{}, &unsent{context.Cause(ctx)}
	}
	var body io.Reader
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			return nil, instant{}, err
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, r.method, c.address(turn)+r.path, body)
	if err != nil {
		return nil, instant{}, err
	}
	for name, values := range c.options.Header {
		request.Header[name] = slices.Clone(values) // Inject may add to them
	}
	c.inject(ctx, request.Header)
	key := c.options.Key
	if c.options.KeyFunc != nil {
		if key, err = c.options.KeyFunc(); err == nil {
			err = checkKey(key)
		}
		if err != nil {
			return nil, instant{}, &unsent{err}
		}
	}
	if key != "" {
		request.Header.Set("Authorization", "Bearer "+key)
	}
	for name, value := range map[string]string{"Lease-Id": r.leaseID, "If-Match": r.ifMatch, "Last-Event-ID": r.lastEvent} {
		if value != "" {
			request.Header.Set(name, value)
		}
	}
	if r.stream {
		request.Header.Set("Accept", "text/event-stream")
	}
	sent := c.now()
	response, err := c.http.Do(request)
	switch bad := new(tls.CertificateVerificationError); {
	case err == nil:
		c.heard.Store(true)
	case errors.As(err, &bad):
		err = &untrusted{err}
	}
	return response, sent, err
}

func (c *Client) address(turn uint32) string { return c.options.Addresses[c.gateway(turn)] }

// gateway returns the number of the gateway of a turn.
func (c *Client) gateway(turn uint32) int { return int(turn) % len(c.options.Addresses) }

// wantsTLS is what net/http answers, before any handler, to who asks a port with TLS without it.
const wantsTLS = "Client sent an HTTP request to an HTTPS server."

// problemOf reads a refusal.
func problemOf(response *http.Response, body []byte) error {
	var p problem
	if err := json.Unmarshal(body, &p); err != nil || p.Code == "" {
		p = problem{Detail: p.Detail}
	}
	if p.Status = response.StatusCode; p.Detail == "" {
		p.Detail = response.Request.Method + " " + response.Request.URL.Redacted() + " is answered " + response.Status
		if to, err := response.Location(); err == nil && p.Status < 400 {
			p.Detail += " to " + to.Redacted() + ": no gateway redirects, and a lease id is for one only; is that its address?"
		}
		if bytes.HasPrefix(body, []byte(wantsTLS)) {
			p.Detail += ": it serves TLS: its address begins with https"
		}
	}
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && p.RetryAfter == 0 {
		p.RetryAfter = int64(seconds) * 1000
	}
	if p.Name == "" {
		p.Name = nameOf(response.Request.URL.Path)
	}
	e := p.refusal()
	if e.Code == CodeUnauthenticated || e.Code == CodeForbidden {
		e.credential = credentialOf(strings.TrimPrefix(response.Request.Header.Get("Authorization"), "Bearer "))
	}
	return e
}

// jitter returns a duration between half of d and d, so that those that failed together
// don't come back together.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// sleep waits, and reports false if the context has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// pathOfNames returns the path of one name, or that of several.
func pathOfNames(names []string) (string, error) {
	switch len(names) {
	case 0:
		return "", &Error{Status: http.StatusBadRequest, Code: CodeInvalidRequest, Field: "name", Detail: "there is no name; give 1 to 64"}
	case 1:
		return pathOf("/locks/", names[0])
	}
	return "/locks", nil
}

// nameOf returns the name that a path is about, if it is about one.
func nameOf(path string) string {
	for _, of := range []string{"/locks/", "/fences/", "/queues/", "/history/"} {
		if _, name, found := strings.Cut(path, of); found {
			return name
		}
	}
	return ""
}

// pathOf returns the path of a name. A name that a proxy could clean up is refused here;
// everything else is the gateway's to judge.
func pathOf(prefix, name string) (string, error) {
	for segment := range strings.SplitSeq(name, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return "", &Error{Status: http.StatusBadRequest, Code: CodeInvalidRequest, Field: "name",
				Detail: fmt.Sprintf("the name %q has an empty, . or .. segment between slashes", name)}
		}
	}
	return prefix + strings.ReplaceAll(url.PathEscape(name), "%2F", "/"), nil
}
