//go:build !race

package quorum

const defaultSchedules = 200_000
