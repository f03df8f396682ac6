package embedded

import (
	"slices"
	"testing"

	"fencepost/internal/fencing"
)

func TestJudgeFileSystem(t *testing.T) {
	for kind, ok := range map[int64]bool{
		0xef53: true, 0x58465342: true, 0x12345: true, fuse: true,
		0x01021994: false, 0x6969: false, overlay: false, 0xff534d42 - 1<<32: false,
	} {
		if f := findingOfFileSystem(kind); f.OK != ok || f.OK != (f.Promise == "") || f.OK != (f.Remedy == "") || f.Detail == "" {
			t.Errorf("%#x: %+v", kind, f)
		}
	}
}

// What is little goes with the table, which is written anew beside itself.
func TestRoomGoesWithTheTable(t *testing.T) {
	for _, c := range []struct {
		free, table uint64
		ok          bool
	}{
		{100 << 20, 0, false}, {300 << 20, 0, true}, {10 << 30, 0, true},
		{300 << 20, 100 << 20, true}, {300 << 20, 200 << 20, false}, {1 << 30, 500 << 20, true}, {1 << 30, 600 << 20, false},
	} {
		if f := room(c.free, c.table); f.OK != c.ok || f.OK != (f.Remedy == "") || f.Promise != "" {
			t.Errorf("%d free, a table of %d: %+v", c.free, c.table, f)
		}
	}
	s := open(t, Options{Dir: t.TempDir()})
	found, err := s.Examine(t.Context())
	if err != nil || !slices.ContainsFunc(found, func(f fencing.Finding) bool { return f.Check == "space" }) {
		t.Errorf("nothing is said of room: %+v, %v", found, err)
	}
}
