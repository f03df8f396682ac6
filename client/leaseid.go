package client

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"time"
)

// crockford is the alphabet of a ULID: no I, L, O and U.
const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// NewLeaseID makes a lease id, which proves who holds a lease: a ULID (its public part), a
// dot, and a secret of 128 bits in base64url. Everything in it but the time is from
// crypto/rand.
func NewLeaseID() string {
	var b [32]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	var at [8]byte
	binary.BigEndian.PutUint64(at[:], uint64(time.Now().UnixMilli()))
	copy(b[:6], at[2:])
	return ulid([16]byte(b[:16])) + "." + base64.RawURLEncoding.EncodeToString(b[16:])
}

// ulid writes 128 bits as 26 characters of 5 bits; the first has the upper 3.
func ulid(b [16]byte) string {
	high, low := binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
	var text [26]byte
	for i := len(text) - 1; i >= 0; i-- {
		text[i] = crockford[low&31]
		low = low>>5 | high<<59
		high >>= 5
	}
	return string(text[:])
}

// DeriveLeaseID returns the lease id that belongs to a run of a job, for those who must
// find their lease again after they have forgotten everything but a secret of their own:
// the same secret and run give the same lease id. The secret should have 128 bits or more
// from a good random source. run is a name that is never used twice, such as a job's
// number and attempt: a lease id that has ended is not granted again for at least five minutes.
//
// With h(x) the hexadecimal HMAC-SHA256 of x with the secret as key, it is "01", the first
// 24 digits of h("fencepost public " + run) in upper case, a dot, and the first 40 digits
// of h("fencepost secret " + run).
func DeriveLeaseID(secret []byte, run string) string {
	digits := func(label string) string {
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte("fencepost " + label + " " + run))
		return hex.EncodeToString(mac.Sum(nil))
	}
	return "01" + strings.ToUpper(digits("public")[:24]) + "." + digits("secret")[:40]
}

// PublicPart returns the part of a lease id that is safe to log and to show.
func PublicPart(leaseID string) string {
	public, _, _ := strings.Cut(leaseID, ".")
	return public
}
