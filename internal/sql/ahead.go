package sql

import (
	"context"
	"io"
	"iter"
	"sync"
)

// ahead visits what all visits, and has the next one be read while the last one is used. When it returns nothing is read any more.
func ahead[T any](all iter.Seq2[T, error]) iter.Seq2[T, error] {
	type result struct {
		value T
		err   error
	}
	return func(yield func(T, error) bool) {
		results, stop := make(chan result), make(chan struct{})
		var reads sync.WaitGroup
		defer reads.Wait()
		defer close(stop)
		reads.Go(func() {
			defer close(results)
			for value, err := range all {
				select {
				case results <- result{value, err}:
				case <-stop:
					return
				}
			}
		})
		for r := range results {
			if !yield(r.value, r.err) {
				return
			}
		}
	}
}

// logBehind visits what the log has behind an entry, up to its end or an error, a message at a time. Its entries are decoded.
func logBehind(ctx context.Context, conn connection, after uint64) iter.Seq2[*begun, error] {
	return func(yield func(*begun, error) bool) {
		for more := true; more; {
			b, err := conn.read(ctx, after)
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range b.entries {
				if e := &b.entries[i]; e.seq > after {
					e.decode()
				}
			}
			more = b.more
			if len(b.entries) > 0 {
				after = b.entries[len(b.entries)-1].seq
			}
			more = yield(b, nil) && more
		}
	}
}

// chunksOf visits the chunks of a snapshot, up to an error.
func chunksOf(ctx context.Context, conn connection, seq uint64, chunks int) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for no := 1; no <= chunks; no++ {
			chunk, err := conn.chunk(ctx, seq, no)
			if err == nil && chunk == nil {
				err = errGap
			}
			if !yield(chunk, err) || err != nil {
				return
			}
		}
	}
}

// fromSnapshot calls read for a snapshot that has so many chunks.
func fromSnapshot(ctx context.Context, conn connection, seq uint64, chunks int, read func(io.Reader) error) error {
	next, stop := iter.Pull2(ahead(chunksOf(ctx, conn, seq, chunks)))
	defer stop()
	return read(&chunkReader{next: next})
}

// chunkReader reads chunks.
type chunkReader struct {
	next func() (chunk []byte, err error, ok bool)
	rest []byte
}

// Read implements io.Reader.
func (r *chunkReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		chunk, err, ok := r.next()
		if !ok {
			return 0, io.EOF
		}
		if err != nil {
			return 0, err
		}
		r.rest = chunk
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
