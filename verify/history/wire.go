package history

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"fencepost/verify/system"
)

// longestAnswer is how much longer than its wait a client is patient.
const longestAnswer = 20 * time.Second

// client is one program that uses locks, over one connection.
type client struct {
	run    *run
	n      int
	random *rand.Rand
	http   *http.Transport
	leases int // made so far
}

func newClient(r *run, n int) *client {
	return &client{
		run: r, n: n, random: rand.New(rand.NewPCG(r.cfg.Seed, uint64(n+1000))),
		http: &http.Transport{MaxIdleConnsPerHost: 1, DisableCompression: true},
	}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// alphabet is Crockford's, of ULIDs; all of it is base64url too.
const alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// newLease makes a lease id, which needs to be unique here and not to be a secret.
func (c *client) newLease() string {
	c.leases++
	id := []byte(fmt.Sprintf("0%09d%06d%010d.%022d", c.n, c.leases, c.run.cfg.Seed%1e10, 0))
	for i := 27; i < len(id); i++ {
		id[i] = alphabet[c.random.IntN(len(alphabet))]
	}
	return string(id)
}

// answer is what came back, as far as histories need it.
type answer struct {
	LeaseID   string `json:"lease_id"`
	Name      string `json:"name"`
	Token     int64  `json:"fencing_token"`
	Slot      *int   `json:"slot"`
	Slots     []int  `json:"slots"`
	Hold      int    `json:"hold"`
	ExpiresIn int64  `json:"expires_in_ms"`
	Waited    int64  `json:"waited_ms"`
	Elapsed   int64  `json:"elapsed_ms"`
	Locks     []struct {
		Name      string `json:"name"`
		Token     int64  `json:"fencing_token"`
		Slot      *int   `json:"slot"`
		Slots     []int  `json:"slots"`
		Hold      int    `json:"hold"`
		ExpiresIn int64  `json:"expires_in_ms"`
	} `json:"locks"`
	Lost    []string `json:"lost"`
	Code    string   `json:"code"`
	Reason  string   `json:"reason"`
	Holders []shown  `json:"holders"`
	Waiters []shown  `json:"waiters"`
	Delayed int64    `json:"delayed_ms"`
	Verdict string   `json:"verdict"`
	Issued  int64    `json:"highest_issued"`
}

type shown struct {
	Owner string `json:"owner"`
	Token int64  `json:"fencing_token"`
	Mode  string `json:"mode"`
	Limit int    `json:"limit"`

	Permits int `json:"permits"`
}

// request returns the HTTP request of an operation.
func (c *client) request(ctx context.Context, op *Op) (*http.Request, error) {
	method := map[Verb]string{Acquire: http.MethodPost, Renew: http.MethodPut, Release: http.MethodDelete, Break: http.MethodDelete}[op.Verb]
	target := c.run.cfg.System.Gateways[op.Gateway].URL() + "/locks"
	body := map[string]any{}
	switch {
	case !op.Set():
		target += "/" + op.Names[0]
	case op.Verb == Release:
		target += "?" + url.Values{"name": op.Names}.Encode()
	default:
		body["names"] = op.Names
	}
	for field, value := range map[string]int64{
		"ttl_ms": op.TTL.Milliseconds(), "wait_ms": op.Wait.Milliseconds(), "limit": int64(op.Limit), "permits": int64(op.Permits), "hold": int64(op.Hold),
		"lock_delay_ms": op.LockDelay.Milliseconds(),
	} {
		if value > 0 {
			body[field] = value
		}
	}
	if op.Mode != "" {
		body["mode"] = op.Mode
	}
	var text []byte
	switch op.Verb {
	case Acquire:
		body["owner"] = op.Owner
		text, _ = json.Marshal(body)
	case Renew:
		delete(body, "hold")
		text, _ = json.Marshal(body)
	}
	r, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	if op.Lease != "" {
		r.Header.Set("Lease-Id", op.Lease)
	}
	if op.Attached {
		r.Header.Set("Accept", "text/event-stream")
	}
	if op.Verb == Release && op.Hold > 0 {
		r.Header.Set("Lease-Hold", strconv.Itoa(op.Hold))
	}
	if op.Verb == Break {
		r.Header.Set("If-Match", fmt.Sprintf(`"%d"`, op.Token))
	}
	return r, nil
}

// send sends one request and records what came of it.
func (c *client) send(ctx context.Context, op *Op) {
	c.begin(op)
	bounded, cancel := context.WithTimeout(ctx, op.Wait+longestAnswer)
	defer cancel()
	op.Sent = c.run.now()
	response, err := c.roundTrip(bounded, op)
	c.end(op, response, err)
}

func (c *client) begin(op *Op) {
	op.ID = c.run.number()
	if op.Call == 0 {
		op.Call = op.ID
	}
	op.Client = c.n
}

// end reads the answer, if there is one, and records the operation.
func (c *client) end(op *Op, response *http.Response, err error) {
	var text []byte
	if err == nil {
		text, err = io.ReadAll(response.Body)
		response.Body.Close()
	}
	if op.Done = c.run.now(); err == nil {
		op.Status = response.StatusCode
		op.judge(text)
	} else {
		op.Verdict = Unknown
	}
	c.run.record(*op)
}

// sendAndLeave sends one request and closes its connection after a while, unless the
// answer has come by then. Where it may have come at that very moment the verdict is
// Unknown.
func (c *client) sendAndLeave(ctx context.Context, op *Op, after time.Duration) {
	c.begin(op)
	op.Sent = c.run.now()
	conn, err := net.Dial("tcp", c.run.cfg.System.Gateways[op.Gateway].Addr())
	if err != nil {
		c.end(op, nil, err)
		return
	}
	defer conn.Close()
	request, err := c.request(ctx, op)
	if err == nil {
		err = errors.Join(conn.SetDeadline(time.Now().Add(op.Wait+longestAnswer)), request.Write(conn))
	}
	if err != nil {
		c.end(op, nil, err)
		return
	}
	tcp := conn.(*net.TCPConn)
	if system.Pause(after); system.Answered(tcp) {
		response, err := http.ReadResponse(bufio.NewReader(conn), request)
		c.end(op, response, err)
		return
	}
	late, took, err := system.CloseUnanswered(tcp, false) // a reset that crosses the answer keeps the lease: verify/crowd counts them
	op.Done, op.Verdict = c.run.now(), Left
	if late || took > system.Sharp || err != nil {
		op.Verdict = Unknown
	}
	c.run.record(*op)
}

func (c *client) roundTrip(ctx context.Context, op *Op) (*http.Response, error) {
	r, err := c.request(ctx, op)
	if err != nil {
		return nil, err
	}
	return c.http.RoundTrip(r)
}

// judge reads an answer.
func (op *Op) judge(text []byte) {
	var a answer
	if len(text) > 0 && json.Unmarshal(text, &a) != nil {
		op.Verdict = Unknown
		return
	}
	op.Code, op.Reason, op.Delayed = a.Code, a.Reason, a.Delayed > 0
	if a.LeaseID != "" {
		op.Lease = a.LeaseID
	}
	op.grants(&a)
	switch {
	case op.Status == http.StatusOK, op.Status == http.StatusCreated:
		op.Verdict = Granted
	case op.Status == http.StatusNoContent:
		op.Verdict = Ended
	case op.Status == http.StatusPreconditionFailed:
		op.Verdict, op.Missing = Lost, a.Lost
		if op.Set() && len(a.Lost) == 0 { // of an acquire: one of them, nobody says which
			op.Verdict = Invalid
		}
	case op.Status == http.StatusLocked, op.Status == http.StatusTooManyRequests, op.Code == "quarantined", op.Code == "draining":
		op.Verdict = Refused
	case op.Status == http.StatusConflict, op.Status >= http.StatusInternalServerError:
		op.Verdict = Unknown
	default:
		op.Verdict = Invalid
	}
}

// grants takes the leases out of an answer.
func (op *Op) grants(a *answer) {
	if op.Status >= http.StatusMultipleChoices && op.Status != http.StatusPreconditionFailed {
		return
	}
	until := func(expiresIn int64) Time { return op.Sent + time.Duration(a.Waited+expiresIn)*time.Millisecond }
	slots := func(one *int, several []int) []int {
		if several == nil && one != nil {
			return []int{*one}
		}
		return several
	}
	if a.Token > 0 {
		op.Grants = []Grant{{Name: op.Names[0], Token: a.Token, Slots: slots(a.Slot, a.Slots), Hold: a.Hold, Left: time.Duration(a.ExpiresIn) * time.Millisecond, Deadline: until(a.ExpiresIn)}}
	}
	for _, l := range a.Locks {
		op.Grants = append(op.Grants, Grant{Name: l.Name, Token: l.Token, Slots: slots(l.Slot, l.Slots), Hold: l.Hold, Left: time.Duration(l.ExpiresIn) * time.Millisecond, Deadline: until(l.ExpiresIn)})
	}
}

// get asks for what only looks, and reports whether it was answered with 200.
func (c *client) get(ctx context.Context, gateway int, path string) (a answer, ok bool) {
	gateways := c.run.cfg.System.Gateways
	bounded, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(bounded, http.MethodGet, gateways[gateway%len(gateways)].URL()+path, nil)
	if err != nil {
		return a, false
	}
	response, err := c.http.RoundTrip(r)
	if err != nil {
		return a, false
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK || json.NewDecoder(response.Body).Decode(&a) != nil {
		return a, false
	}
	_, _ = io.Copy(io.Discard, response.Body)
	return a, true
}

// judge asks a fence about a token.
func (c *client) judge(ctx context.Context, gateway int, name string, token int64) (j Judged, ok bool) {
	j = Judged{Name: name, Token: token, Sent: c.run.now()}
	a, ok := c.get(ctx, gateway, fmt.Sprintf("/fences/%s?token=%d", name, token))
	j.Done, j.Verdict, j.Issued = c.run.now(), a.Verdict, a.Issued
	return j, ok
}

// inspect looks at a name.
func (c *client) inspect(ctx context.Context, gateway int, name string) (look Look, ok bool) {
	look = Look{Name: name, Sent: c.run.now()}
	a, ok := c.get(ctx, gateway, "/locks/"+name)
	if look.Done = c.run.now(); !ok {
		return look, false
	}
	for _, h := range a.Holders {
		look.Holders = append(look.Holders, Shown(h))
	}
	look.Delayed = a.Delayed > 0
	for _, w := range a.Waiters {
		look.Waiters = append(look.Waiters, Shown(w))
	}
	return look, true
}
