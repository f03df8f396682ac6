package redis

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"fencepost/internal/fencing"
)

// leastMajor is the first major version that the promises are tested with.
const leastMajor = 7

func (c *circumstances) role(f *facts) fencing.Finding {
	if role := f.info["role"]; role != "master" {
		remedy := otherMaster
		if c.failover {
			remedy = "nothing, if a fail-over is under way; otherwise find out which server is the master"
		}
		return c.finding(checkRole, false, "P1, P2", "this is a replica: it grants nothing, and loses what is written to it", remedy)
	}
	return c.fine(checkRole, "this is a master")
}

func (c *circumstances) version(f *facts) fencing.Finding {
	version := f.info["redis_version"]
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err != nil || n < leastMajor {
		return c.finding(checkVersion, false, "P1, P2",
			fmt.Sprintf("this is Redis %s; the promises are tested with 7.0 and later", version), "use Redis 7.0 or later")
	}
	return c.fine(checkVersion, "this is Redis "+version)
}

// clockOf goes by what the clocks differ for certain.
func (c *circumstances) clockOf(f *facts) fencing.Finding {
	if certain := max(f.aheadLeast, -f.aheadMost); certain > c.maxSkew {
		side := "ahead of"
		if f.aheadMost < 0 {
			side = "behind"
		}
		return c.finding(checkClock, false, "P1, P2",
			fmt.Sprintf("its clock is %s %s this gateway's, and %s is allowed: nothing is granted, and no lease is treated as expired",
				short(certain), side, short(c.maxSkew)),
			"synchronise both clocks, as by chrony or systemd-timesyncd")
	}
	return c.fine(checkClock, fmt.Sprintf("its clock and this gateway's differ by at most %s", short(max(f.aheadMost, -f.aheadLeast))))
}

func (c *circumstances) eviction(f *facts) fencing.Finding {
	policy, evicted := f.info["maxmemory_policy"], f.info["evicted_keys"]
	history := ""
	if evicted != "" && evicted != "0" {
		history = fmt.Sprintf("; %s keys were dropped since it started, perhaps with leases", evicted)
	}
	switch {
	case policy == "noeviction":
		return c.fine(checkEviction, "no key is dropped to make room"+history)
	case f.info["maxmemory"] == "0":
		return c.fine(checkEviction, "no key is dropped to make room, as memory has no limit"+history)
	}
	return c.finding(checkEviction, false, "P1",
		fmt.Sprintf("when memory is full, leases are dropped while their holders still believe they have them: maxmemory-policy is %s%s", policy, history),
		"maxmemory-policy noeviction")
}

// persistence judges what a restart forgets. Quarantine bounds what that does
// (it waits until lost leases have run out), so the words are about the rest.
func (c *circumstances) persistence(f *facts) fencing.Finding {
	const covered = "; only a quarantine keeps them from being granted again meanwhile"
	worse := func(detail, remedy string) fencing.Finding {
		return c.finding(checkPersistence, false, "P1", detail, remedy)
	}
	fsync, known := f.config["appendfsync"]
	switch save := f.config["save"]; {
	case f.info["aof_enabled"] == "1" && fsync == "always" && f.config["no-appendfsync-on-rewrite"] == "yes" && !c.failover:
		return worse("a power loss while the AOF is rewritten forgets up to 30 s of grants: no-appendfsync-on-rewrite is yes"+covered,
			"no-appendfsync-on-rewrite no")
	case f.info["aof_enabled"] == "1" && fsync == "always":
		return c.fine(checkPersistence, "grants are in the AOF, on disk, before they are answered")
	case f.info["aof_enabled"] == "1" && !known:
		return worse("there is an AOF, but the user may not run CONFIG GET: whether a power loss forgets the last grants can't be told",
			"ACL SETUSER <user> +config|get")
	case f.info["aof_enabled"] == "1" && c.failover && fsync != "no":
		return c.fine(checkPersistence, fmt.Sprintf("a power loss forgets about the last second of grants, as a fail-over may: appendfsync is %s%s", fsync, covered))
	case f.info["aof_enabled"] == "1":
		return worse(fmt.Sprintf("a power loss forgets about the last second of grants, or more: appendfsync is %s%s", fsync, covered),
			"appendfsync always")
	case known && save == "":
		return worse("a restart forgets all leases: nothing is written to disk"+covered, "appendonly yes, appendfsync always")
	}
	return worse("a restart forgets the leases that were granted since the last snapshot: there is no AOF"+covered, "appendonly yes, appendfsync always")
}

// disk judges the last attempts to write. Without an AOF snapshots are all that a
// restart has.
func (c *circumstances) disk(f *facts) fencing.Finding {
	failed := func(field string) bool { status := f.info[field]; return status != "" && status != "ok" }
	aof := f.info["aof_enabled"] == "1"
	switch {
	case aof && failed("aof_last_write_status"):
		return c.finding(checkDisk, false, "P1", "the last write to the AOF failed: nothing is granted until one succeeds",
			"make room on its disk, or repair it; its log says what is wrong")
	case failed("rdb_last_bgsave_status"):
		promise := "P1"
		if aof {
			promise = ""
		}
		return c.finding(checkDisk, false, promise,
			"the last snapshot failed: unless stop-writes-on-bgsave-error is no, nothing is granted until one succeeds",
			"make room on its disk or in its memory; its log says what is wrong")
	case aof && failed("aof_last_bgrewrite_status"):
		return c.finding(checkDisk, false, "", "the last rewrite of the AOF failed, so it grows until the disk is full",
			"make room on its disk or in its memory; its log says what is wrong")
	}
	return c.fine(checkDisk, "its last writes to disk went well")
}

func (c *circumstances) replicas(f *facts) fencing.Finding {
	online := 0
	for i := range 1000 {
		replica, ok := f.info["slave"+strconv.Itoa(i)]
		if !ok {
			break
		}
		if strings.Contains(replica, "state=online") {
			online++
		}
	}
	connected := max(online, atLeast(f.info["connected_slaves"])) // one that catches up may be promoted as well
	least, known := f.config["min-replicas-to-write"]
	_, reported := f.info["min_slaves_good_slaves"] // there only where there is a minimum
	guarded := known && least != "0" && f.config["min-replicas-max-lag"] != "0" || !known && reported
	switch {
	case f.info["role"] != "master":
		return c.fine(checkReplicas, "a replica needs none")
	case online < c.acks:
		return c.finding(checkReplicas, false, "",
			fmt.Sprintf("%s, and a grant needs %d to acknowledge it: every acquire is answered 503", count(online), c.acks),
			"bring the replicas back, or lower FENCEPOST_REDIS_REPLICA_ACKS")
	case online < atLeast(least):
		return c.finding(checkReplicas, false, "",
			fmt.Sprintf("%s, and min-replicas-to-write is %s: everything that writes is answered 503, renewals too", count(online), least),
			"bring the replicas back")
	case !guarded && (online > 0 || c.failover):
		return c.finding(checkReplicas, false, "P1",
			count(online)+"; a master that is cut off from all of them keeps granting while one is promoted: there is no min-replicas-to-write",
			"min-replicas-to-write 1, min-replicas-max-lag 3")
	case !known && c.sentinel && online > 0 && (connected+1)/2 > 1: // 1 is the least minimum
		return c.finding(checkReplicas, false, "P1",
			count(online)+", but the user may not run CONFIG GET: whether a network that is cut in two may leave a master on either side can't be told",
			"ACL SETUSER <user> +config|get")
	case known && c.sentinel && atLeast(least) < (connected+1)/2:
		return c.finding(checkReplicas, false, "P1",
			fmt.Sprintf("%s, and min-replicas-to-write is %s: a network that is cut in two may leave a master on either side, and both grant", count(connected), least),
			fmt.Sprintf("min-replicas-to-write %d, half of the replicas, rounded up", (connected+1)/2))
	case online == 0 && c.failover:
		return c.finding(checkReplicas, false, "", "no replica follows this master: none can take its place", "add a replica, or bring it back")
	case online == 0:
		return c.fine(checkReplicas, "it has no replicas")
	}
	return c.fine(checkReplicas, count(online))
}

// atLeast reads a number of replicas; 0 if it is not known.
func atLeast(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}

func count(replicas int) string {
	switch replicas {
	case 0:
		return "no replica follows this master"
	case 1:
		return "1 replica follows this master"
	}
	return fmt.Sprintf("%d replicas follow this master", replicas)
}

// short rounds a difference for people: up, for it is told as a bound.
func short(d time.Duration) string {
	unit := time.Millisecond
	if d >= 10*time.Second {
		unit = time.Second
	}
	return (max(d, 0) + unit - 1).Truncate(unit).String()
}
