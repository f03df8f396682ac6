package redis

import (
	"strconv"

	"fencepost/internal/fencing"
)

// The names are spread over this many hash tags. It is written down in Redis with the
// data: another number would look for a name where it is not.
const (
	clusterPartitions = 256 // so that masters share them evenly
	alonePartitions   = 1   // of one Redis, and one with Sentinels
)

// layoutVersion is that of keys and records, and of what they mean. It is written down with the number of partitions in the guard of
// each. Gateways with one layout decide beside each other, each by its own library: whoever changes what a field means, or who may hold
// together, raises it.
const layoutVersion = "10"

// maxHistories is how many names have a history, in all partitions together.
const maxHistories = 16384

// keyspace holds the keys of a partition that Go names. The library says what is behind
// each (library/layout.lua).
type keyspace struct {
	prefix    string
	token     string
	expiry    string
	names     string
	never     any // as that is how arguments travel: a string would be boxed at every use
	guard     string
	libraries string // of the first partition of a node: when somebody last said that a library is used
	acked     string // written before replicas are asked what they have
	reaper    string // of the first partition of a node: the handle that reaps there now; lives reaperTTL
}

func newKeyspaces(partitions int) []keyspace {
	all := make([]keyspace, partitions)
	for n := range all {
		prefix := "fencepost:{" + strconv.Itoa(n) + "}:"
		all[n] = keyspace{
			prefix: prefix, token: prefix + "token", expiry: prefix + "expiry", names: prefix + "names",
			never: prefix + "never", guard: prefix + "guard", acked: prefix + "acked", libraries: prefix + "libraries", reaper: prefix + "reaper",
		}
	}
	return all
}

func (k *keyspace) lock(name fencing.Name) string { return k.prefix + "lock:" + string(name) }

// hashOf returns FNV-1a of the bytes of a name.
func hashOf(name fencing.Name) uint32 {
	hash := uint32(2166136261)
	for i := 0; i < len(name); i++ {
		hash ^= uint32(name[i])
		hash *= 16777619
	}
	return hash
}

// partitionOf returns the partition of a name among so many.
func partitionOf(name fencing.Name, partitions int) int {
	return int(hashOf(name) % uint32(partitions))
}
