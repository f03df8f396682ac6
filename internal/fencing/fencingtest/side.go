package fencingtest

import (
	"fmt"

	"fencepost/internal/fencing"
)

// side is the lexicon of one side of a comparison.
type side struct {
	*comparison
	of int
}

func (s side) bind(label string, name fencing.Name, token fencing.Token) error {
	if g := s.labels[label]; g != nil {
		if g.tokens[s.of] != token {
			return fmt.Errorf("it is not %s", label)
		}
		return nil
	}
	for _, g := range s.grants[name] {
		if g.tokens[s.of] == token && g.label == "" {
			g.label = label
			s.labels[label] = g
			return nil
		}
	}
	return fmt.Errorf("%s would stand for a token that was never granted on %s, or has another label", label, name)
}

func (s side) resolve(label string) (fencing.Token, bool) {
	g := s.labels[label]
	if g == nil {
		return 0, false
	}
	return g.tokens[s.of], true
}

func (s side) tokenLabel(name fencing.Name, token fencing.Token) string {
	for _, g := range s.grants[name] {
		if g.tokens[s.of] == token && g.label != "" {
			return g.label
		}
	}
	return token.String()
}

func (s side) leaseLabel(lease fencing.LeasePublic) string {
	if label := s.leases[lease]; label != "" {
		return label
	}
	return string(lease)
}

func (s side) stampLabel(stamp fencing.Stamp) string {
	if label := s.stamps[stamp]; label != "" {
		return label
	}
	return string(stamp)
}
