//go:build race

package quorum

const defaultSchedules = 500
