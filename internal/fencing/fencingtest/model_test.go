package fencingtest

import "testing"

// twoGateways are the capabilities of a model that lacks none.
var twoGateways = Capabilities{OwnClock: true, Flush: true, Gateways: true, OneState: true, Claims: true, Quarantine: true}

// smallStepped returns caps of a store whose steps do little.
func smallStepped(caps Capabilities) Capabilities {
	caps.StepLimit = smallSteps
	return caps
}

// fewHoldersOf returns caps of a store where names may have few holders.
func fewHoldersOf(caps Capabilities) Capabilities {
	caps.MaxHolders = fewHolders
	return caps
}

func TestModel(t *testing.T) {
	for name, caps := range map[string]Capabilities{
		"one gateway":         {OneState: true},
		"two gateways":        twoGateways,
		"several partitions":  {OwnClock: true, Flush: true, Gateways: true, Claims: true, Quarantine: true},
		"no clock of its own": {Gateways: true, OneState: true},
		"small steps":         smallStepped(twoGateways),
		"few holders":         fewHoldersOf(twoGateways),
	} {
		t.Run(name, func(t *testing.T) { Run(t, openModel(caps), caps) })
	}
}
