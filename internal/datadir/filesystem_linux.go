package datadir

import (
	"fmt"
	"syscall"

	"fencepost/internal/fencing"
)

// The numbers by which Linux tells file systems apart: statfs(2).
var (
	localFileSystems = map[int64]string{
		0xef53: "ext4", 0x58465342: "xfs", 0x9123683e: "btrfs", 0x2fc12fc1: "zfs", 0xf2f52010: "f2fs", 0xca451a4e: "bcachefs",
	}
	volatileFileSystems = map[int64]string{0x01021994: "tmpfs", 0x858458f6: "ramfs"}
	remoteFileSystems   = map[int64]string{
		0x6969: "NFS", 0xff534d42: "CIFS", 0xfe534d42: "SMB", 0x00c36400: "Ceph", 0x01021997: "9p", 0x5346414f: "AFS",
	}
)

const (
	overlay = 0x794c7630
	fuse    = 0x65735546
)

// FileSystem says what kind of file system a directory is on, or would be: whether that keeps what it is told.
func FileSystem(dir string) []fencing.Finding {
	var at syscall.Statfs_t
	if err := syscall.Statfs(existing(dir), &at); err != nil {
		return nil
	}
	return []fencing.Finding{findingOfFileSystem(int64(at.Type))} // whose type differs by architecture
}

func findingOfFileSystem(kind int64) fencing.Finding {
	kind &= 0xffffffff // some are negative where the field has 32 bits
	if name, ok := volatileFileSystems[kind]; ok {
		return volatile(name)
	}
	if name, ok := remoteFileSystems[kind]; ok {
		return remote(name)
	}
	f := fencing.Finding{Check: "filesystem", OK: true, Detail: localFileSystems[kind]}
	switch {
	case kind == overlay:
		return fencing.Finding{
			Check: "filesystem", Promise: "P1", Remedy: "mount a volume at FENCEPOST_DATA_DIR",
			Detail: "it is in the container's own layer: all leases are lost with the container",
		}
	case kind == fuse:
		f.Detail = "it is a FUSE file system: only its implementation decides whether flushed data is on disk"
	case f.Detail == "":
		f.Detail = fmt.Sprintf("it is of an unknown kind (%#x)", kind)
	}
	return f
}
