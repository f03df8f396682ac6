package fencing_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

var leaseIDForm = regexp.MustCompile(fencing.LeaseIDPattern)

const public = "01KD0000000000000000000000"

func TestNewLeaseID(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	publics, secrets := map[fencing.LeasePublic]bool{}, map[string]bool{}
	var bits [16]byte // that were set in some secret or public part
	const n = 1000
	for range n {
		id := fencing.NewLeaseID(now)
		whole := id.Reveal()
		if !leaseIDForm.MatchString(whole) {
			t.Fatalf("%q has not the form of a lease id", whole)
		}
		parsed, err := fencing.ParseLeaseID(whole)
		if err != nil || parsed != id {
			t.Fatalf("ParseLeaseID(%q) = %v, %v", whole, parsed, err)
		}
		before, secret, _ := strings.Cut(whole, ".")
		if before != string(id.Public()) || len(secret) != 22 {
			t.Fatalf("%q: the public part is %q, the secret has %d characters", whole, id.Public(), len(secret))
		}
		if before[:10] != fencing.NewLeaseID(now).Reveal()[:10] {
			t.Fatalf("%q does not start with its time", whole)
		}
		publics[id.Public()], secrets[secret] = true, true
		for i := range bits {
			bits[i] |= secret[i] ^ secret[0] | before[10+i] ^ before[10]
		}
	}
	if len(publics) != n || len(secrets) != n {
		t.Errorf("%d public parts and %d secrets of %d lease ids", len(publics), len(secrets), n)
	}
	for i, seen := range bits {
		if i > 0 && seen == 0 {
			t.Errorf("character %d never differs from the first", i)
		}
	}
}

// TestSecretIsNotDerivedFromThePublicPart makes lease ids at one time: were the
// parts drawn from a generator that is seeded with the clock, they would repeat.
func TestSecretIsNotDerivedFromThePublicPart(t *testing.T) {
	now := time.UnixMilli(1)
	a, b := fencing.NewLeaseID(now), fencing.NewLeaseID(now)
	if a.Public() == b.Public() || a.Hash() == b.Hash() {
		t.Errorf("two lease ids of one instant share a part: %s, %s", a, b)
	}
	// The entropy of a ULID that is monotonic goes up by one: the first 9 of 10
	// bytes, 14 characters, would be the same.
	if a.Public()[:24] == b.Public()[:24] {
		t.Errorf("the public parts %s and %s follow one another", a, b)
	}
}

func TestParseLeaseID(t *testing.T) {
	secret := strings.Repeat("aZ0-_", 5)
	for _, test := range []struct {
		name, text string
		ok         bool
	}{
		{"shortest secret", public + "." + secret[:22], true},
		{"longest secret", public + "." + strings.Repeat("a", 43), true},
		{"greatest ULID", "7ZZZZZZZZZZZZZZZZZZZZZZZZZ." + secret, true},
		{"secret too short", public + "." + secret[:21], false},
		{"secret too long", public + "." + strings.Repeat("a", 44), false},
		{"padding", public + "." + secret[:22] + "==", false},
		{"base64 of the other alphabet", public + "." + secret[:22] + "+/", false},
		{"second dot", public + "." + secret[:22] + ".", false},
		{"no dot", public + secret, false},
		{"nothing", "", false},
		{"only a dot", ".", false},
		{"small letters", strings.ToLower(public) + "." + secret, false},
		{"letter outside of the alphabet", "01KDI000000000000000000000." + secret, false},
		{"letter U", "01KDU000000000000000000000." + secret, false},
		{"ULID too great", "8ZZZZZZZZZZZZZZZZZZZZZZZZZ." + secret, false},
		{"public part too short", public[1:] + "." + secret, false},
		{"public part too long", "0" + public + "." + secret, false},
		{"blank before", " " + public + "." + secret, false},
		{"newline behind", public + "." + secret + "\n", false},
		{"byte outside of ASCII", public + "." + secret[:22] + "é", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			id, err := fencing.ParseLeaseID(test.text)
			if (err == nil) != test.ok {
				t.Fatalf("ParseLeaseID(%q): %v", test.text, err)
			}
			if err == nil {
				if id.Reveal() != test.text || id.IsZero() {
					t.Errorf("the lease id is %q", id.Reveal())
				}
				return
			}
			refusal(t, err, "Lease-Id")
			if !id.IsZero() {
				t.Error("a lease id beside an error")
			}
			if strings.Contains(err.Error(), secret[:21]) {
				t.Errorf("the error quotes the secret: %v", err)
			}
		})
	}
}

// refusal checks that err is an *Error that names field.
func refusal(t *testing.T, err error, field string) {
	t.Helper()
	e, ok := errors.AsType[*fencing.Error](err)
	if !ok || e.Code != fencing.CodeInvalidRequest || e.Field != field || !strings.HasPrefix(e.Detail, field+" ") {
		t.Errorf("%#v is no refusal of %s", err, field)
	}
}

func TestSecretDoesNotLeak(t *testing.T) {
	const secret = "not-for-anybodys-eyes-0000"
	id, err := fencing.ParseLeaseID(public + "." + secret)
	if err != nil {
		t.Fatal(err)
	}
	request := fencing.AcquireRequest{Name: "a", Lease: id}
	shown := map[string]string{}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		shown["Sprintf "+verb] = fmt.Sprintf(verb, id)
		shown["Sprintf pointer "+verb] = fmt.Sprintf(verb, &id)
		shown["Sprintf request "+verb] = fmt.Sprintf(verb, request)
		shown["Sprintf slice "+verb] = fmt.Sprintf(verb, []fencing.LeaseID{id})
	}
	shown["String"] = id.String()
	shown["Sprint"] = fmt.Sprint(id, request)
	encoded, err := json.Marshal(map[string]any{"id": id, "request": request, "pointer": &id})
	if err != nil {
		t.Fatal(err)
	}
	shown["JSON"] = string(encoded)
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("json", "id", id, "request", request, "pointer", &id)
	slog.New(slog.NewTextHandler(&log, nil)).Info("text", "id", id, "request", request, "pointer", &id)
	shown["slog"] = log.String()
	hexed := fmt.Sprintf("%x", secret)
	for how, text := range shown {
		if strings.Contains(text, secret) || strings.Contains(strings.ToLower(text), hexed) {
			t.Errorf("%s shows the secret: %s", how, text)
		}
	}
	for _, how := range []string{"Sprintf %v", "Sprintf %#v", "Sprint", "String", "JSON", "slog"} {
		if !strings.Contains(shown[how], public) {
			t.Errorf("%s does not show the public part: %s", how, shown[how])
		}
	}
	if id.Reveal() != public+"."+secret {
		t.Errorf("Reveal() = %q", id.Reveal())
	}
}

func TestSecretHash(t *testing.T) {
	parse := func(secret string) fencing.LeaseID {
		id, err := fencing.ParseLeaseID(public + "." + secret)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	a, b := parse(strings.Repeat("a", 22)), parse(strings.Repeat("a", 21)+"b")
	if !a.Hash().Equal(a.Hash()) || a.Hash().Equal(b.Hash()) {
		t.Error("hashes of equal secrets are equal, and of no others")
	}
	if a.Hash().Equal(fencing.SecretHash{}) {
		t.Error("a hash equals none at all")
	}
}

func TestNewStamp(t *testing.T) {
	form := regexp.MustCompile(`^[0-9a-f]{16}$`)
	a, b := fencing.NewStamp(), fencing.NewStamp()
	if !form.MatchString(string(a)) || a == b {
		t.Errorf("stamps %q and %q", a, b)
	}
}

func FuzzParseLeaseID(f *testing.F) {
	f.Add(public + "." + strings.Repeat("a", 22))
	f.Add("7ZZZZZZZZZZZZZZZZZZZZZZZZZ." + strings.Repeat("_", 43))
	f.Add("8ZZZZZZZZZZZZZZZZZZZZZZZZZ." + strings.Repeat("-", 44))
	f.Add(strings.ToLower(public) + "..")
	f.Fuzz(func(t *testing.T, text string) {
		id, err := fencing.ParseLeaseID(text)
		if (err == nil) != leaseIDForm.MatchString(text) {
			t.Fatalf("ParseLeaseID(%q): %v, and the pattern says otherwise", text, err)
		}
		if err != nil {
			refusal(t, err, "Lease-Id")
			return
		}
		if id.Reveal() != text {
			t.Fatalf("%q became %q", text, id.Reveal())
		}
	})
}
