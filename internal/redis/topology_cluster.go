package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

const (
	// clusterEvery is how often the Cluster is asked though nothing failed: nearly
	// every change is noticed by an answer.
	clusterEvery = 5 * time.Second

	// askedAtOnce is how many nodes of a Cluster are asked at the same time.
	askedAtOnce = 3

	hashSlots = 16384
)

// slots are the hash slots of the partitions.
var slots = func() (all [clusterPartitions]int) {
	for n := range all {
		all[n] = hashSlot(strconv.Itoa(n))
	}
	return all
}()

// hashSlot returns the slot of a hash tag: CRC-16/XMODEM modulo hashSlots.
func hashSlot(tag string) int {
	crc := uint16(0)
	for i := 0; i < len(tag); i++ {
		crc ^= uint16(tag[i]) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			if crc <<= 1; carry {
				crc ^= 0x1021
			}
		}
	}
	return int(crc) % hashSlots
}

// discoverCluster asks nodes of the Cluster, masters or replicas, a few at a time
// and in no order, until one answers that believes the Cluster to be well. One
// that was cut off knows that, and is believed only when nobody knows better.
func (t *topology) discoverCluster(ctx context.Context) (masterAddrs, error) {
	asked := t.discoveryAddrs()
	var errs []error
	var poor *slotMap
	for some := range slices.Chunk(asked, askedAtOnce) {
		answers := make(chan slotMap, len(some))
		for _, addr := range some {
			t.running.Go(func() { answers <- askCluster(ctx, t.discoveryClient(addr), addr) })
		}
		for range some {
			switch m := <-answers; {
			case m.err != nil:
				errs = append(errs, m.err)
			case m.well: // those who have not answered yet are not waited for
				t.remember(m.members)
				return m.owners, nil
			default:
				poor = &m
			}
		}
	}
	if poor != nil {
		return poor.owners, nil
	}
	return masterAddrs{}, errors.Join(errs...)
}

// discoveryAddrs returns the addresses of nodes that may be asked: first those that the
// Cluster last named, then those of the URL, each in random order.
func (t *topology) discoveryAddrs() []string {
	t.clients.mu.Lock()
	members := slices.Clone(t.clients.members)
	t.clients.mu.Unlock()
	shuffle := func(s []string) { rand.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] }) }
	shuffle(members)
	seeds := slices.DeleteFunc(slices.Clone(t.location.addrs), func(a string) bool { return slices.Contains(members, a) })
	shuffle(seeds)
	return append(members, seeds...)
}

// remember notes the nodes that the Cluster has now.
func (t *topology) remember(members []string) {
	t.clients.mu.Lock()
	t.clients.members = members
	t.clients.mu.Unlock()
	t.clients.retain(slices.Concat(members, t.location.addrs, t.store.guards.addrs()))
}

// slotMap is what a node of a Cluster says of it.
type slotMap struct {
	owners  masterAddrs
	members []string // addresses of masters and replicas
	well    bool     // it believes that the Cluster serves
	err     error
}

// askCluster asks the node at addr.
func askCluster(ctx context.Context, client *goredis.Client, addr string) slotMap {
	pipe := client.Pipeline()
	info := pipe.ClusterInfo(ctx)
	all := pipe.Do(ctx, "cluster", "slots")
	_, err := pipe.Exec(ctx) // without a connection it alone says why: no command has an error
	var ranges []any
	if err == nil {
		ranges, err = all.Slice()
	}
	m := slotMap{well: strings.Contains(info.Val(), "cluster_state:ok")}
	var masters [hashSlots]string
	for _, entry := range ranges {
		if err == nil {
			err = m.read(entry, addr, &masters)
		}
	}
	if err != nil {
		return slotMap{err: fmt.Errorf("the Redis at %s: %w", addr, err)}
	}
	for _, slot := range slots {
		m.owners = append(m.owners, masters[slot])
	}
	return m
}

// read takes in one entry of CLUSTER SLOTS: first and last slot, then the master
// and its replicas.
func (m *slotMap) read(entry any, asked string, masters *[hashSlots]string) error {
	parts, ok := entry.([]any)
	if !ok || len(parts) < 2 {
		return errReply
	}
	first, ok1 := parts[0].(int64)
	last, ok2 := parts[1].(int64)
	if !ok1 || !ok2 || first < 0 || last >= hashSlots {
		return errReply
	}
	for i, part := range parts[2:] {
		addr, err := memberAddr(part, asked)
		if err != nil {
			return err
		}
		if addr != "" && !slices.Contains(m.members, addr) {
			m.members = append(m.members, addr)
		}
		for slot := first; i == 0 && slot <= last; slot++ {
			masters[slot] = addr
		}
	}
	return nil
}

// movedTo returns the address of the node that has a slot as another one, at the address
// asked, refuses a command; "" if it says nothing of the kind.
func movedTo(err error, asked string) string {
	named, _ := goredis.IsMovedError(err)
	colon := strings.LastIndex(named, ":") // of IPv6 as well: it has no brackets
	if colon < 0 {
		return ""
	}
	port, err := strconv.ParseInt(named[colon+1:], 10, 64)
	if err != nil {
		return ""
	}
	addr, _ := memberAddr([]any{named[:colon], port}, asked)
	return addr
}

// memberAddr returns the address of a node as CLUSTER SLOTS or MOVED names it, "" if it
// knows none. A node without a host, or at a loopback address that can only be
// meant from where it is, is at the host that was asked.
func memberAddr(part any, asked string) (string, error) {
	member, ok := part.([]any)
	if !ok || len(member) < 2 {
		return "", errReply
	}
	host, _ := member[0].(string)
	port, ok := member[1].(int64)
	if !ok {
		return "", errReply
	}
	askedHost, _, err := net.SplitHostPort(asked)
	if err != nil {
		return "", err
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsLoopback() {
		host = askedHost
	}
	if host == "?" || port == 0 {
		return "", nil
	}
	return net.JoinHostPort(host, strconv.FormatInt(port, 10)), nil
}
