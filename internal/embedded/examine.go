package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"fencepost/internal/datadir"
	"fencepost/internal/disk"
	"fencepost/internal/fencing"
	"fencepost/internal/wal"
)

// Examine says how it is with the store in dir, and changes nothing there; it may be
// called while another process has the store open. An error says why no gateway
// could open it.
func Examine(dir string) ([]fencing.Finding, error) {
	where, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	directory, err := datadir.Directory(where)
	if err != nil {
		return nil, datadir.Explained(where, err)
	}
	files, room, err := examineFiles(where, func() {})
	if err != nil {
		return nil, datadir.Explained(where, err)
	}
	return slices.Concat([]fencing.Finding{directory, files}, datadir.FileSystem(where), room), nil
}

// examineFiles reads all that a start would, and says how much room there is beside that. reads is called when the files
// are open, which keep no gateway from the directory: what one writes meanwhile may stand where nothing was, so
// that an error counts if it comes twice while no gateway has the directory.
func examineFiles(dir string, reads func()) (f fencing.Finding, room []fencing.Finding, err error) {
	if f, room, err = examineOnce(dir, reads); err != nil {
		f, room, err = examineOnce(dir, reads)
	}
	return f, room, err
}

func examineOnce(dir string, reads func()) (f fencing.Finding, room []fencing.Finding, err error) {
	f = fencing.Finding{Check: "file", OK: true}
	room = datadir.Room(dir, datadir.Free, theStore, filesIn(dir))
	d := &directory{dir: dir, logger: slog.New(slog.DiscardHandler), free: datadir.Free}
	if there, err := d.there(wal.FilesOr(nil)); err != nil {
		return f, room, err
	} else if !there {
		f, err := noStore(dir)
		return f, room, errors.Join(err, d.roomForNew(fileSize))
	}
	files, err := disk.OpenAll(dir)
	switch {
	case errors.Is(err, datadir.ErrInUse):
		f.OK, f.Unknown = false, true
		f.Detail = "it can't be examined while another process has it open. A running gateway reports the state of its store at /readyz?verbose"
		return f, room, nil
	case err != nil:
		return f, nil, err
	}
	reads()
	f.Detail, err = d.look(files)
	return f, room, errors.Join(err, disk.MayWrite(d.dir), files.Close())
}

// noStore is about a directory without a store. Only in an empty one is one to be expected to begin.
func noStore(dir string) (fencing.Finding, error) {
	f := fencing.Finding{Check: "file", OK: true, Detail: "the directory is empty: a gateway starts with an empty store"}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	others := slices.DeleteFunc(entries, func(entry fs.DirEntry) bool { return slices.Contains(ofEmpty, entry.Name()) })
	switch {
	case err != nil:
		f.Detail = "there is no store to examine: a gateway with these settings starts with an empty one"
	case len(others) > 0:
		f.Detail = fmt.Sprintf("there is no store to examine, only other files such as %s: a gateway with these settings starts with an empty store beside them", others[0].Name())
	default:
		return f, nil
	}
	f.OK, f.Unknown, f.Remedy = false, true, "nothing, if you want a new store; otherwise set FENCEPOST_DATA_DIR to the gateway's directory"
	return f, nil
}

// ofEmpty is what a directory may have in which no gateway has begun a store: what the first start makes before it finds that it has
// no room, and what mkfs makes.
var ofEmpty = []string{disk.LogName, disk.SnapshotsName, datadir.FileName, "lost+found"}

// look reads files, and says how it is with them.
func (d *directory) look(files wal.Files) (detail string, err error) {
	if err := d.openFiles(wal.Options{Files: files, Look: true}); err != nil {
		return "", err
	}
	m, err := d.carriedOut()
	if err == nil {
		_, err = m.Last().GoOnAt(fencing.InstantOf(time.Now()))
	}
	detail = "it can be read, and no gateway has it open"
	switch {
	case d.behind > 0 && len(d.members.Servers) > 0:
		detail = "its last gateway was a cluster of one, or did not stop cleanly: the next start replays its log"
	case d.behind > 0:
		detail = "its last gateway did not stop cleanly: the next start replays its log"
	}
	if ahead := m.Now().Sub(fencing.InstantOf(time.Now())); ahead > time.Second {
		detail += fmt.Sprintf("; its time is %s ahead of the clock of this machine, and so are its tokens: those of an empty directory would be lower", ahead.Round(time.Second))
	}
	return detail, errors.Join(err, d.log.Close())
}

// filesIn returns how many bytes the files of the store in dir have, as far as that can be seen.
func filesIn(dir string) (size int64) {
	for _, below := range []string{disk.LogName, disk.SnapshotsName} {
		entries, err := os.ReadDir(filepath.Join(dir, below))
		if err != nil {
			continue
		}
		for _, entry := range entries {
			if info, err := entry.Info(); err == nil { // else it has gone
				size += info.Size()
			}
		}
	}
	return size
}

// Expected returns an error if there is no store in dir, as a start does that is to find one: see Options.Expect.
func Expected(dir string) error {
	there, err := disk.There(dir, wal.FilesOr(nil))
	if err == nil && !there {
		err = disk.Expected(dir)
	}
	return err
}
