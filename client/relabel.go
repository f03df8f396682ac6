package client

import (
	"context"
	"time"
)

// Labels are what people are told of a lease.
type Labels struct {
	Owner    string            // 256 bytes at most; empty: it stays
	Metadata map[string]string // as of Metadata; nil: they stay; without entries: none
}

// Relabel renews the lease and sets its labels. It is Client.Relabel.
func (l *Lease) Relabel(ctx context.Context, labels Labels) error {
	_, err := l.c.Relabel(ctx, l.id, labels, l.held()...)
	return err
}

// Relabel renews the names of a lease id, whoever acquired them, and sets labels, which everybody
// sees from then on; the owner, later events and the history have as well. It returns what Renew does. To name the owner
// that the lease was acquired with, by Owner, is a contradiction in an acquire with its lease id
// then (CodeConflict). A quorum can't do it: CodeUnsupportedByStore.
func (c *Client) Relabel(ctx context.Context, leaseID string, labels Labels, names ...string) (time.Duration, error) {
	return c.Change(ctx, leaseID, Change{Labels: labels}, names...)
}
