package redistest

import (
	"fmt"
	"net"
	"os/exec"
	"sync"
	"testing"
)

// A process that is being started has a copy of every file of ours until its program is
// loaded: a port that was tried meanwhile would stay taken for so long.
func TestFreePortWhileProcessesStart(t *testing.T) { testFreePort(t, 500) }

func TestSystemFreePortWhileProcessesStart(t *testing.T) { testFreePort(t, 2000) }

func testFreePort(t *testing.T, ports int) {
	done := make(chan struct{})
	var starting sync.WaitGroup
	for range 4 {
		starting.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := exec.Command("true").Run(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	defer starting.Wait()
	defer close(done)
	for range ports {
		port, err := FreePort()
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
}
