//go:build !linux

package http

import "time"

// Other systems don't tell; there the keep-alive of limitSilence and the write
// deadlines find a peer that is gone.

func (c *connection) left() bool                       { return false }
func (c *connection) leftUntold() bool                 { return false }
func (c *connection) acknowledged() bool               { return true }
func (c *connection) setUserTimeout(time.Duration)     {}
func (c *connection) progress() (uint64, uint64, bool) { return 0, 0, false }
