package raft

import (
	"context"

	"fencepost/internal/fencing"
)

// Examine implements fencing.Store: it fails where this node has failed, and else finds nothing. How
// the members are is told by internal/raft/cluster.
func (s *Store) Examine(context.Context) ([]fencing.Finding, error) {
	if err := s.Cause(); err != nil {
		return nil, fencing.Unavailable(err)
	}
	return nil, nil
}
