package client

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// A wait that its context ends tells the last refusal, which says who has the lock, beside why it ended.
func TestEndedWaitTellsTheRefusal(t *testing.T) {
	for _, code := range []Code{CodeLocked, CodeWaitTimeout} {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
				if r.Method != http.MethodPost {
					return says(204, "")
				}
				if asked++; asked > 2 {
					<-r.Context().Done()
					return nil, r.Context().Err()
				}
				var asks struct {
					Wait int64 `json:"wait_ms"`
				}
				if err := json.NewDecoder(r.Body).Decode(&asks); err != nil {
					t.Error(err)
				}
				sleep(r.Context(), millis(asks.Wait))
				return says(423, `{"code":"`+string(code)+`","name":"a","holders":[{"owner":"ann"}],"holder_count":1}`)
			})
			defer c.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, err := c.Acquire(ctx, "a")
			if e := new(Error); !errors.As(err, &e) || e.Code != code || len(e.Holders) != 1 || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", code, err)
			}
			if asked != 3 {
				t.Errorf("%s: asked %d times", code, asked)
			}
		})
	}
}
