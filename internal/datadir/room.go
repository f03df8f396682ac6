package datadir

import (
	"errors"
	"fmt"
	"math"
	"syscall"

	"fencepost/internal/fencing"
)

const (
	// leastSpace is how much room on the disk is little, however little is there: what a store takes in addition
	// while it has little to keep is less, and who is told has time to make some.
	leastSpace = 256 << 20

	// leastTimes is how many times what is written anew beside itself is little: it may have grown meanwhile.
	leastTimes = 2
)

// ErrNoRoom is wrapped by an error of a full disk that says what has no room.
var ErrNoRoom = errors.New("there is no room for it")

// Room says how much is free for the files in dir, by free, which is Free but for tests. What is the largest of them that
// is written anew beside itself, as "the store", and has so many bytes. Nothing is said where that is not known.
func Room(dir string, free func(dir string) (bytes int64, known bool), what string, size int64) []fencing.Finding {
	there, known := free(dir)
	if !known {
		return nil
	}
	return []fencing.Finding{room(there, what, size)}
}

func room(free int64, what string, size int64) fencing.Finding {
	f := fencing.Finding{Check: "space", OK: true, Detail: fmt.Sprintf("%d MiB are free, and %s takes %d", free>>20, what, size>>20)}
	if least := max(leastSpace, leastTimes*size); free < least {
		f.OK, f.Remedy = false, fmt.Sprintf("free at least %d MiB: the gateway stops at the first write that fails", least>>20)
	}
	return f
}

// RoomForNew refuses a directory that has no room for what is new, as "a new store", and needs so many bytes. Free is
// as for Room.
func RoomForNew(dir string, free func(dir string) (bytes int64, known bool), what string, need int64) error {
	if there, known := free(dir); known && there < need {
		return fmt.Errorf("%s: %s needs %s, and its file system has %s free; make room, or name another directory in FENCEPOST_DATA_DIR",
			dir, what, mebibytes(need), mebibytes(there))
	}
	return nil
}

// NoRoom adds to an error of a full disk what in dir has no room, and how much it needs. Other errors it returns as they
// are.
func NoRoom(err error, dir, what string, size int64) error {
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	return fmt.Errorf("%s of about %d MiB can't be written, as %w in the file system of %s: %w; make room, and start again. Nothing is wrong with the existing files: leave them, they have everything that was acknowledged",
		what, size>>20+1, ErrNoRoom, dir, err)
}

// leftFor says how much is free for files in dir, if that is known.
func leftFor(dir string) string {
	if free, known := Free(dir); known {
		return ", whose file system has " + mebibytes(free) + " free"
	}
	return ""
}

// mebibytes rounds down: what is free is less than what is needed in the message too.
func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", math.Floor(10*float64(n)/(1<<20))/10) }
