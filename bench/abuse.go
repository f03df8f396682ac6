package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	healthyRate    = 200 // pairs a second, at random moments
	healthyClients = 8   // connections
	abuseRate      = 1000
	abuseLength    = 4 * time.Second // of one measurement: 800 pairs, 8 of which are beyond the p99
)

// abuses are what goes on beside a healthy client, by what serveAbuse calls it.
var abuses = []struct{ key, title string }{
	{"", "nobody"},
	{"slow", "5,000 connections that send a byte of their headers a second"},
	{"streams", "1,000 streams of events that nobody reads"},
	{"connects", "a client that opens connections as fast as it can, from one address"},
	{"requests", "a client with a key that acquires and releases as fast as it can, over 32 connections"},
}

// besides is what a healthy client's pairs took beside an abuse.
type besides struct {
	title        string
	p50, p99     time.Duration
	r50, r99     float64 // to nobody's, within a round
	done, denied float64 // of the abuse, a second
}

// measureAbuse compares what a client's pairs take beside nobody and beside each abuse, with
// the gateway's limits set. Each abuse is a process of its own that has only the time
// which nobody else wants: on a machine of its own it would take none from the gateway.
func (r *results) measureAbuse(binary, dir string, rounds int) error {
	keys := map[string]string{}
	var file bytes.Buffer
	for _, name := range []string{"healthy", "abuser"} {
		var key strings.Builder
		keygen := exec.Command(binary, "keygen", "-name", name, "-scope", "read,lock", "-prefix", "*")
		keygen.Stdout, keygen.Stderr = &file, &key
		if err := keygen.Run(); err != nil {
			return err
		}
		keys[name] = strings.TrimSpace(key.String())
	}
	path := filepath.Join(dir, "keys")
	if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
		return err
	}
	gateway, err := startGateway(binary, "embedded", filepath.Join(dir, "abused"), "FENCEPOST_KEYS_FILE="+path,
		fmt.Sprintf("FENCEPOST_MAX_REQUEST_RATE_PER_PRINCIPAL=%d", abuseRate),
		fmt.Sprintf("FENCEPOST_MAX_CONNECTION_RATE_PER_CLIENT=%d", abuseRate),
		"FENCEPOST_MAX_CONNECTIONS_PER_CLIENT=5000")
	if err != nil {
		return err
	}
	defer gateway.stop()
	healthy, err := newCrew(healthyClients, gateway.addr)
	defer healthy.close()
	if err != nil {
		return err
	}
	for _, c := range healthy {
		c.identify(keys["healthy"])
	}

	p50, p99 := map[string][]float64{}, map[string][]float64{}
	done, denied := map[string][]float64{}, map[string][]float64{}
	for round := range rounds + 1 { // the first round warms up and is dropped
		for i := range abuses {
			a := abuses[(i+round)%len(abuses)]
			took, counts, err := beside(a.key, gateway.addr, keys["abuser"], healthy, uint64(round))
			if err != nil {
				return fmt.Errorf("%s: %w", a.title, err)
			}
			fmt.Fprintf(os.Stderr, "beside %s, round %d of %d: p50 %v, p99 %v; %+v\n", a.title, round, rounds, took.at(.5), took.at(.99), counts)
			if round == 0 {
				continue
			}
			p50[a.key], p99[a.key] = append(p50[a.key], float64(took.at(.5))), append(p99[a.key], float64(took.at(.99)))
			done[a.key], denied[a.key] = append(done[a.key], counts.perSecond(counts.Done)), append(denied[a.key], counts.perSecond(counts.Denied))
		}
	}
	for _, a := range abuses {
		r.abuse = append(r.abuse, besides{
			title: a.title, p50: time.Duration(median(p50[a.key])), p99: time.Duration(median(p99[a.key])),
			r50: median(ratios(p50[a.key], p50[""])), r99: median(ratios(p99[a.key], p99[""])),
			done: median(done[a.key]), denied: median(denied[a.key]),
		})
	}
	return nil
}

// beside measures the healthy client while an abuse goes on.
func beside(abuse, addr, key string, healthy crew, seed uint64) (took latencies, counts abuseCounts, err error) {
	if abuse == "" {
		took, err = paced(healthy, healthyRate, abuseLength, seed)
		return took, counts, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, counts, err
	}
	cmd := exec.Command(self, "-abuse", abuse, "-target", addr)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", abuserKey+"="+key)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, counts, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, counts, err
	}
	if err := cmd.Start(); err != nil {
		return nil, counts, err
	}
	lines := bufio.NewReader(stdout)
	_, err = lines.ReadString('\n') // all are open
	if err == nil {
		took, err = paced(healthy, healthyRate, abuseLength, seed)
	}
	stdin.Close()
	if err == nil {
		err = json.NewDecoder(lines).Decode(&counts)
	}
	io.Copy(io.Discard, lines)
	return took, counts, errors.Join(err, cmd.Wait())
}

// paced has clients send pairs at random moments (exponential gaps), rate a second on average
// by all together, and returns how long they took from the moment they were due.
func paced(all crew, rate float64, length time.Duration, seed uint64) (latencies, error) {
	var mu sync.Mutex
	var took latencies
	faults := make([]error, len(all))
	var group sync.WaitGroup
	start := time.Now()
	for i, c := range all {
		group.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			var own latencies
			gap := func() time.Duration {
				return time.Duration(random.ExpFloat64() * float64(len(all)) / rate * float64(time.Second))
			}
			for due := gap(); due < length; due += gap() {
				time.Sleep(due - time.Since(start))
				if faults[i] = c.pair(); faults[i] != nil {
					break
				}
				own = append(own, time.Since(start)-due)
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, own...)
		})
	}
	group.Wait()
	slices.Sort(took)
	return took, errors.Join(faults...)
}

func (r *results) reportAbuse() string {
	var b strings.Builder
	fmt.Fprintf(&b, `
## Beside clients that abuse the gateway

A client with a key sends %d pairs a second at random moments over %d connections to a gateway with the embedded
store. Beside it another client does what the row says. The gateway's limits are %d requests a second for a
principal, and %d new connections a second and 5,000 open ones for an address. The abusing process runs on one core, in
time that nobody else wants (SCHED_IDLE), as if it were on another machine. The last columns say how many
connections or requests of it were served and refused a second. Each pair counts from the moment it was due.

| beside | p50 | p99 | p50 to nobody | p99 to nobody | served | refused |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
`, healthyRate, healthyClients, abuseRate, abuseRate)
	for _, a := range r.abuse {
		fmt.Fprintf(&b, "| %s | %.3f ms | %.3f ms | %.2f | %.2f | %.0f | %.0f |\n", a.title, float64(a.p50)/1e6, float64(a.p99)/1e6, a.r50, a.r99, a.done, a.denied)
	}
	return b.String()
}
