//go:build !race

package session

const simSchedules = 1000
