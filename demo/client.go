//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"fencepost/fence"
)

// clientSettings is the variable of the environment that makes this program a client.
const clientSettings = "FENCEPOST_DEMO_CLIENT"

// settings are those of a client.
type settings struct {
	Name, Gateway, Dir, Content string
	Fenced                      bool
}

// clientMain does what it reads: "lock" and "write". It says what came of it.
func clientMain() int {
	var c settings
	err := json.Unmarshal([]byte(os.Getenv(clientSettings)), &c)
	var token int64
	for in := bufio.NewScanner(os.Stdin); err == nil && in.Scan(); {
		switch in.Text() {
		case "lock":
			if token, err = c.lock(); err == nil {
				fmt.Println("token", token)
			}
		case "write":
			err = c.write(token)
			if stale, ok := errors.AsType[*fence.StaleError](err); ok {
				fmt.Println("refused:", stale)
				err = nil
			} else if err == nil {
				fmt.Println("written")
			}
		}
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", c.Name, err)
		return 1
	}
	return 0
}

// lock waits for the lock and returns its token.
func (c settings) lock() (int64, error) {
	body := fmt.Sprintf(`{"ttl_ms":%d,"wait_ms":%d,"owner":%q}`, ttl.Milliseconds(), patience.Milliseconds(), c.Name)
	name := "report"
	if c.Fenced {
		name = "report-2" // Bert of the first act may have it still
	}
	response, err := http.Post(c.Gateway+"/locks/"+name, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusCreated {
		answer, _ := io.ReadAll(response.Body)
		return 0, fmt.Errorf("%s: %s", response.Status, answer)
	}
	return fence.ParseToken(response.Header.Get(fence.Header))
}

func (c settings) write(token int64) error {
	if !c.Fenced {
		return os.WriteFile(filepath.Join(c.Dir, file), []byte(c.Content), 0o600)
	}
	dir, err := fence.OpenDir(c.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.WriteFile(context.Background(), file, token, fence.NoSlot, []byte(c.Content))
}
