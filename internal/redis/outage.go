package redis

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"

	"fencepost/internal/fencing"
)

// outages are the ways in which a Redis that refuses nobody is away, as told to who
// operates it. They are tried in order.
var outages = []struct {
	is     func(err error, text string) bool
	detail string
}{
	{isErr(syscall.ECONNREFUSED), "nothing accepts connections at its address (connection refused): it is not running, or FENCEPOST_STORE names another host or port"},
	{isUnresolved, "its host name is not known (DNS)"},
	{isErr(syscall.ENOENT), "its socket does not exist: it is not running, or FENCEPOST_STORE names another path"},
	{isErr(syscall.EACCES, syscall.EPERM), "the operating system does not let the gateway connect to it"},
	{isErr(syscall.EHOSTUNREACH, syscall.ENETUNREACH), "there is no route to its host"},
	{says(" loading "), "it has started, and is loading its data"},
	{says(" misconf "), "it can't write to its disk, so it refuses all writes (MISCONF)"},
	{says(" oom "), "its memory is full (maxmemory)"},
	{says(" noreplicas "), "it has fewer replicas than it needs (min-replicas-to-write)"},
	{says(" masterdown "), "its link to the master is down"},
	{says(" clusterdown "), "the Cluster is down: a part of it has no master"},
	{isErr(errNoMaster), "no master is known"},
	{isTimeout, "it does not answer in time: it may be stopped, overloaded or cut off"},
	{isErr(io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE), "it closes the connections"},
}

func isErr(targets ...error) func(error, string) bool {
	return func(err error, _ string) bool {
		for _, target := range targets {
			if errors.Is(err, target) {
				return true
			}
		}
		return false
	}
}

func isUnresolved(err error, _ string) bool {
	_, is := errors.AsType[*net.DNSError](err)
	return is
}

func isTimeout(err error, _ string) bool {
	timeout, is := errors.AsType[net.Error](err)
	return is && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errBudget)
}

// outage returns an error as the outage that it is of, if that is known.
func outage(err error) error {
	text := " " + strings.ToLower(err.Error())
	for _, o := range outages {
		if o.is(err, text) {
			return &fencing.Outage{Detail: o.detail, Err: err}
		}
	}
	return err
}
