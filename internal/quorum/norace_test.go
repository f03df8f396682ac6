//go:build !race

package quorum

const defaultSchedules = 50_000
