//go:build !race

package watchdog

const simSchedules = 150
