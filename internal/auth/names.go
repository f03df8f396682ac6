package auth

import (
	"fmt"
	"slices"
	"strings"

	"fencepost/internal/fencing"
)

// MaxPrefixes is how many prefixes a line may have: a list is read prefix by prefix.
const MaxPrefixes = 16

// allNames is the prefix of every name.
const allNames = "*"

// Names says which names a principal may use: "jobs/" is all names below jobs, "jobs" is
// that name and all below it, "*" is every name. A prefix ends at a border between two
// segments: neither of the first two has jobsite.
type Names []string

// parseNames reads a list of prefixes.
func parseNames(list string) (Names, error) {
	prefixes := strings.Split(list, ",")
	if len(prefixes) > MaxPrefixes {
		return nil, fmt.Errorf("has %d prefixes; at most %d are allowed", len(prefixes), MaxPrefixes)
	}
	for _, prefix := range prefixes {
		if prefix == allNames {
			if len(prefixes) > 1 {
				return nil, fmt.Errorf("has %s, which means every name, together with others", allNames)
			}
			return Names{allNames}, nil
		}
		if _, err := fencing.ParseName(strings.TrimSuffix(prefix, "/")); err != nil {
			return nil, fmt.Errorf("has an invalid prefix; a prefix is like jobs/ (all names below jobs), jobs (that name, and all below it) or %s (every name)", allNames)
		}
	}
	slices.Sort(prefixes)
	for i := 1; i < len(prefixes); i++ {
		if prefixes[i] == prefixes[i-1] {
			return nil, fmt.Errorf("has %s twice", prefixes[i])
		}
	}
	return prefixes, nil
}

// String returns the names as a file has them.
func (n Names) String() string { return strings.Join(n, ",") }

// All reports whether every name is one of them.
func (n Names) All() bool { return len(n) == 1 && n[0] == allNames }

// Cover reports whether a name is one of them.
func (n Names) Cover(name string) bool {
	return n.All() || slices.ContainsFunc(n, func(prefix string) bool {
		rest, found := strings.CutPrefix(name, prefix)
		return found && (rest == "" || prefix[len(prefix)-1] == '/' || rest[0] == '/')
	})
}

// Range is a part of the names in their order: all that begin with Prefix, or only the
// name that Prefix is.
type Range struct {
	Prefix string
	One    bool
}

// Before reports whether the range has nothing behind a name.
func (r Range) Before(name string) bool {
	return r.Prefix <= name && (r.One || !strings.HasPrefix(name, r.Prefix))
}

// Within returns those of the names that begin with a string, as ranges in their order
// that don't overlap.
func (n Names) Within(begin string) []Range {
	if n.All() {
		return []Range{{Prefix: begin}}
	}
	var all []Range
	add := func(r Range) {
		switch {
		case r.One && !strings.HasPrefix(r.Prefix, begin):
			return
		case r.One:
		case strings.HasPrefix(begin, r.Prefix):
			r.Prefix = begin
		case !strings.HasPrefix(r.Prefix, begin):
			return
		}
		all = append(all, r)
	}
	for _, prefix := range n {
		if prefix[len(prefix)-1] != '/' {
			add(Range{Prefix: prefix, One: true})
			prefix += "/"
		}
		add(Range{Prefix: prefix})
	}
	slices.SortFunc(all, func(a, b Range) int {
		if a.Prefix == b.Prefix && a.One != b.One {
			return map[bool]int{false: -1, true: 1}[a.One]
		}
		return strings.Compare(a.Prefix, b.Prefix)
	})
	kept := all[:0]
	for _, r := range all { // one that lies in another comes behind it
		if len(kept) == 0 || !kept[len(kept)-1].holds(r) {
			kept = append(kept, r)
		}
	}
	return kept
}

// holds reports whether all of r is in b.
func (b Range) holds(r Range) bool {
	if b.One {
		return r.One && r.Prefix == b.Prefix
	}
	return strings.HasPrefix(r.Prefix, b.Prefix)
}
