package client

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// A refusal counts for the key that it was sent with. Where KeyFunc has another one by then, as at the end of a rotation for who
// waits in a queue with the old one, that is asked with before the call ends; what it is refused is final.
func TestRefusalOfAReplacedKey(t *testing.T) {
	for _, kind := range []string{"acquire", "attach", "events", "renew", "release", "inspect"} {
		for gateways := 1; gateways <= 3; gateways++ {
			for _, known := range []bool{true, false} {
				synctest.Test(t, func(t *testing.T) {
					var mu sync.Mutex
					key, asked := "old", []string(nil)
					c := scripted(t, gateways, func(r *http.Request) (*http.Response, error) {
						with := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
						mu.Lock()
						defer mu.Unlock()
						asked = append(asked, with)
						if len(asked) == gateways { // each has refused the old one, but for the last
							key = "new"
						}
						if known && with == "new" {
							return kinds[kind].right(r)
						}
						response, err := says(401, `{"code":"unauthenticated","detail":"the key is not known"}`)
						response.Request = r
						return response, err
					})
					defer c.Close()
					c.options.KeyFunc = func() (string, error) {
						mu.Lock()
						defer mu.Unlock()
						return key, nil
					}
					err := kinds[kind].call(t.Context(), c, NewLeaseID())
					mu.Lock()
					defer mu.Unlock()
					switch {
					case known && err != nil:
						t.Errorf("%s, %d gateways: %v, asked with %q", kind, gateways, err, asked)
					case !known && outcomeOf(err) != notAllowed:
						t.Errorf("%s, %d gateways that know no key: %v", kind, gateways, err)
					case !known && kind != "renew" && kind != "release":
						want := slices.Concat(slices.Repeat([]string{"old"}, gateways), slices.Repeat([]string{"new"}, gateways))
						if !slices.Equal(asked, want) {
							t.Errorf("%s, %d gateways that know no key are asked with %q, want %q", kind, gateways, asked, want)
						}
					}
				})
			}
		}
	}
}
