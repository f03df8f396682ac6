package auth

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"fencepost/internal/fencing"
)

// MaxFileBytes is the size of the largest keys file.
const MaxFileBytes = 1 << 20

// maxFaults is how many faults of a file are told.
const maxFaults = 20

// Set is what a keys file says.
type Set struct {
	keys         map[string]*Principal // by id
	certificates map[string]*Principal // by certificateKey of their names
}

// certificateKey makes names of certificates that differ in case the same: those of DNS are
// (RFC 4343), and common names are compared so (RFC 5280, 7.1). Only letters of ASCII have a
// case here: strings.ToLower makes a k of the Kelvin sign, and so of another name.
func certificateKey(name string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, name)
}

// Len returns how many principals there are.
func (s *Set) Len() int { return len(s.keys) + len(s.certificates) }

// all returns the principals by what they are known by.
func (s *Set) all() map[string]*Principal {
	all := make(map[string]*Principal, s.Len())
	for id, p := range s.keys {
		all["key "+id] = p
	}
	for name, p := range s.certificates {
		all["cert "+name] = p
	}
	return all
}

// Parse reads a keys file. A line is one of
//
//	key  NAME id=… sha256=… scope=lock,read prefix=jobs/ [expires=2027-01-01T00:00:00Z]
//	cert NAME scope=… prefix=… [expires=…]
//
// with its fields in any order. Every line has its end, the last one too. What follows a # at the begin of a word is a comment. The
// error tells of every fault with the number of its line, and quotes neither a hash nor
// what may be a key.
func Parse(content []byte) (*Set, error) {
	if len(content) > MaxFileBytes {
		return nil, fmt.Errorf("the file has more than %d bytes", MaxFileBytes)
	}
	set := &Set{keys: map[string]*Principal{}, certificates: map[string]*Principal{}}
	var faults []error
	if n := len(content); n > 0 && content[n-1] != '\n' { // a cut takes away what limits a key: its expiry, a part of a prefix
		faults = append(faults, errors.New("the last line does not end with a line break: the file may be half written"))
	}
	number := 0
	for line := range bytes.Lines(content) {
		number++
		words := strings.Fields(string(line))
		if i := slices.IndexFunc(words, func(word string) bool { return word[0] == '#' }); i >= 0 {
			words = words[:i]
		}
		if len(words) == 0 {
			continue
		}
		if err := set.add(words); err != nil {
			faults = append(faults, fmt.Errorf("line %d: %w", number, err))
		}
		if len(faults) == maxFaults {
			break
		}
	}
	if len(faults) == 0 && set.Len() == 0 {
		faults = append(faults, errors.New("the file has no key: gateway keygen makes one"))
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return set, nil
}

// add reads a line.
func (s *Set) add(words []string) error {
	switch words[0] {
	case "key":
		p, err := parseLine(words, "id", "sha256", "scope", "prefix")
		if err != nil {
			return err
		}
		if s.keys[p.ID] != nil {
			return fmt.Errorf("id %s is in an earlier line already", p.ID)
		}
		s.keys[p.ID] = p
	case "cert":
		p, err := parseLine(words, "scope", "prefix")
		if err != nil {
			return err
		}
		if s.certificates[certificateKey(p.Name)] != nil {
			return fmt.Errorf("the certificate %s is in an earlier line already", p.Name)
		}
		s.certificates[certificateKey(p.Name)] = p
	default:
		if strings.HasPrefix(words[0], keyMark) {
			return errors.New("is a key itself; the file has the lines that gateway keygen prints on stdout")
		}
		return errors.New("must begin with key or cert")
	}
	return nil
}

// parseLine reads the name and the fields of a line, of which some are needed; expires
// never is.
func parseLine(words []string, needed ...string) (*Principal, error) {
	kind := words[0]
	if len(words) < 2 || strings.Contains(words[1], "=") {
		return nil, fmt.Errorf("the word after %s must be a name", kind)
	}
	p := &Principal{}
	if err := checkPrincipal(words[1]); err != nil {
		return nil, err
	}
	p.Name = words[1]
	given := map[string]bool{}
	for _, word := range words[2:] {
		field, value, found := strings.Cut(word, "=")
		switch {
		case !found || field != "expires" && !slices.Contains(needed, field):
			return nil, fmt.Errorf("has an unknown field; those of a %s are %s and expires, each like scope=read", kind, strings.Join(needed, ", "))
		case given[field]:
			return nil, fmt.Errorf("%s is given twice", field)
		}
		given[field] = true
		if err := p.setField(field, value); err != nil {
			return nil, fmt.Errorf("%s %w", field, err)
		}
	}
	for _, field := range needed {
		if !given[field] {
			return nil, fmt.Errorf("%s is missing", field)
		}
	}
	return p, nil
}

// checkPrincipal says what is wrong with the name of a principal.
func checkPrincipal(name string) error {
	if strings.HasPrefix(name, keyMark) {
		return errors.New("the name begins as keys do: the key itself is not for this file")
	}
	if _, err := fencing.ParseName(name); err != nil {
		return errors.New("the name must have 1 to 255 of A-Z a-z 0-9 . _ : @ ~ - and /")
	}
	return nil
}

func (p *Principal) setField(field, value string) (err error) {
	switch field {
	case "id":
		if p.ID = value; !isID(value) {
			return fmt.Errorf("must have %d of %s", idLen, idAlphabet)
		}
	case "sha256":
		sum, err := hex.DecodeString(value)
		if err != nil || len(sum) != len(p.hash) {
			return errors.New("must have 64 hexadecimal digits: the hash of the key, not the key")
		}
		p.hash = digest(sum)
	case "scope":
		p.scopes, err = parseScopes(value)
	case "prefix":
		p.names, err = parseNames(value)
	case "expires":
		if p.expires, err = time.Parse(time.RFC3339, value); err != nil {
			return errors.New("must be a time like 2027-01-01T00:00:00Z (RFC 3339)")
		}
	}
	return err
}

// parseScopes reads a list of scopes, and returns them in an order of ours.
func parseScopes(list string) ([]Scope, error) {
	found := map[Scope]bool{}
	for name := range strings.SplitSeq(list, ",") {
		scope, ok := parseScope(name)
		if !ok {
			return nil, errors.New("must be a list of read, lock, fence and admin, separated by commas")
		}
		found[scope] = true
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// Line returns what a keys file is to have for a key, or what Parse would say against it.
// expires may be empty.
func Line(key Key, name, scopes, prefixes, expires string) (string, error) {
	line := strings.Join([]string{"key", name, "id=" + key.ID, "sha256=" + key.Hash(), "scope=" + scopes, "prefix=" + prefixes}, " ")
	if expires != "" {
		line += " expires=" + expires
	}
	if strings.ContainsAny(line, "#\n") || len(strings.Fields(line)) != len(strings.Split(line, " ")) {
		return "", errors.New("a name, scope, prefix or time must have no spaces and no #")
	}
	set := &Set{keys: map[string]*Principal{}}
	return line, set.add(strings.Fields(line))
}
