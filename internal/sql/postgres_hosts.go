package sql

import (
	"context"
	"net"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// hosts knows which of several hosts took the last connection: that one is asked first from then on, so that one that hangs costs time
// once.
type hosts struct {
	mu   sync.Mutex
	last *pgconn.FallbackConfig // nil: none yet
}

// order has a configuration ask the host first that took the last connection. What it returns is called with each connection.
func (h *hosts) order(config *pgx.ConnConfig) (connected func(*pgx.Conn)) {
	all := append([]*pgconn.FallbackConfig{{Host: config.Host, Port: config.Port, TLSConfig: config.TLSConfig}}, config.Fallbacks...)
	h.mu.Lock()
	last := h.last
	h.mu.Unlock()
	if last != nil {
		var first, rest []*pgconn.FallbackConfig
		for _, one := range all {
			if one.Host == last.Host && one.Port == last.Port {
				first = append(first, one)
			} else {
				rest = append(rest, one)
			}
		}
		all = append(first, rest...)
	}
	config.Host, config.Port, config.TLSConfig, config.Fallbacks = all[0].Host, all[0].Port, all[0].TLSConfig, all[1:]
	names := map[string]string{} // of addresses
	lookup := config.LookupFunc
	config.LookupFunc = func(ctx context.Context, host string) ([]string, error) {
		addresses, err := lookup(ctx, host)
		for _, address := range addresses {
			names[address] = host
		}
		return addresses, err
	}
	return func(c *pgx.Conn) {
		at, tcp := c.PgConn().Conn().RemoteAddr().(*net.TCPAddr)
		if !tcp {
			return
		}
		host := names[at.IP.String()]
		if host == "" {
			host = at.IP.String()
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.last = &pgconn.FallbackConfig{Host: host, Port: uint16(at.Port)}
	}
}
