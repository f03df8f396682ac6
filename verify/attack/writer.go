package attack

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"time"

	"fencepost/verify/system"
)

const (
	chunks   = 8
	chunkGap = 5 * time.Millisecond // from one chunk to the next
	ttl      = 300 * time.Millisecond
)

// write is a client as they are written: it takes the lock, writes its document chunk
// by chunk, and lets go. It looks at its deadline before it begins and never again, so
// that a pause in the middle of a write makes it a stale holder that goes on writing.
// It says "writing" on standard output once the first chunk is written.
func write(gateway, storage, name string) error {
	client := system.NewClient(2)
	ctx := context.Background()
	url := gateway + "/locks/attack/" + name
	for {
		a, err := client.Do(ctx, http.MethodPost, url, "", fmt.Sprintf(`{"ttl_ms":%d,"wait_ms":5000}`, ttl.Milliseconds()))
		if err != nil || a.Status != http.StatusCreated || time.Now().After(a.Deadline()) {
			time.Sleep(chunkGap)
			continue
		}
		for chunk := range chunks {
			put, err := client.Do(ctx, http.MethodPut, fmt.Sprintf("%s/%s?token=%d&chunk=%d", storage, name, a.Lease.Token, chunk), "", "")
			if err != nil {
				return err
			}
			if put.Status == http.StatusPreconditionFailed {
				break // stale: that is what the storage is for
			}
			if put.Status != http.StatusNoContent {
				return fmt.Errorf("the storage answered %s", put)
			}
			if chunk == 0 {
				fmt.Fprintln(os.Stdout, "writing")
			}
			time.Sleep(chunkGap)
		}
		// A lease that has ended by now is no fault of this client: 412.
		_, _ = client.Do(ctx, http.MethodDelete, url, a.Lease.ID, "")
	}
}
