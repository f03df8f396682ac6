package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Explained adds to an error of the file system about a data directory what it is
// about and what to change. Other errors it returns as they are.
func Explained(dir string, err error) error {
	path, making := dir, false
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		path, making = at.Path, at.Op == "mkdir"
	}
	path, refused := filepath.Abs(path)
	dir, unknown := filepath.Abs(dir)
	if refused != nil || unknown != nil {
		return err
	}
	link := path
	path = existing(path)
	const another = "name another directory in FENCEPOST_DATA_DIR"
	switch {
	case errors.Is(err, fs.ErrPermission):
		access, change := access(dir, path)
		return fmt.Errorf("%w: %s; %s, or %s", err, access, change, another)
	case errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w: %s is not a directory; move it away, or %s", err, path, another)
	case making && errors.Is(err, fs.ErrExist): // what os.MkdirAll says of one
		return fmt.Errorf("%w: %s is a symbolic link, and what it leads to is not there; make or mount that, or %s", err, link, another)
	case making && errors.Is(err, fs.ErrNotExist): // as /proc, which has what the kernel puts there
		return fmt.Errorf("%w: the file system of %s takes no new directories; %s", err, path, another)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: the file system of %s can't be written; mount it so that it can, or %s", err, path, another)
	case errors.Is(err, ErrNoRoom):
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: there is no room for %s (FENCEPOST_DATA_DIR)%s; free at least %d MiB", err, dir, leftFor(dir), leastSpace>>20)
	}
	return err
}

// access says who may do what with path, which is dir or in it or above it, and how
// this process could.
func access(dir, path string) (access, change string) {
	info, err := os.Stat(path)
	if err != nil {
		return path + " can't be read", "give this user access to " + dir
	}
	self := os.Geteuid()
	owner, known := ownerOf(info)
	access = fmt.Sprintf("%s has mode %s (%#o), and this process runs as %s", path, info.Mode(), info.Mode().Perm(), userName(self))
	if known {
		access = fmt.Sprintf("%s belongs to %s with mode %s (%#o), and this process runs as %s",
			path, userName(owner), info.Mode(), info.Mode().Perm(), userName(self))
	}
	inside := path == dir || strings.HasPrefix(path, dir+string(filepath.Separator))
	switch {
	case !inside:
		change = fmt.Sprintf("make the directory for it (as root: mkdir -p %[1]s && chown %[2]d %[1]s)", dir, self)
	case !known || owner != self:
		change = fmt.Sprintf("give it the directory (as root: chown -R %d %s)", self, dir)
	case info.Mode().Perm()&0o600 != 0o600 || info.IsDir() && info.Mode().Perm()&0o100 == 0:
		change = "allow it (chmod -R u+rwX " + dir + ")"
	default: // a directory between, an immutable file, a rule of the system
		change = "the mode allows it: look at the directories above, at lsattr and at what SELinux or AppArmor forbid"
	}
	return access, change
}

func userName(id int) string {
	number := strconv.Itoa(id)
	if u, err := user.LookupId(number); err == nil {
		return fmt.Sprintf("%s (user %s)", u.Username, number)
	}
	return "user " + number
}
