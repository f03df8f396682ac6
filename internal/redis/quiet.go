package redis

import (
	"context"

	goredis "github.com/redis/go-redis/v9"
)

// silent drops what the client library would print: it does so to the standard
// error and as plain text. Every error comes back to a caller, who logs it.
type silent struct{}

// Printf prints nothing.
func (silent) Printf(context.Context, string, ...any) {}

// The library's logger belongs to the process and must be set before any client
// runs, hence here.
var _ = func() struct{} { goredis.SetLogger(silent{}); return struct{}{} }()
