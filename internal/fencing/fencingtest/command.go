package fencingtest

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"fencepost/internal/fencing"
)

const defaultTTL = 30 * time.Second

// command is one line of a case. README.md in testdata describes the language.
type command struct {
	where  string // file:line, or the number of the step in a history
	verb   string
	handle int // 0 or 1; written as via=1 (left out) and via=2

	name        fencing.Name
	lease       string // label
	stamp       string // label; empty is one that no other command has
	owner       string
	metadata    map[string]string
	ttl         time.Duration // 0 is left out
	maxHold     time.Duration
	lockDelay   time.Duration
	mode        fencing.Mode // empty is left out: exclusive, or as it is
	permits     int          // 0 is left out
	hold        int          // 0 is left out
	wait        time.Duration
	keep        bool
	again       bool
	attach      bool
	refused     bool // takeback
	unknown     bool // takeback
	waiters     int  // max_waiters
	setName     string
	token       string // label of the token to break, to claim or to propose; or newToken
	back        int    // with no label: the grant on the name, 1 for the last, 2 for the one before
	above       int    // claim, acquire, admit and judge: by how much more than that
	slot        int    // admit
	claimed     bool   // admit and judge: only claimed tokens count; acquire: a majority has what is proposed
	intent      time.Duration
	breakReason string
	notice      time.Duration // break
	linger      time.Duration // release, takeback
	left        bool          // takeback
	epoch       int64         // acquire, renew, release, takeback

	holders int // inspect and history: how many to show; 0 is left out

	list   fencing.ListRequest
	walk   bool // list all pages
	limit  int  // of expire, acquire and renew
	repeat bool // expire until nothing is due

	names []fencing.Name // of heartbeat: all that were used so far

	by time.Duration // of advance, skew and clock

	arrival fencing.Arrival
	until   time.Duration // of arrive: from now

	want *expectation // nil: only compared with Step
}

// arguments are the keys that each verb takes; "name" stands for the word after
// the verb, "*" marks those that must be given.
var arguments = map[string]string{
	"acquire":   "name* lease* mode limit permits hold ttl max_hold lock_delay owner meta wait keep again attach max_waiters set intent propose claimed stamp epoch via",
	"renew":     "name* lease* mode limit permits ttl owner meta stamp epoch via",
	"release":   "name* lease* hold stamp linger epoch via",
	"confirm":   "name* lease* stamp* via",
	"leave":     "name* lease* stamp* via",
	"takeback":  "name* lease* stamp* refused unknown left linger epoch via",
	"break":     "name* token* notice break_reason via",
	"evict":     "name* lease* break_reason via",
	"claim":     "name* lease* token* via",
	"admit":     "name* token* slot claimed via",
	"judge":     "name* token* claimed via",
	"arrive":    "name* server* longest least most until lossless lost late via",
	"inspect":   "name* holders via",
	"history":   "name* holders via",
	"list":      "prefix query mode held_for ends_in waiting attached unrenewed count after limit walk via",
	"expire":    "limit repeat via",
	"heartbeat": "via",
	"heard":     "via",
	"stats":     "via",
	"advance":   "by*",
	"skew":      "handle* by*",
	"clock":     "by*",
	"heed":      "handle*",
	"flush":     "",
}

// outcomeless are the verbs that move the world and have no outcome.
var outcomeless = []string{"advance", "skew", "clock", "heed", "flush"}

// flags are the arguments without a value.
var flags = []string{"walk", "repeat", "keep", "again", "attach", "refused", "unknown", "left", "lossless", "lost", "late", "claimed", "waiting", "attached", "unrenewed", "count"}

var (
	labelForm = regexp.MustCompile(`^[A-Z][0-9]*'?$`)
	tokenForm = regexp.MustCompile(`^#[0-9]+$`)
	claimForm = regexp.MustCompile(`^(#[0-9]+|new|now)([+-][0-9]+)?$`)
	stampForm = regexp.MustCompile(`^[a-z][a-z0-9]*$`)
)

func parseCommand(where, line string) (*command, error) {
	words, err := splitWords(line)
	if err != nil {
		return nil, err
	}
	c := &command{where: where, verb: words[0], slot: fencing.NoSlot}
	takes, ok := arguments[c.verb]
	if !ok {
		return nil, fmt.Errorf("no command %q; there are %s", c.verb, strings.Join(slices.Sorted(maps.Keys(arguments)), " "))
	}
	words = words[1:]
	given := map[string]bool{}
	for _, key := range []string{"name", "handle", "by"} { // these come without key=
		if !strings.Contains(takes, key+"*") {
			continue
		}
		if len(words) == 0 {
			return nil, fmt.Errorf("%s lacks its %s", c.verb, key)
		}
		if err := c.set(item{key: key, op: "=", value: words[0]}); err != nil {
			return nil, err
		}
		given[key], words = true, words[1:]
	}
	for _, word := range words {
		it, err := parseItem(word)
		if err != nil {
			return nil, err
		}
		key, _, _ := strings.Cut(it.key, ".")
		if !slices.Contains(strings.Fields(strings.ReplaceAll(takes, "*", "")), key) {
			return nil, fmt.Errorf("%s takes no %q; it takes %s", c.verb, key, takes)
		}
		if given[it.key] {
			return nil, fmt.Errorf("%s is given twice", it.key)
		}
		given[it.key] = true
		if err := c.set(it); err != nil {
			return nil, err
		}
	}
	for _, key := range strings.Fields(takes) {
		if key, must := strings.CutSuffix(key, "*"); must && !given[key] {
			return nil, fmt.Errorf("%s lacks %s=", c.verb, key)
		}
	}
	return c, nil
}

func (c *command) set(it item) (err error) {
	if flag := slices.Contains(flags, it.key); flag != (it.op == "") || it.op != "" && it.op != "=" {
		return fmt.Errorf("%s%s is not understood", it.key, it.op)
	}
	key, sub, _ := strings.Cut(it.key, ".")
	switch key {
	case "name":
		c.name, err = fencing.ParseName(it.value)
	case "lease":
		c.lease, err = it.matching(labelForm)
	case "stamp":
		c.stamp, err = it.matching(stampForm)
	case "token":
		if c.verb != "break" {
			return c.setClaim(it)
		}
		c.token, err = it.matching(tokenForm)
	case "propose":
		return c.setClaim(it)
	case "slot":
		c.slot, err = strconv.Atoi(it.value)
	case "claimed":
		c.claimed = true
	case "break_reason":
		c.breakReason = it.value
	case "notice":
		c.notice, err = parseDuration(it.value)
	case "linger":
		c.linger, err = parseDuration(it.value)
	case "intent":
		c.intent, err = parseDuration(it.value)
	case "server":
		c.arrival.Server = it.value
	case "longest":
		c.arrival.Longest, err = parseDuration(it.value)
	case "least":
		c.arrival.Least, err = parseDuration(it.value)
	case "most":
		c.arrival.Most, err = parseDuration(it.value)
	case "until":
		c.until, err = parseDuration(it.value)
	case "lossless":
		c.arrival.Lossless = true
	case "lost":
		c.arrival.Lost = true
	case "late":
		c.arrival.Late = true
	case "owner":
		c.owner = it.value
	case "meta":
		if c.metadata == nil {
			c.metadata = map[string]string{}
		}
		if it.key != key {
			c.metadata[sub] = it.value
		}
	case "ttl":
		c.ttl, err = parseDuration(it.value)
	case "max_hold":
		c.maxHold, err = parseDuration(it.value)
	case "lock_delay":
		c.lockDelay, err = parseDuration(it.value)
	case "mode":
		c.mode = fencing.Mode(it.value)
		c.list.Mode = c.mode
		if c.mode != fencing.ModeExclusive && c.mode != fencing.ModeShared {
			return fmt.Errorf("the modes are exclusive and shared, not %q", it.value)
		}
	case "permits":
		c.permits, err = strconv.Atoi(it.value)
	case "hold":
		c.hold, err = strconv.Atoi(it.value)
	case "wait":
		c.wait, err = parseDuration(it.value)
	case "keep":
		c.keep = true
	case "again":
		c.again = true
	case "attach":
		c.attach = true
	case "refused":
		c.refused = true
	case "unknown":
		c.unknown = true
	case "left":
		c.left = true
	case "epoch":
		c.epoch, err = strconv.ParseInt(it.value, 10, 64)
	case "max_waiters":
		c.waiters, err = strconv.Atoi(it.value)
	case "set":
		c.setName = it.value
	case "by":
		c.by, err = parseDuration(it.value)
		if err == nil && c.verb == "advance" && c.by < 0 {
			err = fmt.Errorf("the time never goes backwards")
		}
	case "via", "handle":
		if it.value != "1" && it.value != "2" {
			return fmt.Errorf("the handles are 1 and 2, not %q", it.value)
		}
		c.handle = int(it.value[0] - '1')
	case "prefix":
		c.list.Prefix = it.value
	case "query":
		c.list.Query = it.value
		if label, ok := strings.CutPrefix(it.value, "lease:"); ok {
			c.list.Query = string(leaseOf(label).Public())
		}
	case "held_for":
		c.list.HeldFor, err = parseDuration(it.value)
	case "ends_in":
		c.list.EndsIn, err = parseDuration(it.value)
	case "waiting":
		c.list.Waiting = true
	case "attached":
		c.list.Attached = true
	case "unrenewed":
		c.list.Unrenewed = true
	case "count":
		c.list.Count = true
	case "after":
		c.list.After = fencing.Name(it.value)
	case "limit":
		c.limit, err = strconv.Atoi(it.value)
		c.list.Limit = c.limit
	case "holders":
		c.holders, err = strconv.Atoi(it.value)
	case "walk":
		c.walk = true
	case "repeat":
		c.repeat = true
	}
	return err
}

// newToken is one above the highest token of the name that was ever seen.
const newToken = "new"

// nowToken is the store's clock.
const nowToken = "now"

// setClaim reads the token of a claim, or of an admission: a label, new or now, and by how much more.
func (c *command) setClaim(it item) error {
	value, err := it.matching(claimForm)
	if err != nil {
		return err
	}
	c.token = value
	if at := strings.IndexAny(value, "+-"); at > 0 {
		c.token = value[:at]
		c.above, err = strconv.Atoi(value[at:])
	}
	return err
}

// tokenText writes the token of a claim, or of an admission.
func (c *command) tokenText() string {
	if c.above == 0 || c.token == "" {
		return c.token
	}
	return fmt.Sprintf("%s%+d", c.token, c.above)
}

func (it item) matching(form *regexp.Regexp) (string, error) {
	if !form.MatchString(it.value) {
		return "", fmt.Errorf("%s=%s must match %s", it.key, it.value, form)
	}
	return it.value, nil
}

// stampLabel returns the label of the stamp that an acquire bears.
func (c *command) stampLabel() string { return cmp.Or(c.stamp, c.where) }

// String returns the command as it is written in a case. The token of a break is
// written by its label: see comparison.tokenLabel.
func (c *command) String() string {
	b := &strings.Builder{}
	b.WriteString(c.verb)
	word := func(key, value string) {
		if value != "" {
			fmt.Fprintf(b, " %s=%s", key, quote(value))
		}
	}
	if c.name != "" {
		b.WriteString(" " + string(c.name))
	}
	switch c.verb {
	case "advance", "clock":
		return b.String() + " " + short(c.by)
	case "skew":
		return fmt.Sprintf("%s %d %s", c.verb, c.handle+1, short(c.by))
	case "heed":
		return fmt.Sprintf("%s %d", c.verb, c.handle+1)
	}
	word("lease", c.lease)
	if c.verb != "acquire" {
		word("token", c.tokenText())
	}
	if c.verb == "admit" && c.slot != fencing.NoSlot {
		fmt.Fprintf(b, " slot=%d", c.slot)
	}
	if c.claimed {
		b.WriteString(" claimed")
	}
	word("mode", string(c.mode))
	number := func(key string, n int) {
		if n != 0 {
			fmt.Fprintf(b, " %s=%d", key, n)
		}
	}
	if c.verb != "list" && c.verb != "expire" {
		number("limit", c.limit)
	}
	number("permits", c.permits)
	number("holders", c.holders)
	number("hold", c.hold)
	span := func(key string, d time.Duration) {
		if d != 0 {
			word(key, short(d))
		}
	}
	span("ttl", c.ttl)
	span("max_hold", c.maxHold)
	span("lock_delay", c.lockDelay)
	word("owner", c.owner)
	if c.metadata != nil && len(c.metadata) == 0 {
		b.WriteString(` meta=""`)
	}
	for _, key := range slices.Sorted(maps.Keys(c.metadata)) {
		fmt.Fprintf(b, " meta.%s=%s", key, quote(c.metadata[key]))
	}
	span("wait", c.wait)
	if c.keep {
		b.WriteString(" keep")
	}
	if c.again {
		b.WriteString(" again")
	}
	if c.attach {
		b.WriteString(" attach")
	}
	number("max_waiters", c.waiters)
	word("set", c.setName)
	span("linger", c.linger)
	span("intent", c.intent)
	if c.verb == "acquire" {
		word("propose", c.tokenText())
	}
	span("notice", c.notice)
	word("break_reason", c.breakReason)
	word("server", c.arrival.Server)
	span("longest", c.arrival.Longest)
	span("least", c.arrival.Least)
	span("most", c.arrival.Most)
	span("until", c.until)
	if c.arrival.Lossless {
		b.WriteString(" lossless")
	}
	if c.arrival.Lost {
		b.WriteString(" lost")
	}
	if c.arrival.Late {
		b.WriteString(" late")
	}
	word("stamp", c.stamp)
	number("epoch", int(c.epoch))
	if c.refused {
		b.WriteString(" refused")
	}
	if c.unknown {
		b.WriteString(" unknown")
	}
	if c.left {
		b.WriteString(" left")
	}
	word("prefix", c.list.Prefix)
	word("query", c.list.Query)
	span("held_for", c.list.HeldFor)
	span("ends_in", c.list.EndsIn)
	if c.list.Waiting {
		b.WriteString(" waiting")
	}
	if c.list.Attached {
		b.WriteString(" attached")
	}
	if c.list.Unrenewed {
		b.WriteString(" unrenewed")
	}
	if c.list.Count {
		b.WriteString(" count")
	}
	word("after", string(c.list.After))
	if c.verb == "list" || c.verb == "expire" {
		number("limit", c.limit)
	}
	if c.walk {
		b.WriteString(" walk")
	}
	if c.repeat {
		b.WriteString(" repeat")
	}
	if c.handle == 1 {
		b.WriteString(" via=2")
	}
	return b.String()
}
