//go:build race

package watchdog

import "runtime"

const simSchedules = 20

// Go 1.26's race detector crashes (SIGSEGV in timer.maybeRunChan) where goroutines of one synctest bubble find timers expired at once on
// several processors: the bubble has one context for all its timers.
func init() { runtime.GOMAXPROCS(1) }
