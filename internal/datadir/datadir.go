// Package datadir keeps a data directory for one process: who has its Lock is the only one
// that does, and can tell whether the paths still lead to the directories that it uses.
package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// FileName is a file that is locked beside the directory itself, for it is the only lock that
// earlier versions know. Who removes it unlocks nothing.
const FileName = "fencepost.lock"

// IDFile has the id of the node of a cluster whose data a directory has.
const IDFile = "id"

// lookPatience is how long InUse waits for the lock: whoever has it is a gateway, which keeps it.
const lookPatience = 100 * time.Millisecond

// ErrInUse is wrapped by what Take and Look return when another process has the lock.
var ErrInUse = errors.New("it is in use by another process; only one gateway can use a data directory")

// ErrGone is wrapped by what Held returns.
var ErrGone = errors.New("acknowledged changes are in the files that were there before: put those back before the next start")

// Lock is the lock on a directory. It ends with the process.
type Lock struct {
	dir  Place
	file *os.File // nil if there is none: Look makes none
	used []Place  // directories below: see Use
	made []Place  // those of them that Use has made
}

// Place is a file or directory that is open to be read: no other one is taken for it.
type Place struct {
	*os.File
	is os.FileInfo
}

// OpenPlace opens a file or directory. It fails as os.Open does, and then nothing is open.
func OpenPlace(path string) (p Place, err error) {
	if p.File, err = os.Open(path); err != nil {
		return p, err
	}
	if p.is, err = p.Stat(); err != nil {
		return Place{}, errors.Join(err, p.Close())
	}
	return p, nil
}

// Held returns an error that wraps ErrGone unless the path still leads to what was opened.
func (p Place) Held() error {
	switch same, err := leads(p.Name(), p.is); {
	case err != nil:
		return fmt.Errorf("%s was moved or removed while this process used it; %w: %w", p.Name(), ErrGone, err)
	case !same:
		return fmt.Errorf("%s was replaced while this process used it: the new one may be another gateway's; %w", p.Name(), ErrGone)
	}
	return nil
}

// leadsByStat is leads on any system.
func leadsByStat(path string, to os.FileInfo) (bool, error) {
	at, err := os.Stat(path)
	return err == nil && os.SameFile(at, to), err
}

// Take locks a directory. It waits that long for a process that has the lock: it may be a
// predecessor that is just shutting down.
func Take(dir string, patience time.Duration) (*Lock, error) {
	return lock(dir, os.O_CREATE, patience)
}

// Look is Take that changes nothing in the directory.
func Look(dir string, patience time.Duration) (*Lock, error) {
	return lock(dir, 0, patience)
}

func lock(path string, create int, patience time.Duration) (*Lock, error) {
	l, err := openLock(path, create)
	if err != nil {
		return nil, fmt.Errorf("the data directory can't be locked: %w", errors.Join(err, l.Close()))
	}
	deadline := time.Now().Add(patience)
	for _, f := range []*os.File{l.dir.File, l.file} {
		for locked := f == nil; !locked; {
			if locked, err = tryLock(f); err != nil {
				return nil, errors.Join(fmt.Errorf("%s can't be locked: %w", f.Name(), err), l.Close())
			}
			if !locked && time.Now().After(deadline) {
				return nil, errors.Join(fmt.Errorf("%s: %w", path, ErrInUse), l.Close())
			}
			if !locked {
				time.Sleep(patience / 20)
			}
		}
	}
	return l, nil
}

func openLock(path string, create int) (*Lock, error) {
	l := &Lock{}
	var err error
	if l.dir, err = OpenPlace(path); err != nil {
		return l, err
	}
	l.file, err = os.OpenFile(filepath.Join(path, FileName), create|os.O_RDWR, 0o600)
	if create == 0 && errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return l, err
}

// InUse reports whether another process has the lock on a directory, and changes nothing there. It lets go at once: who
// takes it meanwhile only waits.
func InUse(dir string) (bool, error) {
	l, err := Look(dir, lookPatience)
	if errors.Is(err, ErrInUse) {
		return true, nil
	} else if err != nil {
		return false, err
	}
	return false, l.Close()
}

// Use makes directories below that are not there, and has Held ask for them as well. Close removes those that it has made and
// that are empty: a start that is refused leaves none. Nobody may call Held meanwhile.
func (l *Lock) Use(sync func(dir string) error, dirs ...string) error {
	for _, dir := range dirs {
		_, missing := os.Stat(dir)
		if err := Make(dir, sync); err != nil {
			return err
		}
		p, err := OpenPlace(dir)
		if l.used = append(l.used, p); err != nil {
			return err
		}
		if errors.Is(missing, fs.ErrNotExist) {
			l.made = append(l.made, p)
		}
	}
	return nil
}

// Held returns an error unless the paths still lead to the directory that was locked and to those in use below it. Where
// they do not, what is there may be another process's.
func (l *Lock) Held() error {
	err := l.dir.Held()
	for i := 0; i < len(l.used) && err == nil; i++ {
		err = l.used[i].Held()
	}
	return err
}

// Close gives the lock back.
func (l *Lock) Close() error {
	var err error
	for _, p := range l.made {
		if l.dir.Held() == nil && p.Held() == nil {
			_ = os.Remove(p.Name()) // it stays if there is anything in it
		}
	}
	for _, p := range append(l.used, Place{File: l.file}, l.dir) {
		if p.File != nil {
			err = errors.Join(err, p.Close())
		}
	}
	return err
}
