package embedded

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"fencepost/internal/datadir"
	"fencepost/internal/fencing"
)

// examinePatience is how long Examine waits for the file's lock: whoever has it is a
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
	file, err := examineFile(filepath.Join(where, fileName))
	if err != nil {
		return nil, datadir.Explained(where, err)
	}
	return slices.Concat([]fencing.Finding{directory, file}, datadir.FileSystem(where), examineRoom(where)), nil
}

func examineFile(path string) (fencing.Finding, error) {
	f := fencing.Finding{Check: "file", OK: true}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		f.Detail = "there is none yet: nothing was ever locked here"
		return f, directory{system{}, filepath.Dir(path)}.roomForNew(leastSegment)
	}
	files, err := openAll(filepath.Dir(path))
	switch {
	case errors.Is(err, datadir.ErrInUse):
		f.Detail = "another process has it open, as a gateway that runs has: what is in it can't be looked at meanwhile"
		return f, nil
	case err != nil:
		return f, err
	}
	d := &disk{directory: directory{files, filepath.Dir(path)}}
	f.Detail, err = d.examine()
	return f, errors.Join(err, files.close())
}

// opened is files that were opened while no gateway had them. They stay what they were: a
// start puts others in their place.
type opened struct {
	system
	all map[string]*os.File
}

// openAll opens the files of the store in dir. It keeps no gateway from the directory once it has
// returned.
func openAll(dir string) (opened, error) {
	lock, err := datadir.Look(dir, examinePatience)
	if err != nil {
		return opened{}, err
	}
	o := opened{all: map[string]*os.File{}}
	for _, name := range append(segmentNames[:], fileName) {
		path := filepath.Join(dir, name)
		switch f, err := os.Open(path); {
		case err == nil:
			o.all[path] = f
		case !errors.Is(err, fs.ErrNotExist):
			return opened{}, errors.Join(err, o.close(), lock.Close())
		}
	}
	return o, lock.Close()
}

func (o opened) open(path string) (readable, error) {
	f := o.all[path]
	if f == nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return openedFile{io.NewSectionReader(f, 0, info.Size())}, nil
}

// openedFile is read from its beginning, and is open until all are closed.
type openedFile struct{ *io.SectionReader }

func (openedFile) Close() error { return nil }

func (o opened) close() (err error) {
	for _, f := range o.all {
		err = errors.Join(err, f.Close())
	}
	return err
}

// examine reads all that a start would.
func (d *disk) examine() (detail string, err error) {
	flushed, err := d.flushed()
	if err != nil {
		return "", err
	}
	l := newLoading(0)
	each, end := onTop(latest(flushed), l.entry)
	if err := d.each(each); err != nil {
		return "", err
	}
	if err := end(); err != nil {
		return "", err
	}
	if flushed != nil {
		return "the gateway that had it has not ended cleanly: the next start reads its journal", nil
	}
	return "it can be read, and no gateway has it open", nil
}

// examineRoom says how much room is left there, beside the table.
func examineRoom(dir string) []fencing.Finding {
	table := int64(0) // if there is none
	if info, err := os.Stat(filepath.Join(dir, fileName)); err == nil {
		table = info.Size()
	}
	return datadir.Room(dir, datadir.Free, fileName, table)
}
