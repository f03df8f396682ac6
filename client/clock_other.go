//go:build !linux

package client

import "time"

// sinceBoot has no portable source: the wall clock runs on while the machine is suspended.
func sinceBoot() time.Duration { return 0 }
