package fencingtest

import "testing"

func TestModel(t *testing.T) {
	Run(t, openModel(false), Capabilities{})
}

func TestModelWithItsOwnClock(t *testing.T) {
	Run(t, openModel(true), Capabilities{OwnClock: true, Flush: true})
}
