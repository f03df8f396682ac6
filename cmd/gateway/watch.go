package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"fencepost/internal/observe"
)

// watchInterval is how often files are looked at. They are few and small, so they are
// read whole: what a file system says about times is not to be relied on.
const watchInterval = 2 * time.Second

// How long the files of a setting have to be read: at start, and at a look, which goes on to
// the others then and comes back to them.
const (
	startReading = 10 * time.Second
	lookReading  = time.Second
)

// maxWatched is the size of the largest file.
const maxWatched = 1 << 20

// file is one setting's file, and others that are of use together only.
type file struct {
	setting string
	paths   []string
	private int                           // the path of a secret, if it is not the first
	public  bool                          // everybody may read all of them
	apply   func(contents [][]byte) error // takes effect whole, or not at all

	seen    [][sha256.Size]byte // of the contents tried last; nil if they could not be read
	reading chan contents       // of a read that has not ended; nil if there is none
	hangs   bool                // and that was told
}

// contents are what the files of a setting have, as far as they could be read.
type contents struct {
	all  [][]byte
	errs []error
}

// files are read at start, and again when they have changed or at SIGHUP. What can't be
// used is told, and what was read before stays in force.
type files struct {
	log   *slog.Logger
	audit *slog.Logger // hears of who may come in from now on
	state *observe.Files
	all   []*file
	read  func(path string, warn bool) ([]byte, error) // for tests; nil is readFile

	cancel  context.CancelFunc
	running sync.WaitGroup
}

// add reads files for the first time.
func (f *files) add(one file) error {
	if err := f.load(context.Background(), &one, true, startReading); err != nil {
		return fmt.Errorf("%s: %w", one.setting, err)
	}
	f.all = append(f.all, &one)
	return nil
}

// start begins to watch what was added. Where nothing was, SIGHUP is still taken: it would end
// the gateway, and what manages services sends it to reload.
func (f *files) start() {
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	f.running.Go(func() {
		defer signal.Stop(hangup)
		ticker := time.NewTicker(watchInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				f.look(ctx, false)
			case <-hangup:
				f.log.Info("rereading files after SIGHUP")
				f.look(ctx, true)
			case <-ctx.Done():
				return
			}
		}
	})
}

// stop returns when nothing takes effect any more. A read that hangs is not waited for.
func (f *files) stop() {
	if f.cancel != nil {
		f.cancel()
	}
	f.running.Wait()
}

// look reads everything again; always: also what has not changed.
func (f *files) look(ctx context.Context, always bool) {
	for _, one := range f.all {
		if err := f.load(ctx, one, always, lookReading); err != nil {
			f.log.Error("a file can't be used; its previous content stays in force", "setting", one.setting, "error", err)
		}
	}
}

// errHangs is a file system that does not answer, as one of a network may.
var errHangs = errors.New("the file system does not answer")

// load reads files, and applies them if they have changed since the last attempt. An error
// is returned once for the same contents, and once for a read that takes longer than within.
func (f *files) load(ctx context.Context, one *file, always bool, within time.Duration) error {
	found, ended := f.contents(ctx, one, always, within)
	switch {
	case ctx.Err() != nil, !ended && one.hangs:
		return nil
	case !ended:
		one.hangs = true
		f.state.Note(one.setting, false)
		return errHangs
	}
	sums := make([][sha256.Size]byte, len(one.paths))
	for i := range sums {
		sums[i] = sha256.Sum256(append(found.all[i], fmt.Sprint(found.errs[i])...))
	}
	if !always && !one.hangs && equalSums(sums, one.seen) {
		return nil
	}
	one.seen, one.hangs = sums, false
	err := errors.Join(found.errs...)
	if err == nil {
		err = one.apply(found.all)
	}
	f.state.Note(one.setting, err == nil)
	return err
}

// contents reads the files of a setting aside, and waits for that: what hangs holds up neither
// the other files nor the end. A read that has not ended is asked for by the next call, which does not wait.
func (f *files) contents(ctx context.Context, one *file, always bool, within time.Duration) (found contents, ended bool) {
	if one.reading != nil {
		select {
		case found = <-one.reading:
			one.reading = nil
			return found, true
		default:
			return contents{}, false
		}
	}
	reading := make(chan contents, 1)
	paths, secret := one.paths, one.private
	if one.public || one.seen != nil && !always {
		secret = -1 // nothing to warn of, or it was done
	}
	go func() { reading <- f.readAll(paths, secret) }()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case found = <-reading:
		return found, true
	case <-timer.C:
	case <-ctx.Done():
	}
	one.reading = reading
	return contents{}, false
}

// readAll reads files, of which one is a secret, or none if that is -1.
func (f *files) readAll(paths []string, secret int) contents {
	read := f.read
	if read == nil {
		read = f.readFile
	}
	found := contents{make([][]byte, len(paths)), make([]error, len(paths))}
	for i, path := range paths {
		found.all[i], found.errs[i] = read(path, i == secret)
	}
	return found
}

func equalSums(a, b [][sha256.Size]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// readFile reads a file that only its owner, and perhaps a group, may change.
func (f *files) readFile(path string, warn bool) ([]byte, error) {
	opened, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe without a writer would never open
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	info, err := opened.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", path)
	}
	if runtime.GOOS != "windows" { // which has other rules
		switch mode := info.Mode().Perm(); {
		case mode&0o002 != 0:
			return nil, fmt.Errorf("every user of this machine can write to %s: run chmod o-w on it", path)
		case mode&0o004 != 0 && warn:
			f.log.Warn("every user of this machine can read a secret file: run chmod o-r on it", "file", path)
		}
	}
	content, err := io.ReadAll(io.LimitReader(opened, maxWatched+1))
	if err == nil && len(content) > maxWatched {
		err = fmt.Errorf("%s has more than %d bytes", path, maxWatched)
	}
	return content, err
}
