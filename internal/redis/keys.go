package redis

import (
	"strconv"

	"fencepost/internal/fencing"
)

// partitions is the number of hash tags the names are spread over. It is
// written down in Redis with the data: another number would look for a name
// where it is not.
const (
	partitions     = 256
	partitionsText = "256"
)

// format is the version of the layout of keys and records. It is written down
// with the number of partitions in the guard of each.
const format = "3"

// keyspace holds the keys that belong to one partition. They are kept as any
// because that is how arguments travel: a string would be boxed at every use.
// The scripts' prelude says what is behind each key.
type keyspace struct {
	lockPrefix  string
	token       any
	expiry      any
	names       any
	endedPrefix string
	never       any
	guard       string
	acked       string // written before replicas are asked what they have
	reaper      string // of the first partition of a node: the handle that reaps there now; lives reaperTTL
}

func newKeyspaces() *[partitions]keyspace {
	var all [partitions]keyspace
	for n := range all {
		prefix := "fencepost:{" + strconv.Itoa(n) + "}:"
		all[n] = keyspace{
			lockPrefix: prefix + "lock:", token: prefix + "token", expiry: prefix + "expiry",
			names: prefix + "names", endedPrefix: prefix + "ended:", never: prefix + "never", guard: prefix + "guard", acked: prefix + "acked",
			reaper: prefix + "reaper",
		}
	}
	return &all
}

func (k *keyspace) lock(name fencing.Name) string { return k.lockPrefix + string(name) }

// ended returns the key of a tombstone.
func (k *keyspace) ended(name fencing.Name, lease fencing.LeasePublic) string {
	return k.endedPrefix + string(name) + ":" + string(lease)
}

// noLease stands for the lease in the tombstone's key of a verb that is about
// none.
const noLease fencing.LeasePublic = "00000000000000000000000000"

// partitionOf returns the partition of a name: FNV-1a of its bytes modulo
// partitions.
func partitionOf(name fencing.Name) int {
	hash := uint32(2166136261)
	for i := 0; i < len(name); i++ {
		hash ^= uint32(name[i])
		hash *= 16777619
	}
	return int(hash % partitions)
}
