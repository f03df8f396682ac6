package main

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"fencepost/internal/redis/redistest"
)

// messageBytes is what a message about a grant or an end has.
const messageBytes = 310

// measureMessages publishes in Clusters of several sizes: each message goes to every
// other node.
func (f *footprint) measureMessages(rounds int) error {
	for _, size := range []int{1, 3, 6, 12} {
		m, err := inCluster(size, rounds)
		if err != nil {
			return fmt.Errorf("a Cluster of %d: %w", size, err)
		}
		f.messages = append(f.messages, m)
	}
	return nil
}

// message is what one message costs in a Cluster, µs of CPU.
type message struct {
	nodes         int
	sender, other float64
}

func inCluster(size, rounds int) (message, error) {
	ctx := context.Background()
	var clients []*goredis.Client
	for i := range size {
		bus, err := redistest.FreePort()
		if err != nil {
			return message{}, err
		}
		server, err := redistest.Run("--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus))
		if err != nil {
			return message{}, err
		}
		defer server.Close()
		clients = append(clients, server.Client())
		defer clients[i].Close()
		host, port, _ := net.SplitHostPort(server.Addr())
		if err := clients[0].Do(ctx, "CLUSTER", "MEET", host, port, strconv.Itoa(bus)).Err(); err != nil {
			return message{}, err
		}
	}
	if err := clients[0].ClusterAddSlotsRange(ctx, 0, 16383).Err(); err != nil {
		return message{}, err
	}
	for known := ""; !strings.Contains(known, fmt.Sprintf("cluster_known_nodes:%d\r", size)) || !strings.Contains(known, "cluster_state:ok"); {
		time.Sleep(100 * time.Millisecond)
		known = clients[size-1].ClusterInfo(ctx).Val()
	}
	time.Sleep(2 * time.Second) // until all links are up
	text := strings.Repeat("x", messageBytes)
	const batch, batches = 100, 100
	var sender, other []float64
	for range rounds {
		before := make([]sample, size)
		for i, client := range clients {
			s, err := take(ctx, client)
			if err != nil {
				return message{}, err
			}
			before[i] = s
		}
		for range batches {
			pipe := clients[0].Pipeline()
			for range batch {
				pipe.Publish(ctx, "fencepost:events", text)
			}
			if _, err := pipe.Exec(ctx); err != nil {
				return message{}, err
			}
		}
		rest := 0.0
		for i, client := range clients {
			s, err := take(ctx, client)
			if err != nil {
				return message{}, err
			}
			if cpu := (s.cpu - before[i].cpu) * 1e6 / batch / batches; i == 0 {
				sender = append(sender, cpu)
			} else {
				rest += cpu
			}
		}
		if size > 1 {
			other = append(other, rest/float64(size-1))
		}
	}
	m := message{nodes: size, sender: median(sender)}
	if size > 1 {
		m.other = median(other)
	}
	return m, nil
}

// spread says how the partitions fall on the masters of a Cluster: the
// slots cut into ranges that are as equal as can be, as redis-cli does.
func spread(masters int) (most int, without int) {
	counts := make([]int, masters)
	for n := range 256 {
		slot := slotOf(strconv.Itoa(n))
		counts[slot*masters/16384]++
	}
	for _, count := range counts {
		most = max(most, count)
		if count == 0 {
			without++
		}
	}
	return most, without
}

// slotOf is a Cluster's slot of a hash tag: CRC16 (XMODEM) modulo 16384.
func slotOf(tag string) int {
	var crc uint16
	for i := range len(tag) {
		crc ^= uint16(tag[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % 16384
}
