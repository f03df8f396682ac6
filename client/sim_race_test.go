//go:build race

package client

const simSchedules = 12
