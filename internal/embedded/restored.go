package embedded

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fencepost/internal/datadir"
	"fencepost/internal/machine"
	"fencepost/internal/wal"
)

// Restored says that the store in o.Dir is a copy of an earlier time: what was granted since is forgotten. Nothing new is granted for
// longest from now on, which is to be at least as long as the longest TTL that was in use; what the copy has can be
// renewed. It returns until when. It fails as Open does, and where there is no store.
func Restored(o Options, longest time.Duration) (until time.Time, err error) {
	there, err := (&directory{dir: o.Dir}).there(wal.FilesOr(o.files))
	if err == nil && !there {
		err = fmt.Errorf("there is no store in %s", o.Dir)
	}
	if err != nil {
		return until, datadir.Explained(o.Dir, err)
	}
	s, err := Open(o)
	if err != nil {
		return until, err
	}
	err = s.decide(context.Background(), func() (wait bool) {
		s.write(machine.Loss(longest))
		s.machine.Lose(longest)
		until = s.Capabilities().WallTime(s.machine.State().Quarantine.Until)
		return true
	})
	return until, errors.Join(err, s.Close())
}
