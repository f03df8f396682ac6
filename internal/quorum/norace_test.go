//go:build !race

package quorum

const defaultSchedules = 8_000 // make verify plays 1,000,000
