package main

import "testing"

func TestGarbageFor(t *testing.T) {
	t.Parallel()
	for alive, want := range map[uint64]int{0: 400, 4 << 20: 400, 16 << 20: 400, 32 << 20: 200, 64 << 20: 100, 128 << 20: 50, 1 << 40: 50} {
		if got := garbageFor(alive); got != want {
			t.Errorf("%d bytes alive: %d %%, want %d", alive, got, want)
		}
	}
}
