package auth

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// made is a key with its line.
func made(t *testing.T, name, scopes, prefixes, expires string) (key Key, line string) {
	t.Helper()
	key = NewKey()
	line, err := Line(key, name, scopes, prefixes, expires)
	if err != nil {
		t.Fatal(err)
	}
	return key, line
}

func parsed(t *testing.T, lines ...string) *Set {
	t.Helper()
	set, err := Parse([]byte(strings.Join(lines, "\n") + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestKeysLetIn(t *testing.T) {
	ci, ciLine := made(t, "ci", "lock,read", "jobs/", "")
	late, lateLine := made(t, "late", "admin", "*", now.Format(time.RFC3339))
	soon, soonLine := made(t, "soon", "fence", "*", now.Add(time.Second).Format(time.RFC3339))
	k := New(parsed(t, "# who may what", "", ciLine+" # of the build", lateLine+"\r", "\t"+soonLine, "cert db.example scope=fence prefix=*"), func() time.Time { return now })

	p, err := k.Key(ci.Reveal())
	if err != nil || p.Name != "ci" || p.ID != ci.ID || !p.Has(Read) || !p.Has(Lock) || p.Has(Fence) || p.Has(Admin) || p.Has(Anyone) || p.Has(0) {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := k.Key(late.Reveal()); err != ErrExpired {
		t.Errorf("an expired key: %v", err)
	}
	if _, err := k.Key(soon.Reveal()); err != nil {
		t.Errorf("a key that has not expired yet: %v", err)
	}
	other := NewKey()
	for what, key := range map[string]string{
		"another key": other.Reveal(), "another secret": ci.Reveal()[:keyLen-43] + other.Reveal()[keyLen-43:], "none": "", "the id": ci.ID,
		"the hash": ci.Hash(), "more": ci.Reveal() + "x", "less": ci.Reveal()[:keyLen-1], "upper case": strings.ToUpper(ci.Reveal()),
		"expired, with another secret": late.Reveal()[:keyLen-43] + other.Reveal()[keyLen-43:], "long": strings.Repeat("x", 1<<16),
	} {
		if p, err := k.Key(key); err != ErrUnknown || p != nil {
			t.Errorf("%s: %+v, %v", what, p, err)
		}
	}
	if p, err := k.Certificate("db.example"); err != nil || p.Name != "db.example" || p.ID != "" || !p.Has(Fence) {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := k.Certificate("DB.Example"); err != nil || p.Name != "db.example" {
		t.Errorf("in another case: %+v, %v", p, err)
	} else if _, err := k.Current(p); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"", "ci", "db.example.", "db.e\u212aample", "D\u0181.example"} {
		if _, err := k.Certificate(name); err != ErrUnknown {
			t.Errorf("certificate %q: %v", name, err)
		}
	}
}

func TestNewKeys(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		key := NewKey()
		if seen[key.ID] || idOf(key.Reveal()) != key.ID || len(key.Reveal()) != keyLen {
			t.Fatalf("%v", key)
		}
		seen[key.ID] = true
		sum := sha256.Sum256([]byte(key.Reveal())) // what sha256sum says
		if key.Hash() != hex.EncodeToString(sum[:]) {
			t.Fatal("another hash")
		}
		if s := fmt.Sprintf("%v %s", key, key); strings.Contains(s, key.Reveal()) {
			t.Fatal("a key prints its secret")
		}
	}
}

// TestNamesEndAtBorders: a prefix has what is below it, and nothing that only begins so.
func TestNamesEndAtBorders(t *testing.T) {
	for _, c := range []struct{ names, has, hasNot string }{
		{"a/", "a/b a/b/c", "a ab ab/c b/a A/b"},
		{"a", "a a/b a/b/c", "ab a.b a-b ab/c b"},
		{"a/b/", "a/b/c", "a a/b a/bc a/bc/d"},
		{"*", "a a/b *", ""},
		{"jobs/,nightly", "jobs/1 nightly nightly/x", "jobs nightly2 x/jobs/1"},
	} {
		names, err := parseNames(c.names)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range strings.Fields(c.has) {
			if !names.Cover(name) {
				t.Errorf("%s has not %s", c.names, name)
			}
		}
		for _, name := range strings.Fields(c.hasNot) {
			if names.Cover(name) {
				t.Errorf("%s has %s", c.names, name)
			}
		}
	}
	for _, list := range []string{"", ",", "a,", "*,a", "a,a", "/", "/a", "a//", "a/../b/", "..", "a b", "ü/", "**", "a/*", strings.Repeat("a,", MaxPrefixes) + "b"} {
		if names, err := parseNames(list); err == nil {
			t.Errorf("%q is taken for %v", list, names)
		}
	}
}

// TestRanges compares the ranges of random names with Cover.
func TestRanges(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	word := func(most int) string {
		segments := make([]string, 1+random.IntN(most))
		for i := range segments {
			segments[i] = string("ab-"[random.IntN(3)]) + strings.Repeat("a", random.IntN(2))
		}
		return strings.Join(segments, "/")
	}
	var all []string
	for range 500 {
		all = append(all, word(4))
	}
	slices.Sort(all)
	all = slices.Compact(all)
	for range 3000 {
		var list []string
		for range 1 + random.IntN(4) {
			list = append(list, word(3)+[]string{"", "/"}[random.IntN(2)])
		}
		slices.Sort(list)
		names, err := parseNames(strings.Join(slices.Compact(list), ","))
		if err != nil {
			t.Fatal(err)
		}
		begin := ""
		if random.IntN(2) == 0 {
			begin = word(3)
			begin = begin[:1+random.IntN(len(begin))]
		}
		var want, got []string
		for _, name := range all {
			if names.Cover(name) && strings.HasPrefix(name, begin) {
				want = append(want, name)
			}
		}
		for _, r := range names.Within(begin) {
			for _, name := range all {
				if r.One && name == r.Prefix || !r.One && strings.HasPrefix(name, r.Prefix) {
					got = append(got, name)
				} else if r.Before(name) != (name > r.Prefix) {
					t.Fatalf("%+v is before %s: %v", r, name, r.Before(name))
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%v within %q: %v has %v, want %v", names, begin, names.Within(begin), got, want)
		}
	}
}

func TestFaultsOfFiles(t *testing.T) {
	key, good := made(t, "ci", "lock,read", "jobs/", "")
	without := func(field string) string {
		var words []string
		for _, word := range strings.Fields(good) {
			if !strings.HasPrefix(word, field+"=") {
				words = append(words, word)
			}
		}
		return strings.Join(words, " ")
	}
	for what, line := range map[string]string{
		"the key for its name": "key " + key.Reveal() + good[6:],
		"no kind":              without("id")[4:], "another kind": "token" + good[3:], "no name": "key " + good[7:], "a bad name": "key /ci " + good[7:],
		"no id": without("id"), "no hash": without("sha256"), "no scope": without("scope"), "no prefix": without("prefix"),
		"the key for its hash": without("sha256") + " sha256=" + key.Reveal(), "the key for its id": without("id") + " id=" + key.Reveal(),
		"a long hash": good[:strings.Index(good, "sha256=")] + "sha256=" + strings.Repeat("0", 128) + " scope=read prefix=*",
		"twice":       good + " scope=read", "unknown": good + " colour=red", "no field": good + " read", "a bad scope": without("scope") + " scope=write", "anyone": without("scope") + " scope=anyone",
		"an empty scope": without("scope") + " scope=", "a bad prefix": without("prefix") + " prefix=/", "a bad time": good + " expires=tomorrow",
		"a cert with an id": "cert a id=" + key.ID + " scope=read prefix=*", "a short cert": "cert a", "a second id": "key other" + good[6:],
	} {
		_, err := Parse([]byte("# one\n" + good + "\n" + line + "\ncert x scope=y prefix=z"))
		if err == nil || !strings.Contains(err.Error(), "line 3: ") || !strings.Contains(err.Error(), "line 4: ") {
			t.Errorf("%s: %v", what, err)
		}
		if err != nil && (strings.Contains(err.Error(), key.Reveal()[keyLen-43:]) || strings.Contains(err.Error(), key.Hash())) {
			t.Errorf("%s: the error quotes a secret: %v", what, err)
		}
	}
	for what, content := range map[string]string{
		"nothing": "", "comments": "# key\n\n  # more\n", "too much": strings.Repeat("#", MaxFileBytes+1), "binary": "\x00\xff\x00", "a cert twice": "cert a scope=read prefix=*\ncert a scope=read prefix=*",
	} {
		if _, err := Parse([]byte(content)); err == nil {
			t.Errorf("%s was accepted", what)
		}
	}
	if _, err := Parse([]byte(strings.Repeat("x\n", 1000))); err == nil || strings.Count(err.Error(), "\n") >= maxFaults {
		t.Errorf("%v", err)
	}
	if _, err := Parse([]byte(key.Reveal() + "\n")); err == nil || !strings.Contains(err.Error(), "line 1: is a key itself") || strings.Contains(err.Error(), key.Reveal()[keyLen-43:]) {
		t.Errorf("of a key in place of its line: %v", err)
	}
	for _, c := range [][4]string{
		{"a b", "read", "*", ""}, {"a", "read scope=admin", "*", ""}, {"a", "read", "* expires=x", ""}, {"a", "read", "*", "2030-01-01"}, {"", "read", "*", ""}, {"a", "", "*", ""},
		{"a", "read", "", ""}, {"a", "read", "#", ""}, {"a\nkey", "read", "*", ""}, {"a", "read", "*\tx=y", ""},
	} {
		if line, err := Line(key, c[0], c[1], c[2], c[3]); err == nil {
			t.Errorf("%q makes %q", c, line)
		}
	}
}

func TestReplace(t *testing.T) {
	stays, staysLine := made(t, "stays", "read", "*", "")
	goes, goesLine := made(t, "goes", "read", "*", "")
	changes, changesLine := made(t, "changes", "read", "*", "")
	comes, comesLine := made(t, "comes", "read", "*", "")
	k := New(parsed(t, staysLine, goesLine, changesLine, "cert c scope=read prefix=*"), nil)
	before := map[string]*Principal{}
	for name, key := range map[string]Key{"stays": stays, "goes": goes, "changes": changes} {
		before[name], _ = k.Key(key.Reveal())
	}
	certificate, _ := k.Certificate("c")
	other := NewKey() // with an id that is in use
	forged := strings.Replace(goesLine, goes.Hash(), other.Hash(), 1)

	var got []string
	for _, c := range k.Replace(parsed(t, comesLine, staysLine, strings.Replace(changesLine, "scope=read", "scope=admin", 1), forged)) {
		got = append(got, c.Kind+" "+c.Principal.Name)
	}
	slices.Sort(got)
	if want := []string{"added comes", "changed changes", "changed goes", "removed c"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if _, err := k.Key(comes.Reveal()); err != nil {
		t.Error(err)
	}
	if p, err := k.Current(before["stays"]); err != nil || !p.equal(before["stays"]) {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := k.Current(before["changes"]); err != nil || !p.Has(Admin) || p.Has(Read) {
		t.Errorf("%+v, %v", p, err)
	}
	for _, p := range []*Principal{before["goes"], certificate} {
		if _, err := k.Current(p); !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: %v", p.Name, err)
		}
	}
	if changes := k.Replace(parsed(t, comesLine, staysLine, strings.Replace(changesLine, "scope=read", "scope=admin", 1), forged)); len(changes) > 0 {
		t.Errorf("nothing changed, but %v", changes)
	}
}

// FuzzParse: whatever a file says, it is taken or refused, and what was taken keeps to
// what a line may say.
func FuzzParse(f *testing.F) {
	key := NewKey()
	line, _ := Line(key, "ci", "lock,read", "jobs/", "2027-01-01T00:00:00Z")
	f.Add([]byte(line))
	f.Add([]byte("cert a scope=read prefix=* # x\n\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		set, err := Parse(content)
		if (set == nil) == (err == nil) {
			t.Fatal(set, err)
		}
		if err != nil {
			return
		}
		for _, p := range set.all() {
			if len(p.scopes) == 0 || p.Has(Anyone) || p.Has(0) || len(p.names) == 0 || len(p.names) > MaxPrefixes || checkPrincipal(p.Name) != nil {
				t.Fatalf("%+v", p)
			}
		}
	})
}

// A file that was cut short must not let in more than the whole one: what limits a key stands
// at the end of its line.
func TestHalfAFile(t *testing.T) {
	line, err := Line(NewKey(), "ci", "read", "jobs/ci", "2020-01-01T00:00:00Z")
	if err != nil {
		t.Fatal(err)
	}
	whole := line + "\n"
	if _, err := Parse([]byte(whole)); err != nil {
		t.Fatal(err)
	}
	for n := range len(whole) {
		if _, err := Parse([]byte(whole[:n])); err == nil {
			t.Errorf("the first %d of %d bytes are taken for a keys file", n, len(whole))
		}
	}
}
