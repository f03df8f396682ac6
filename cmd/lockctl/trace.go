package main

import (
	"os"
	"regexp"
	"strings"
)

// The variables in which a program hands its trace on to those that it starts (OpenTelemetry,
// "Environment Variables as Context Propagation Carriers").
const (
	parentVariable = "TRACEPARENT"
	stateVariable  = "TRACESTATE"
)

// maxTraceState is what everybody has to pass on of a tracestate (W3C Trace Context, 3.3.1.5).
const maxTraceState = 512

// traceparent is that of version 00 (W3C Trace Context, 3.2): version, trace, span, flags.
var traceparent = regexp.MustCompile(`^00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}$`)

// traceHeader returns what the environment says of a trace, as headers of requests. What is
// not well formed is left out and no fault: a lock does not depend on who watches it.
func traceHeader() map[string][]string {
	parent, state := os.Getenv(parentVariable), os.Getenv(stateVariable)
	ids := traceparent.FindStringSubmatch(parent)
	if ids == nil || strings.Trim(ids[1], "0") == "" || strings.Trim(ids[2], "0") == "" {
		return nil
	}
	header := map[string][]string{"Traceparent": {parent}}
	if state != "" && len(state) <= maxTraceState && !strings.ContainsFunc(state, func(r rune) bool { return r < ' ' || r > '~' }) {
		header["Tracestate"] = []string{state}
	}
	return header
}
