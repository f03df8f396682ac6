//go:build race

package quorum

const defaultSchedules = 5_000
