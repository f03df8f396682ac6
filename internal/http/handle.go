package http

import (
	"net/http"

	"fencepost/internal/fencing"
)

var jsonType = []string{"application/json"}

// answer is what an operation that succeeded gives back.
type answer interface {
	// status returns the status code.
	status() int
	// setHeader adds the headers of the answer.
	setHeader(http.Header)
	// appendJSON appends the body; a 204 has none.
	appendJSON([]byte, wallClock) []byte
}

// handle is the way of every operation on locks: decode and validate, run,
// encode, deliver. Counting and logging follow in call.end.
func handle[Req any, Resp answer](decode func(*call) (Req, error), run func(*call, Req) (Resp, error)) func(*call) {
	return func(c *call) {
		req, err := decode(c)
		if err != nil {
			c.writeError(err)
			return
		}
		respond(c, req, run)
	}
}

// respond runs an operation, and answers.
func respond[Req any, Resp answer](c *call, req Req, run func(*call, Req) (Resp, error)) {
	resp, err := run(c, req)
	if err != nil {
		c.writeError(err)
		return
	}
	c.deliver(resp)
}

// deliver sends an answer. A grant in it counts as told once the network has it,
// unless its client had closed by then (P6).
func (c *call) deliver(resp answer) {
	status := resp.status()
	resp.setHeader(c.Header())
	if status != http.StatusNoContent {
		c.out = append(resp.appendJSON(c.out, c.s.wall), '\n')
	}
	err := c.send(status, jsonType, c.out)
	if c.session != nil && c.session.Owes() && err == nil && c.flush() == nil && !connectionOf(c.r).leftUntold() {
		c.session.Told()
	}
}

// errClientLeft is for the log: nobody is there to read it, or only one who has
// closed its half of the connection.
var errClientLeft = &fencing.Error{Code: fencing.CodeUnavailable,
	Detail: "the connection was closed before the lease could be delivered; the grant is taken back"}
