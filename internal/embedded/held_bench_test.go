package embedded

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// BenchmarkHeld says what many held names cost: while they are taken, at a start and at a stop, each in a process of its own. kB-lock is the
// memory of the process for a name; wall and CPU are in seconds. FENCEPOST_HELD is how many names there are.
func BenchmarkHeld(b *testing.B) {
	if how := os.Getenv("FENCEPOST_HELD_CHILD"); how != "" {
		heldChild(b, how, os.Getenv("FENCEPOST_HELD_DIR"))
		return
	}
	n, err := strconv.Atoi(os.Getenv("FENCEPOST_HELD"))
	if err != nil {
		n = 50_000
	}
	for _, labels := range []string{"bare", "labels"} { // with an owner and two labels, or without
		dir := b.TempDir()
		for _, how := range []string{"take", "start"} {
			b.Run(labels+"/"+how, func(b *testing.B) {
				child := exec.Command(os.Args[0], "-test.run=-", "-test.bench=^BenchmarkHeld$", "-test.benchtime=1x")
				child.Env = append(os.Environ(), "FENCEPOST_HELD_CHILD="+how, "FENCEPOST_HELD_DIR="+dir, "FENCEPOST_HELD="+strconv.Itoa(n), "FENCEPOST_HELD_LABELS="+labels)
				said, err := child.Output()
				if err != nil {
					b.Fatalf("%v\n%s", err, said)
				}
				_, said, _ = cut(said)
				var cost heldCost
				if err := json.Unmarshal(said, &cost); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(cost.Wall, "s-wall")
				b.ReportMetric(cost.CPU, "s-CPU")
				b.ReportMetric(cost.Memory/float64(n)/1000, "kB-lock")
				b.ReportMetric(cost.Memory/1e6, "MB")
				b.ReportMetric(cost.Peak/1e6, "MB-peak")
				b.ReportMetric(cost.StopWall, "s-stop-wall")
				b.ReportMetric(cost.StopCPU, "s-stop-CPU")
				b.ReportMetric(cost.StopPeak/1e6, "MB-stop-peak")
			})
		}
	}
}

// heldCost is what a child has used: in seconds and bytes.
type heldCost struct{ Wall, CPU, Memory, Peak, StopWall, StopCPU, StopPeak float64 }

const heldBegins = "held: "

func cut(said []byte) (before, cost []byte, found bool) {
	_, after, found := strings.Cut(string(said), heldBegins)
	line, _, _ := strings.Cut(after, "\n")
	return nil, []byte(line), found
}

// heldChild opens a store, takes the names in it if it is to, and stops it.
func heldChild(b *testing.B, how, dir string) {
	var cost heldCost
	n, _ := strconv.Atoi(os.Getenv("FENCEPOST_HELD"))
	wall, cpu := time.Now(), used()
	s, err := Open(Options{Dir: dir})
	if err != nil {
		b.Fatal(err)
	}
	if how == "take" {
		take(b, s, n, os.Getenv("FENCEPOST_HELD_LABELS") == "labels")
	}
	cost.Wall, cost.CPU = time.Since(wall).Seconds(), (used() - cpu).Seconds()
	cost.Memory, cost.Peak = memory(b, "VmRSS:"), memory(b, "VmHWM:")
	if held := s.machine.State().Records; len(held) != n {
		b.Fatalf("%d names are held, not %d", len(held), n)
	}
	wall, cpu = time.Now(), used()
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	cost.StopWall, cost.StopCPU, cost.StopPeak = time.Since(wall).Seconds(), (used() - cpu).Seconds(), memory(b, "VmHWM:")
	said, _ := json.Marshal(cost)
	fmt.Fprintf(os.Stdout, "\n%s%s\n", heldBegins, said)
}

func take(b *testing.B, s *Store, n int, labels bool) {
	var group sync.WaitGroup
	var next atomic.Int64
	for range 1024 {
		group.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				r := acquire(fencing.Name(fmt.Sprintf("orders/%07d", i)), time.Hour)
				if r.Owner = ""; labels {
					r.Owner = fmt.Sprintf("worker-%d", i%100)
					r.Metadata = map[string]string{strings.Clone("service"): strings.Clone("billing"), strings.Clone("zone"): fmt.Sprintf("eu-%d", i%3)}
				}
				if _, err := s.Do(b.Context(), r); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
}

// memory returns a line of what the system says of this process, in bytes.
func memory(b *testing.B, line string) float64 {
	from, err := os.Open("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	defer from.Close()
	all, _ := io.ReadAll(from)
	_, after, _ := strings.Cut(string(all), line)
	kB, err := strconv.ParseFloat(strings.Fields(after)[0], 64)
	if err != nil {
		b.Fatal(err)
	}
	return kB * 1024
}
