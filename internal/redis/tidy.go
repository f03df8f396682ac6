package redis

import (
	"context"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

const (
	// tidyInterval is how often a gateway says which library it uses.
	tidyInterval = time.Hour

	// libraryTTL is how long a library stays that no gateway says it uses. It is no loss
	// if one comes back then: it loads the library again.
	libraryTTL = 7 * 24 * time.Hour
)

// tidy says at a server which library this gateway uses, and deletes those of other
// versions that nobody has used for long. It fails in silence: a server may have no
// Functions, or not let the user delete any.
func (s *Store) tidy(ctx context.Context, n *node, partition int) {
	now := s.options.Clock()
	if now.Sub(n.tidied) < tidyInterval {
		return
	}
	n.tidied = now
	key := s.keys[partition].libraries
	pipe := n.client.Pipeline()
	pipe.HSet(ctx, key, rules().name, now.UnixMilli())
	used := pipe.HGetAll(ctx, key)
	there := pipe.FunctionList(ctx, goredis.FunctionListQuery{LibraryNamePattern: "fencepost_*"})
	if _, err := pipe.Exec(ctx); err != nil {
		return
	}
	for _, l := range there.Val() {
		last, err := strconv.ParseInt(used.Val()[l.Name], 10, 64)
		switch {
		case l.Name == rules().name:
		case err != nil:
			n.client.HSetNX(ctx, key, l.Name, now.UnixMilli())
		case now.Sub(time.UnixMilli(last)) > libraryTTL:
			n.client.FunctionDelete(ctx, l.Name)
			n.client.HDel(ctx, key, l.Name)
		}
	}
}
