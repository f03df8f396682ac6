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
}

// The scripts, one a verb.
var (
	acquireScript  = newScript(0, "acquire", "prelude", "record")
	renewScript    = newScript(1, "renew", "prelude", "record")
	releaseScript  = newScript(2, "release", "prelude", "record")
	takeBackScript = newScript(3, "takeback", "prelude", "record")
	breakScript    = newScript(4, "break", "prelude", "record")
	expireScript   = newScript(5, "expire", "prelude", "record")
	inspectScript  = newScript(6, "inspect", "prelude")
	listScript     = newScript(7, "list", "prelude")
	checkScript    = newScript(8, "check", "prelude")
)

const scriptCount = 9

// newScript puts parts between the first line of a verb, which Redis demands to
// be first, and the rest.
func newScript(index int, verb string, parts ...string) *script {
	source, rest, _ := strings.Cut(readSource(verb), "\n")
	for _, part := range parts {
		source += "\n" + readSource(part)
	}
	source += "\n" + rest
	sum := sha1.Sum([]byte(source)) // Redis names scripts by it
	return &script{index: index, source: source, sha: hex.EncodeToString(sum[:])}
}

func readSource(name string) string {
	b, err := sources.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic(err) // it is part of the program
	}
	return string(b)
}
