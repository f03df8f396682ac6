package machine

import "runtime/debug"

// manyNames is with how many names and ended leases a start gives back the memory that it needs no more: of a million that is some
// 0.3 GB, for a second of CPU.
const manyNames = 100_000

// GiveBack gives the memory back to the system that a start has used and needs no more, where that may be much.
func (m *Machine) GiveBack() {
	if len(m.state.Records)+len(m.state.Tombstones) >= manyNames {
		debug.FreeOSMemory()
	}
}
