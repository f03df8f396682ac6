//go:build race

package session

const simSchedules = 30
