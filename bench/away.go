package main

import (
	"net"
	"strings"
	"sync"
	"time"
)

// line is the way to a server that is away: every byte takes as long to it, and back, as half of the distance.
type line struct {
	listener net.Listener
	target   string
	late     time.Duration

	mu    sync.Mutex
	conns []net.Conn
}

func startLine(target string, distance time.Duration) (*line, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &line{listener: listener, target: target, late: distance / 2}
	go l.serve()
	return l, nil
}

// before returns the URL with the line in place of its target.
func (l *line) before(url string) string {
	return strings.Replace(url, l.target, l.listener.Addr().String(), 1)
}

func (l *line) close() error {
	err := l.listener.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.conns {
		conn.Close()
	}
	return err
}

func (l *line) serve() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", l.target)
		if err != nil {
			client.Close()
			continue
		}
		l.mu.Lock()
		l.conns = append(l.conns, client, server)
		l.mu.Unlock()
		go l.pass(server, client)
		go l.pass(client, server)
	}
}

// pass passes on what comes, until one of the two ends.
func (l *line) pass(to, from net.Conn) {
	type piece struct {
		due  time.Time
		data []byte
	}
	pieces := make(chan piece, 1024)
	go func() {
		defer close(pieces)
		for {
			data := make([]byte, 64<<10)
			n, err := from.Read(data)
			if err != nil {
				return
			}
			pieces <- piece{time.Now().Add(l.late), data[:n]}
		}
	}()
	for p := range pieces {
		time.Sleep(time.Until(p.due)) // the distance itself
		if _, err := to.Write(p.data); err != nil {
			break
		}
	}
	to.Close()
	from.Close()
	for range pieces { // nobody wants them any more
	}
}
