package redis

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"strings"
)

//go:embed scripts/*.lua
var sources embed.FS

// script is a verb as Redis runs it.
type script struct {
	index  int
	source any // a string, boxed once, as are the others
	sha    any
	argv   func(*command) []any // the arguments that differ by verb, as places in the command
}

// The scripts, one a verb.
var (
	acquireScript   = newRuleScript(0, "acquire", acquireArgs, "guard")
	renewScript     = newRuleScript(1, "renew", renewArgs, "own", "guard")
	releaseScript   = newRuleScript(2, "release", claimArg, "own")
	confirmScript   = newRuleScript(3, "confirm", claimArg)
	leaveScript     = newRuleScript(4, "leave", claimArg)
	takeBackScript  = newRuleScript(5, "takeback", claimArg)
	breakScript     = newRuleScript(6, "break", claimArg)
	claimScript     = newRuleScript(7, "claim", claimTokenArgs, "own")
	expireScript    = newRuleScript(8, "expire", noArgs)
	inspectScript   = newScript(9, "inspect", shownArgs, "prelude", "words", "gateways", "holders", "show")
	historyScript   = newScript(10, "history", shownArgs, "prelude", "words", "gateways", "holders", "show")
	listScript      = newScript(11, "list", shownArg, "prelude", "words", "gateways", "holders", "show")
	heartbeatScript = newScript(12, "heartbeat", mostArg, "prelude", "words", "gateways")
	checkScript     = newScript(13, "check", noArgs, "prelude", "words")
	arriveScript    = newScript(14, "arrive", arriveArgs, "prelude", "words", "guard")
)

const scriptCount = 15

func acquireArgs(c *command) []any    { return []any{&c.claim, &c.ttl, &c.tail} }
func renewArgs(c *command) []any      { return []any{&c.claim, &c.ttl, &c.mode} }
func claimArg(c *command) []any       { return []any{&c.claim} }
func claimTokenArgs(c *command) []any { return []any{&c.claim, &c.tail} }
func arriveArgs(c *command) []any     { return []any{&c.claim, &c.tail} }
func shownArgs(c *command) []any      { return []any{&c.shown, &c.most} }
func shownArg(c *command) []any       { return []any{&c.shown} }
func mostArg(c *command) []any        { return []any{&c.most} }
func noArgs(*command) []any           { return nil }

// richParts make rich(), with the verb's own part behind them.
var richParts = []string{
	"words", "guard", "lost", "gateways", "holders", "rich_record", "rich_holders", "rich_queue", "rich_grant", "rich_reply", "rich_own",
}

// richHead begins rich() with what the parts that stand outside of it too expect.
const richHead = `local function rich(now, now_text, skewed, stored)
local call, sub, fmt = redis.call, string.sub, string.format
local tombstone, tombstone_key
`

// newRuleScript makes the script of a verb that applies the rules: the function
// rich(), then the plain rules, then the verb, which tells them apart.
func newRuleScript(index int, verb string, argv func(*command) []any, parts ...string) *script {
	source := richHead
	for _, part := range append(richParts, "rich_"+verb) {
		source += readSource(part) + "\n"
	}
	source += "end\n"
	for _, part := range append([]string{"prelude", "words", "record", "lost"}, parts...) {
		source += readSource(part) + "\n"
	}
	return assemble(index, verb, argv, source)
}

// newScript makes the script of a verb that reads, or is about no name.
func newScript(index int, verb string, argv func(*command) []any, parts ...string) *script {
	source := ""
	for _, part := range parts {
		source += readSource(part) + "\n"
	}
	return assemble(index, verb, argv, source)
}

// assemble puts parts between the first line of a verb, which Redis demands to
// be first, and the rest.
func assemble(index int, verb string, argv func(*command) []any, parts string) *script {
	first, rest, _ := strings.Cut(readSource(verb), "\n")
	source := first + "\n" + parts + "\n" + rest
	sum := sha1.Sum([]byte(source)) // Redis names scripts by it
	return &script{index: index, source: source, sha: hex.EncodeToString(sum[:]), argv: argv}
}

// rules reports whether a script applies the rules, and so may hand a lock on.
func (s *script) rules() bool { return s.index <= expireScript.index }

func readSource(name string) string {
	b, err := sources.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic(err) // it is part of the program
	}
	return string(b)
}
