package fencing

// NewestRules is the newest version of the rules that this build of the gateway knows: it decides by any from 1 to this one. Which
// one is in force stands in State.Rules, and Step asks that where two versions differ: docs/rules.md says how a rule is changed.
// A build with the tag rules2 knows one more, for tests: see version_trial.go.
const NewestRules = newest
