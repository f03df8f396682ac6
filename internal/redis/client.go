package redis

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// connectionBuffer is what a connection keeps for what it reads, and for what it writes.
// A stall fills the pools, of 8 connections to each master, and they keep them.
const connectionBuffer = 16 << 10

// clientOptions are those of every client of Redis, whatever the topology. The
// library repeats nothing by itself, and everything has an end.
func (t *topology) clientOptions(addr string) *goredis.Options {
	l, options := t.location, t.options
	o := &goredis.Options{
		Network: l.network, Addr: addr, DB: l.db, Username: l.username, Password: l.password,
		Protocol:   2, // no push messages: nothing here listens to any
		MaxRetries: -1, ContextTimeoutEnabled: true, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		DialTimeout:              options.DialTimeout, DialerRetries: 1,
		ReadTimeout: options.ReadTimeout, WriteTimeout: options.WriteTimeout,
		PoolSize: options.PoolSize, PoolTimeout: options.ReadTimeout,
		PipelinePoolSize: -1, // pipelines are the normal case: one pool for all
		ReadBufferSize:   connectionBuffer, WriteBufferSize: connectionBuffer,
	}
	if o.Password == "" {
		o.Username, o.Password = options.Username, options.Password
	}
	if l.tls {
		host, _, _ := net.SplitHostPort(addr)
		o.Dialer = dialTLS(options.TLS, host, options.DialTimeout)
	}
	return o
}

// dialTLS returns what connects with TLS. It says of a handshake that it was that: a
// port without TLS just does not answer.
func dialTLS(settings func() *tls.Config, host string, timeout time.Duration) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout) // that of a subscription has no end
		defer cancel()
		dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3}} // as without TLS
		conn, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		config := &tls.Config{}
		if settings != nil {
			config = settings()
		}
		config.ServerName, config.MinVersion = host, tls.VersionTLS12
		encrypted := tls.Client(conn, config)
		if err := encrypted.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, fmt.Errorf("TLS handshake: %w", err)
		}
		return encrypted, nil
	}
}

// discoveryClients are connections to those who are asked where the masters are. No arrival is
// made by them: replicas and Sentinels know it as well.
type discoveryClients struct {
	mu      sync.Mutex
	clients map[string]*goredis.Client
	members []string // of a Cluster: addresses of its nodes
}

// discoveryClient returns the client of who is asked at addr.
func (t *topology) discoveryClient(addr string) *goredis.Client {
	g := &t.clients
	g.mu.Lock()
	defer g.mu.Unlock()
	if client := g.clients[addr]; client != nil {
		return client
	}
	o := t.clientOptions(addr)
	o.PoolSize, o.ReadBufferSize, o.WriteBufferSize = 1, 4<<10, 4<<10
	answered := t.options.DialTimeout
	o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = answered, answered, answered
	if t.location.kind == kindSentinel {
		o.DB, o.Username, o.Password = 0, t.options.SentinelUsername, t.options.SentinelPassword
	}
	client := goredis.NewClient(o)
	if g.clients == nil {
		g.clients = map[string]*goredis.Client{}
	}
	g.clients[addr] = client
	return client
}

// retain closes the clients that are not for addrs.
func (g *discoveryClients) retain(addrs []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for addr, client := range g.clients {
		if !slices.Contains(addrs, addr) {
			_ = client.Close()
			delete(g.clients, addr)
		}
	}
}

func (g *discoveryClients) close() { g.retain(nil) }
