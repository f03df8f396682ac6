package redis

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"fencepost/internal/fencing"
)

//go:embed library/*.lua
var sources embed.FS

// parts are the files of the library, in the order in which they are put together.
var parts = []string{"layout", "state", "clocks", "holders", "queue", "rules", "view", "acquire", "verbs", "fence", "gateways", "save", "mend", "run"}

// A library has two functions that do the same. Redis refuses the one that grants where
// memory is full; the other frees memory, or only reads. It runs neither of them on
// a replica, whose data is old: they do not say that they write nothing.
const (
	allowOOM = iota
	denyOOM
)

// library is the rules as Redis runs them: a library of Functions, or a script each
// where there are none.
type library struct {
	name      string
	source    string
	functions [2]string
	scripts   [2]string
	digests   [2]string // of the scripts
}

// rules is the library of this build. It is put together when a store first needs it: a gateway
// on the embedded store never does.
var rules = sync.OnceValue(newLibrary)

func newLibrary() *library {
	var body strings.Builder
	constants := constants()
	for _, part := range parts {
		b, err := sources.ReadFile("library/" + part + ".lua")
		if err != nil {
			panic(err) // it is part of the program
		}
		body.WriteString(fill(string(b), constants))
	}
	sum := sha1.Sum([]byte(librarySource("", body.String())))
	l := &library{name: "fencepost_" + hex.EncodeToString(sum[:6])}
	l.functions = [...]string{allowOOM: l.name, denyOOM: l.name + "_grants"}
	l.source = librarySource(l.name, body.String())
	for i, first := range [...]string{allowOOM: "#!lua flags=allow-oom\n", denyOOM: "#!lua\n"} {
		l.scripts[i] = first + body.String() + "return run(KEYS, ARGV)\n"
		sum := sha1.Sum([]byte(l.scripts[i])) // Redis names scripts by it
		l.digests[i] = hex.EncodeToString(sum[:])
	}
	return l
}

// librarySource returns the library of a name. The name has the digest of what it would be
// without one: whatever is changed here or in the files has another name.
func librarySource(name, body string) string {
	return "#!lua name=" + name + "\n" + body + fmt.Sprintf(
		"redis.register_function{function_name = '%s', callback = run, flags = {'allow-oom'}}\n"+
			"redis.register_function{function_name = '%s_grants', callback = run}\n", name, name)
}

// described are the texts that the library reads and writes, by what their formats are
// called.
var described = map[string]func(*codec){
	"LEASE":   func(c *codec) { usual := usualLease; c.lease(&usual) },
	"RECORD":  (*codec).record,
	"TOMB":    (*codec).tombstone,
	"END":     func(c *codec) { c.ended(&fencing.Ended{}) },
	"VIEW":    func(c *codec) { c.view(&fencing.Lock{}) },
	"GUARD":   func(c *codec) { c.guard(&guard{}) },
	"HEADER":  func(c *codec) { c.header(&header{}) },
	"OP":      func(c *codec) { c.operation(&operation{}) },
	"ARRIVAL": func(c *codec) { c.arrival(&arrivalRequest{}) },
	"REPLY":   func(c *codec) { c.reply(&replyHead{}) },
}

// constants are what stands in the library for names in capitals: the places of fields,
// the formats, how many fields they have, and what is empty of the kind; of a text with
// fields that may be left out (codec.rarely) what is usual for them, what tells whether a
// list has that, the first of the others, the format without them, and both formats with
// the byte before; and numbers that are Go's as well.
func constants() map[string]string {
	all := map[string]string{}
	for name, n := range map[string]int64{
		"PROOF_SIZE": int64(len(fencing.SecretHash{})), "NO_MODE": noMode, "EXCLUSIVE": exclusive, "SHARED": shared, "NO_SLOT": fencing.NoSlot,
		"AT_ONCE": int64(fencing.AtOnce), "AFTER_SKEW": int64(fencing.AfterSkew), "ANY_NUMBER": fencing.AnyNumber, "MAX_TOKEN": int64(fencing.MaxToken),
		"HEARTBEAT_PAGE": heartbeatPage, "MAX_BROKEN": fencing.MaxBroken, "MAX_HISTORY": fencing.MaxHistory,
		"MAX_HOLDERS_SHOWN": fencing.MaxHoldersShown, "MAX_WAITERS_SHOWN": fencing.MaxWaitersShown,
	} {
		all[name] = strconv.FormatInt(n, 10)
	}
	for name, d := range map[string]time.Duration{
		"TOMBSTONE_TTL": fencing.TombstoneTTL, "FORGET_AFTER": fencing.ForgetAfter, "MAX_FLOOR_LEAD": fencing.MaxFloorLead,
		"GATEWAY_TTL": fencing.GatewayTTL, "STALL_AFTER": fencing.StallAfter, "HEAR_INTERVAL": fencing.HearInterval,
		"REST_TTL": fencing.RestTTL, "HEARTBEAT": fencing.HeartbeatInterval, "TTL_PERIOD": fencing.TTLPeriod, "LONGEST_QUARANTINE": fencing.LongestQuarantine, "MAX_LOCK_DELAY": fencing.MaxLockDelay,
	} {
		all[name] = strconv.FormatInt(d.Microseconds(), 10)
	}
	for name, d := range map[string]time.Duration{"TOMBSTONE_MS": fencing.TombstoneTTL, "FORGET_MS": fencing.ForgetAfter} {
		all[name] = fmt.Sprintf("'%d'", d.Milliseconds())
	}
	for name, text := range letters {
		all[name] = "'" + text + "'"
	}
	all["NO_PROOF"] = "'" + strings.Repeat(`\0`, len(fencing.SecretHash{})) + "'"
	for what, describe := range described {
		c := codec{mode: describing}
		describe(&c)
		asUsual := make([]string, c.rare)
		for i, name := range c.names {
			if all[name] = strconv.Itoa(i + 1); i < c.rare {
				asUsual[i] = "f[" + all[name] + "] == " + c.values[i]
			}
		}
		size := len(c.names)
		format := func(first string, kinds []string) string { return "'>" + first + strings.Join(kinds, "") + "'" }
		all[what+"_FORMAT"], all[what+"_SIZE"] = format("", c.kinds), strconv.Itoa(size)
		all[what+"_EMPTY"], all[what+"_TEXT"] = "{"+strings.Join(c.values, ", ")+"}", strconv.Itoa(size+1)
		if c.rare == 0 {
			continue
		}
		short := c.kinds[c.rare:]
		all[what+"_SHORT"], all[what+"_COMMON"], all[what+"_USUAL"] = format("", short), strconv.Itoa(c.rare+1), strings.Join(c.values[:c.rare], ", ")
		all["WRITE_"+what], all["WRITE_"+what+"_SHORT"] = format("B", c.kinds), format("B", short)
		all[what+"_AS_USUAL"] = "function(f) return " + strings.Join(asUsual, " and ") + " end"
	}
	return all
}

// capitals finds names in capitals, and what they are not: comments and quoted texts.
var capitals = regexp.MustCompile(`--.*|'[^'\n]*'|redis\.[A-Z_]+|\b[A-Z][A-Z_]+\b`)

// fill puts constants into a source. Every name in capitals has to be one.
func fill(source string, constants map[string]string) string {
	return capitals.ReplaceAllStringFunc(source, func(found string) string {
		switch found[0] {
		case '-', '\'', 'r':
			return found
		}
		value, known := constants[found]
		if !known {
			panic("redis: the library has no constant " + found)
		}
		return value
	})
}
