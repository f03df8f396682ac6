package main

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/redis/redistest"
)

// Ready means that an acquire is served: the nodes of a new quorum are in service then.
func TestReadyOnANewQuorum(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartQuorum(t, 3)
	stoodStill := 0 // rounds in which the machine was so busy that a node was not believed its clock
	for round := 0; round < times(6, 16)+stoodStill; round++ {
		for _, node := range nodes {
			client := node.Client()
			if err := client.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			client.Close()
		}
		g := startOn(t, redistest.QuorumURL(nodes))
		url := "http://" + g.addr
		for deadline := time.Now().Add(patience); ; <-time.After(10 * time.Millisecond) {
			if status, body, err := request(http.MethodGet, url+"/readyz", "", nil); err == nil && status == http.StatusOK {
				break
			} else if time.Now().After(deadline) {
				t.Fatalf("it is not ready: %d %s, %v", status, body, err)
			}
		}
		if status, body, err := request(http.MethodPost, url+"/locks/first", "", nil); err != nil || status != http.StatusCreated {
			if strings.Contains(g.warnings(), "the clocks differ too much") && stoodStill < 16 {
				stoodStill++
			} else {
				t.Errorf("the first acquire: %d %s, %v", status, body, err)
			}
		}
		if err := g.end(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
}
