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
// longest, which is to be at least as long as the longest TTL that was in use, from the next start on, whatever the clock shows
// now; what the copy has can be renewed. It returns for how long: more than longest, if an earlier call said so. It fails as Open
// does, where there is no store, and where the wall clock is known to be wrong: nobody would know how old the copy is.
func Restored(o Options, longest time.Duration) (lasts time.Duration, err error) {
	there, err := (&directory{dir: o.Dir}).there(wal.FilesOr(o.files))
	if err == nil && !there {
		err = fmt.Errorf("there is no store in %s", o.Dir)
	}
	if err == nil {
		err = machine.WrongClock(newClock(&o).wall())
	}
	if err != nil {
		return 0, datadir.Explained(o.Dir, err)
	}
	s, err := Open(o)
	if err != nil {
		return 0, err
	}
	err = s.decide(context.Background(), func() (wait bool) {
		s.write(machine.Loss(longest))
		s.machine.Lose(longest, true)
		lasts = s.machine.State().Quarantine.Again
		return true
	})
	return lasts, errors.Join(err, s.Close())
}
