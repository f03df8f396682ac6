package embedded

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fencepost/internal/datadir"
	"fencepost/internal/disk"
	"fencepost/internal/fencing"
	"fencepost/internal/wal"
)

// examinePatience is how long Examine waits for the directory's lock: whoever has it is a
// gateway, which keeps it.
const examinePatience = 100 * time.Millisecond

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
	files, err := openAll(dir)
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
	return f, room, errors.Join(err, disk.MayWrite(d.dir), files.close())
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

// opened is files that were opened while no gateway had them. They stay what they were: a
// start puts others in their place, or appends. It is wal.Files to be looked at.
type opened map[string]*openedFile

type openedFile struct {
	*os.File
	size int64
}

// openAll opens the files of the store in dir. It keeps no gateway from the directory once it has
// returned.
func openAll(dir string) (opened, error) {
	lock, err := datadir.Look(dir, examinePatience)
	if err != nil {
		return nil, err
	}
	all := opened{}
	for _, below := range []string{disk.LogName, disk.SnapshotsName} {
		entries, err := os.ReadDir(filepath.Join(dir, below))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(err, all.close(), lock.Close())
		}
		for _, entry := range entries {
			path := filepath.Join(dir, below, entry.Name())
			if strings.HasSuffix(path, ".new") { // a start removes it
				continue
			}
			if err := all.add(path); err != nil {
				return nil, errors.Join(err, all.close(), lock.Close())
			}
		}
	}
	for _, name := range []string{datadir.IDFile, disk.BegunFile} {
		if err := all.add(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(err, all.close(), lock.Close())
		}
	}
	return all, lock.Close()
}

func (o opened) add(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	o[path] = &openedFile{f, info.Size()}
	return nil
}

func (o opened) close() (err error) {
	for _, f := range o {
		err = errors.Join(err, f.Close())
	}
	return err
}

// List implements wal.Files.
func (o opened) List(dir string) (entries []fs.DirEntry, err error) {
	for path, f := range o {
		if filepath.Dir(path) == dir {
			info, err := f.Stat()
			if err != nil {
				return nil, err
			}
			entries = append(entries, fs.FileInfoToDirEntry(info))
		}
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}

// Open implements wal.Files.
func (o opened) Open(path string) (wal.Reader, error) {
	f := o[path]
	if f == nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return section{io.NewSectionReader(f, 0, f.size)}, nil
}

// section is read from its beginning, and is open until all are closed.
type section struct{ *io.SectionReader }

func (section) Close() error { return nil }

// errLooks is of what would change something.
var errLooks = errors.New("it is only looked at")

// Create implements wal.Files: it fails, as all that changes something.
func (opened) Create(string) (wal.File, error) { return nil, errLooks }

// OpenSynced implements wal.Files.
func (opened) OpenSynced(string) (wal.File, error) { return nil, errLooks }

// Rename implements wal.Files.
func (opened) Rename(string, string) error { return errLooks }

// Remove implements wal.Files.
func (opened) Remove(string) error { return errLooks }

// Same implements wal.Files: what is open stays what it was.
func (opened) Same(wal.Reader) error { return nil }

// SyncDir implements wal.Files: nothing was changed.
func (opened) SyncDir(string) error { return nil }
