package datadir

import "testing"

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
