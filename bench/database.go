package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/redis/redistest"
	"fencepost/internal/sql/sqltest"
)

// databaseLength is how long a target has at a time: a lone client is to have a hundred acquires at least.
const databaseLength = 2 * time.Second

// databaseRow is what serves a number of clients: medians of the rounds, and of the ratios within them to the table by hand.
type databaseRow struct {
	database, title string
	clients         int
	pairs, p50, p99 float64 // a second; of an acquire, ns
	toPairs, to99   float64
}

// databaseSample is what one round found.
type databaseSample struct{ pairs, p50, p99 float64 }

// measureDatabases compares gateways on a database with a table by hand, both over HTTP, on servers of its own.
func (r *results) measureDatabases(binary string, rounds int) error {
	var postgres, mariadb *sqltest.Server
	stop, err := redistest.Launch(func(t testing.TB) { postgres, mariadb = sqltest.StartPostgres(t), sqltest.StartMariaDB(t) })
	if err == nil {
		p := databases{binary: binary, title: "PostgreSQL", server: postgres, byHand: "postgres"}
		m := databases{binary: binary, title: "MariaDB", server: mariadb, byHand: "mariadb"}
		for _, c := range []struct {
			of       *databases
			clients  int
			away     time.Duration
			gateways []int // of each store
		}{
			{&p, 1, 0, []int{1}}, {&p, 16, 0, []int{1}}, {&p, 64, 0, []int{1}}, {&p, 256, 0, []int{1}},
			{&p, 60, 0, []int{1, 2, 4, 10}},
			{&p, 1, distance, []int{1}}, {&p, 64, distance, []int{1}},
			{&m, 1, 0, []int{1}}, {&m, 16, 0, []int{1}}, {&m, 64, 0, []int{1}}, {&m, 256, 0, []int{1}},
		} {
			rows, cause := c.of.compare(c.clients, c.away, c.gateways, rounds)
			if err = cause; err != nil {
				break
			}
			r.databases = append(r.databases, rows...)
		}
	}
	return errors.Join(err, stop())
}

// databases are those of a server.
type databases struct {
	binary, title string
	server        *sqltest.Server
	byHand        string // the baseline
}

// compare runs a table by hand and stores with so many gateways each in turn, each in a database of its own.
func (d *databases) compare(clients int, away time.Duration, gateways []int, rounds int) (rows []databaseRow, err error) {
	var stops []func() error
	defer func() {
		for _, stop := range slices.Backward(stops) {
			err = errors.Join(err, stop())
		}
	}()
	database := func() (near, far string, err error) {
		ended, err := redistest.Launch(func(t testing.TB) { near = d.server.Database(t) })
		stops = append(stops, ended)
		if far = near; err == nil && away > 0 {
			var line *line
			if line, err = startLine(fmt.Sprintf("127.0.0.1:%d", d.server.Port()), away); err == nil {
				stops = append(stops, line.close)
				far = line.before(near)
			}
		}
		return near, far, err
	}
	var titles []string
	var all []crew
	add := func(title string, servers ...*process) error {
		hired, err := newCrew(clients, addresses(servers...)...)
		stops = append(stops, func() error { hired.close(); return nil })
		titles, all = append(titles, title), append(all, hired)
		return err
	}
	_, far, err := database()
	if err != nil {
		return nil, err
	}
	hand, err := startBaseline(d.byHand, far)
	if err != nil {
		return nil, err
	}
	stops = append(stops, hand.stop)
	if err := add("by hand", hand); err != nil {
		return nil, err
	}
	for _, many := range gateways {
		near, far, err := database()
		if err != nil {
			return nil, err
		}
		init := exec.Command(d.binary, "store", "init")
		init.Env = append(os.Environ(), "FENCEPOST_STORE="+near)
		if out, err := init.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("store init: %w: %s", err, out)
		}
		var servers []*process
		for range many {
			p, err := startGateway(d.binary, far, "")
			if err != nil {
				return nil, err
			}
			stops, servers = append(stops, p.stop), append(servers, p)
		}
		title := fmt.Sprintf("%d gateways", many)
		if many == 1 {
			title = "1 gateway"
		}
		if err := add(title, servers...); err != nil {
			return nil, err
		}
	}
	label := d.title
	if away > 0 {
		label += fmt.Sprintf(", %s away", away)
	}
	found, err := sampleInTurn(all, titles, label, rounds)
	if err != nil {
		return nil, err
	}
	for i := range titles {
		both := func(value func(databaseSample) float64) (middle, to float64) {
			return median(valuesOf(found[i], value)), median(ratios(valuesOf(found[i], value), valuesOf(found[0], value)))
		}
		row := databaseRow{database: label, title: titles[i], clients: clients}
		row.pairs, row.toPairs = both(func(s databaseSample) float64 { return s.pairs })
		row.p50, _ = both(func(s databaseSample) float64 { return s.p50 })
		row.p99, row.to99 = both(func(s databaseSample) float64 { return s.p99 })
		rows = append(rows, row)
	}
	return rows, nil
}

// sampleInTurn has each crew acquire and release for a while, in turn, and returns what the rounds found of each.
func sampleInTurn(all []crew, titles []string, label string, rounds int) ([][]databaseSample, error) {
	found := make([][]databaseSample, len(all))
	for round := range rounds + 1 { // the first round warms up and is dropped
		for i := range all {
			n := (i + round) % len(all)
			s, err := all[n].sample(databaseLength)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", label, titles[n], err)
			}
			fmt.Fprintf(os.Stderr, "%s, %d clients, round %d of %d, %s: %.0f pairs/s, p99 %s\n", label, len(all[n]), round, rounds, titles[n], s.pairs, time.Duration(s.p99))
			if round > 0 {
				found[n] = append(found[n], s)
			}
		}
	}
	return found, nil
}

// sample has all clients acquire and release for a while, each a name of its own.
func (all crew) sample(length time.Duration) (databaseSample, error) {
	took := make([]latencies, len(all))
	pairs, err := closedLoop(len(all), length, func(i int) error {
		asked := time.Now()
		lease, err := all[i].take()
		took[i] = append(took[i], time.Since(asked))
		if err != nil {
			return err
		}
		return all[i].give(lease)
	})
	if err != nil {
		return databaseSample{}, err
	}
	merged := latencies(slices.Concat(took...))
	slices.Sort(merged)
	return databaseSample{pairs: pairs, p50: float64(merged.at(.5)), p99: float64(merged.at(.99))}, nil
}

func valuesOf(samples []databaseSample, value func(databaseSample) float64) (values []float64) {
	for _, s := range samples {
		values = append(values, value(s))
	}
	return values
}

// reportDatabases is the part of BENCHMARKS.md about them.
func (r *results) reportDatabases() string {
	var b strings.Builder
	fmt.Fprintf(&b, `
## A database

Gateways on a database beside a server whose locks are a table written by hand: the name is the key, an acquire is one INSERT … ON
CONFLICT … RETURNING (MariaDB: ON DUPLICATE KEY), a release one DELETE, both prepared, over %d connections; it has no queue, tokens, renewals or
retries. Both answer over HTTP, on the same server with fsync, which shares the cores with them and the load. Clients of several gateways
are spread over them. A slice takes %s. Ratios are to the table by hand.

| database | clients | target | pairs/s | ratio | acquire p50 | p99 | ratio |
| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |
`, tableConnections, databaseLength)
	for _, d := range r.databases {
		fmt.Fprintf(&b, "| %s | %d | %s | %.0f | %.2f | %.1f ms | %.1f ms | %.2f |\n", d.database, d.clients, d.title, d.pairs, d.toPairs, d.p50/1e6, d.p99/1e6, d.to99)
	}
	return b.String()
}
