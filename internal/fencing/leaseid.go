package fencing

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
)

// Lengths of the two parts of a lease id. 22 characters of base64url carry 132
// bits, the least that holds 128; 43 carry 32 bytes.
const (
	publicLen    = ulid.EncodedSize
	minSecretLen = 22
	maxSecretLen = 43
)

// LeaseIDPattern is the form of a lease id as a regular expression.
const LeaseIDPattern = `^[0-7][0-9A-HJKMNP-TV-Z]{25}\.[A-Za-z0-9_-]{22,43}$`

// LeasePublic is the public part of a lease id: a ULID in its canonical form of
// 26 upper-case characters. It is safe to log and to show.
type LeasePublic string

// SecretHash is the SHA-256 of the secret part of a lease id as written. Stores
// keep it in place of the secret.
type SecretHash [sha256.Size]byte

// Equal compares in constant time.
func (h SecretHash) Equal(other SecretHash) bool {
	return subtle.ConstantTimeCompare(h[:], other[:]) == 1
}

// LeaseID is the credential of a lease, <public>.<secret>. Printing, logging or
// encoding one shows the public part only; Reveal gives the whole. The zero
// LeaseID is none.
type LeaseID struct {
	public LeasePublic
	secret string
}

// NewLeaseID makes a lease id: a ULID of now with random bits, and a separate
// secret of 128 bits, both from crypto/rand.
func NewLeaseID(now time.Time) LeaseID {
	const secretBytes, entropyBytes = 16, 10
	var random [secretBytes + entropyBytes]byte
	rand.Read(random[:]) // never fails: crypto/rand ends the program instead
	var public ulid.ULID
	public.SetTime(ulid.Timestamp(now)) // fails in the year 10889
	public.SetEntropy(random[secretBytes:])
	return LeaseID{public: LeasePublic(public.String()), secret: base64.RawURLEncoding.EncodeToString(random[:secretBytes])}
}

// ParseLeaseID reads <public>.<secret>: 26 characters of ULID in upper case, a
// dot, 22 to 43 characters of base64url. The *Error has CodeInvalidRequest and
// Field "Lease-Id" and never quotes the secret.
func ParseLeaseID(s string) (LeaseID, error) {
	const form = "must be a ULID of 26 characters, a dot, and 22 to 43 characters of base64url"
	public, secret, ok := strings.Cut(s, ".")
	if !ok {
		return LeaseID{}, invalid("Lease-Id", "%s; there is no dot", form)
	}
	if _, err := ParseLeasePublic("Lease-Id", public); err != nil {
		return LeaseID{}, invalid("Lease-Id", "%s; the part before the dot is not a ULID in upper case", form)
	}
	if len(secret) < minSecretLen || len(secret) > maxSecretLen {
		return LeaseID{}, invalid("Lease-Id", "%s; the part after the dot has %d characters", form, len(secret))
	}
	for i := 0; i < len(secret); i++ {
		if !base64urlByte(secret[i]) {
			return LeaseID{}, invalid("Lease-Id", "%s; the part after the dot has a character that base64url does not have", form)
		}
	}
	return LeaseID{public: LeasePublic(public), secret: secret}, nil
}

// ParseLeasePublic reads the public part of a lease id. The *Error has CodeInvalidRequest and
// the field.
func ParseLeasePublic(field, s string) (LeasePublic, error) {
	if id, err := ulid.ParseStrict(s); err != nil || id.String() != s {
		return "", invalid(field, "must be the public part of a lease id: a ULID of 26 characters in upper case")
	}
	return LeasePublic(s), nil
}

func base64urlByte(b byte) bool {
	return b >= 'A' && b <= 'Z' || b >= 'a' && b <= 'z' || b >= '0' && b <= '9' || b == '-' || b == '_'
}

// Public returns the part that is safe to show.
func (id LeaseID) Public() LeasePublic { return id.public }

// Hash returns the SHA-256 of the secret.
func (id LeaseID) Hash() SecretHash {
	if hash, ok := strings.CutPrefix(id.secret, hashed); ok {
		return SecretHash([]byte(hash))
	}
	return sha256.Sum256([]byte(id.secret))
}

// hashed stands before the hash of a secret that is not known itself. No secret
// has that character.
const hashed = "#"

// HashedLeaseID returns a lease id of which only the hash of the secret is known. It
// proves as much to a store, and can't be told to anybody: Reveal gives nothing.
func HashedLeaseID(public LeasePublic, hash SecretHash) LeaseID {
	return LeaseID{public: public, secret: hashed + string(hash[:])}
}

// Reveal returns the whole credential. Only the answer to the POST that made
// the grant may carry it.
func (id LeaseID) Reveal() string {
	if strings.HasPrefix(id.secret, hashed) {
		return ""
	}
	return string(id.public) + "." + id.secret
}

// IsZero reports whether id is none.
func (id LeaseID) IsZero() bool { return id.public == "" }

// String returns the public part.
func (id LeaseID) String() string { return string(id.public) }

// Format writes the public part, so that no verb leaks the secret: String alone
// would leave %d and %#v to do so.
func (id LeaseID) Format(f fmt.State, verb rune) {
	fmt.Fprintf(f, fmt.FormatString(f, verb), string(id.public))
}

// MarshalText returns the public part, so that no encoder leaks the secret.
func (id LeaseID) MarshalText() ([]byte, error) { return []byte(id.public), nil }

// LogValue returns the public part.
func (id LeaseID) LogValue() slog.Value { return slog.StringValue(string(id.public)) }

// Stamp names the request that last asked for a lease: the last one wins, and
// only the request that made a grant may take it back. 16 hex digits.
type Stamp string

// NewStamp makes a stamp of 64 random bits.
func NewStamp() Stamp {
	var b [8]byte
	rand.Read(b[:])
	return Stamp(hex.EncodeToString(b[:]))
}
