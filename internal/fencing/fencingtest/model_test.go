package fencingtest

import "testing"

// twoGateways are the capabilities of a model that lacks none.
var twoGateways = Capabilities{OwnClock: true, Flush: true, Gateways: true, OneState: true, Claims: true, Quarantine: true}

func TestModel(t *testing.T) {
	for name, caps := range map[string]Capabilities{
		"one gateway":         {OneState: true},
		"two gateways":        twoGateways,
		"several partitions":  {OwnClock: true, Flush: true, Gateways: true, Claims: true, Quarantine: true},
		"no clock of its own": {Gateways: true, OneState: true},
	} {
		t.Run(name, func(t *testing.T) { Run(t, openModel(caps), caps) })
	}
}
