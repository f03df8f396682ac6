package sql

import (
	"context"
	"time"

	"fencepost/internal/fencing"
)

// How long the database may take to answer, so that one that hangs is left for another one soon. Each message has its own bound, also
// of those that follow one another, as of a snapshot that is read.
const (
	// readTimeout is for a message that waits for nobody, unless somebody has locked a whole table: what it reads has at most about 1 MB.
	readTimeout = 3 * time.Second

	// stall is for how long a gateway may stand still in its turn, while all others wait. The database throws it out then.
	stall = 2 * time.Second

	// lockTimeout is how long the server has a turn wait for others; then it is tried again. turnTimeout is for a message that may wait so.
	lockTimeout = 3 * time.Second
	turnTimeout = lockTimeout + time.Second

	// commitTimeout is for the end of a turn: longer than it may wait for a lock, which is a refusal. What is behind it is found out (decided).
	commitTimeout = turnTimeout

	// saveTimeout is for what writes snapshots and removes what they take the place of, for which nobody waits.
	saveTimeout = 15 * time.Second
)

// bounded is a connection that bounds each message. It embeds none, so that the compiler asks for the bound of each.
type bounded struct{ to connection }

// boundedLone is one that can make a turn of one message.
type boundedLone struct {
	bounded
	lone
}

// within returns a connection that bounds each message.
func within(conn connection) connection {
	if able, is := conn.(lone); is {
		return &boundedLone{bounded{conn}, able}
	}
	return &bounded{conn}
}

func (b boundedLone) alone(ctx context.Context, e *entry, behind mark, now fencing.Instant, late time.Duration, tried []fencing.Token) (fencing.Instant, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, turnTimeout)
	defer cancel()
	return b.lone.alone(ctx, e, behind, now, late, tried)
}

func (b bounded) begin(ctx context.Context, after uint64, tried []fencing.Token) (*begun, error) {
	ctx, cancel := context.WithTimeout(ctx, turnTimeout)
	defer cancel()
	return b.to.begin(ctx, after, tried)
}

func (b bounded) try(ctx context.Context, tried []fencing.Token) ([]fencing.Token, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return b.to.try(ctx, tried)
}

// commit goes on when its context ends, for then it would not be known what became of it.
func (b bounded) commit(ctx context.Context, e *entry) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	return b.to.commit(ctx, e)
}

func (b bounded) abandon(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return b.to.abandon(ctx)
}

func (b bounded) read(ctx context.Context, after uint64) (*begun, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return b.to.read(ctx, after)
}

func (b bounded) newest(ctx context.Context) (uint64, int, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return b.to.newest(ctx)
}

func (b bounded) chunk(ctx context.Context, seq uint64, no int) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return b.to.chunk(ctx, seq, no)
}

func (b bounded) claim(ctx context.Context, gateway fencing.Gateway) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	return b.to.claim(ctx, gateway)
}

func (b bounded) release(ctx context.Context, gateway fencing.Gateway) error {
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	return b.to.release(ctx, gateway)
}

func (b bounded) tidy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	return b.to.tidy(ctx)
}

func (b bounded) put(ctx context.Context, seq uint64, no int, chunk []byte) error {
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	return b.to.put(ctx, seq, no, chunk)
}

func (b bounded) finish(ctx context.Context, gateway fencing.Gateway, of mark, chunks int) error {
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	return b.to.finish(ctx, gateway, of, chunks)
}

func (b bounded) cut(ctx context.Context, upTo, snapshot uint64, limit int) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	return b.to.cut(ctx, upTo, snapshot, limit)
}

func (b bounded) tries(ctx context.Context, size int, like row) error {
	ctx, cancel := context.WithTimeout(ctx, turnTimeout)
	defer cancel()
	return b.to.tries(ctx, size, like)
}

func (b bounded) examine(ctx context.Context) ([]fencing.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return b.to.examine(ctx)
}

func (b bounded) holders(ctx context.Context) ([]holder, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return b.to.holders(ctx)
}

func (b bounded) end(ctx context.Context, h holder) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return b.to.end(ctx, h)
}

func (b bounded) close() { b.to.close() }
