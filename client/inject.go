package client

import (
	"context"
	"net/http"
)

// lasting is a context with the life of one and the values of another: what goes on for a
// lease after its caller has left is still the caller's, to Options.Inject.
type lasting struct {
	context.Context
	values context.Context
}

// lastingFor returns a context that ends with the client, and has the values of a caller's.
func (c *Client) lastingFor(caller context.Context) context.Context {
	return lasting{c.ctx, context.WithoutCancel(caller)}
}

// Value asks the first context first, so that package context finds its own.
func (l lasting) Value(key any) any {
	if v := l.Context.Value(key); v != nil {
		return v
	}
	return l.values.Value(key)
}

// inject has Options.Inject add to the header of a request. What this package says itself
// comes after it.
func (c *Client) inject(ctx context.Context, header http.Header) {
	if c.options.Inject != nil {
		c.options.Inject(ctx, header)
	}
}
