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
	acquireScript  = newScript(0, "acquire", acquireArgs, "prelude", "record", "lost")
	renewScript    = newScript(1, "renew", renewArgs, "prelude", "record", "lost", "own")
	releaseScript  = newScript(2, "release", claimArg, "prelude", "record", "lost", "own")
	takeBackScript = newScript(3, "takeback", claimArg, "prelude", "record")
	breakScript    = newScript(4, "break", claimArg, "prelude", "record")
	expireScript   = newScript(5, "expire", noArgs, "prelude", "record")
	inspectScript  = newScript(6, "inspect", noArgs, "prelude")
	listScript     = newScript(7, "list", noArgs, "prelude")
	checkScript    = newScript(8, "check", noArgs, "prelude")
)

func acquireArgs(c *command) []any { return []any{&c.claim, &c.floor, &c.ttl, &c.tail} }
func renewArgs(c *command) []any   { return []any{&c.claim, &c.ttl} }
func claimArg(c *command) []any    { return []any{&c.claim} }
func noArgs(*command) []any        { return nil }

const scriptCount = 9

// newScript puts parts between the first line of a verb, which Redis demands to
// be first, and the rest.
func newScript(index int, verb string, argv func(*command) []any, parts ...string) *script {
	source, rest, _ := strings.Cut(readSource(verb), "\n")
	for _, part := range parts {
		source += "\n" + readSource(part)
	}
	source += "\n" + rest
	sum := sha1.Sum([]byte(source)) // Redis names scripts by it
	return &script{index: index, source: source, sha: hex.EncodeToString(sum[:]), argv: argv}
}

func readSource(name string) string {
	b, err := sources.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic(err) // it is part of the program
	}
	return string(b)
}
