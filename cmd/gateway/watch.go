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

	"fencepost/internal/metrics"
)

// watchInterval is how often files are looked at. They are few and small, so they are
// read whole: what a file system says about times is not to be relied on.
const watchInterval = 2 * time.Second

// maxWatched is the size of the largest file.
const maxWatched = 1 << 20

// file is one setting's file, and others that are of use together only.
type file struct {
	setting string
	paths   []string
	private int                           // the path of a secret, if it is not the first
	public  bool                          // everybody may read all
	apply   func(contents [][]byte) error // takes effect whole, or not at all

	seen [][sha256.Size]byte // of the contents tried last; nil if they could not be read
}

// files are read at start, and again when they have changed or at SIGHUP. What can't be
// used is told, and what was read before stays in force.
type files struct {
	log   *slog.Logger
	state *metrics.Files
	all   []*file

	cancel  context.CancelFunc
	running sync.WaitGroup
}

// add reads files for the first time.
func (f *files) add(one file) error {
	if err := f.load(&one, true); err != nil {
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
				f.look(false)
			case <-hangup:
				f.log.Info("reading files again, as SIGHUP asks")
				f.look(true)
			case <-ctx.Done():
				return
			}
		}
	})
}

// stop returns when nothing is read any more.
func (f *files) stop() {
	if f.cancel != nil {
		f.cancel()
	}
	f.running.Wait()
}

// look reads everything again; always: also what has not changed.
func (f *files) look(always bool) {
	for _, one := range f.all {
		if err := f.load(one, always); err != nil {
			f.log.Error("a file can't be used; what was read before stays in force", "setting", one.setting, "error", err)
		}
	}
}

// load reads files, and applies them if they have changed since the last attempt. An error
// is returned once for the same contents.
func (f *files) load(one *file, always bool) error {
	contents := make([][]byte, len(one.paths))
	sums := make([][sha256.Size]byte, len(one.paths))
	var err error
	for i, path := range one.paths {
		var readErr error
		contents[i], readErr = f.read(path, i == one.private && !one.public && (one.seen == nil || always))
		err = errors.Join(err, readErr)
		sums[i] = sha256.Sum256(append(contents[i], fmt.Sprint(readErr)...))
	}
	if !always && equalSums(sums, one.seen) {
		return nil
	}
	one.seen = sums
	if err == nil {
		err = one.apply(contents)
	}
	f.state.Note(one.setting, err == nil)
	return err
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

// read reads a file that only its owner, and perhaps a group, may change.
func (f *files) read(path string, warn bool) ([]byte, error) {
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
		return nil, fmt.Errorf("%s is no file", path)
	}
	if runtime.GOOS != "windows" { // which has other rules
		switch mode := info.Mode().Perm(); {
		case mode&0o002 != 0:
			return nil, fmt.Errorf("everybody may write to %s; take that away: chmod o-w", path)
		case mode&0o004 != 0 && warn:
			f.log.Warn("everybody on this machine may read a file that is not for everybody; take that away: chmod o-r", "file", path)
		}
	}
	content, err := io.ReadAll(io.LimitReader(opened, maxWatched+1))
	if err == nil && len(content) > maxWatched {
		err = fmt.Errorf("%s has more than %d bytes", path, maxWatched)
	}
	return content, err
}
