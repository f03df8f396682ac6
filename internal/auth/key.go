package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"strings"
)

const (
	keyMark     = "fp_" // what scanners for leaked secrets look for
	idLen       = 8     // of base32: 40 random bits
	secretBytes = 32
	secretLen   = 43 // of secretBytes in base64url
	keyLen      = len(keyMark) + idLen + len("_") + secretLen
)

// idAlphabet is that of Crockford, without letters that are taken for others.
const idAlphabet = "0123456789abcdefghjkmnpqrstvwxyz"

// digest is the SHA-256 of a key. A slow hash would guard what people choose: of 256
// random bits nothing can be found by trying, however fast (NIST SP 800-63B, 5.1.2.2, has
// secrets of 112 bits and more hashed once), and every request pays for it.
type digest [sha256.Size]byte

// Key is a new key.
type Key struct {
	ID     string // public
	secret string // the whole key
}

// NewKey makes a key of 256 random bits.
func NewKey() Key {
	id, secret := make([]byte, idLen*5/8), make([]byte, secretBytes)
	rand.Read(id) // never fails
	rand.Read(secret)
	public := base32.NewEncoding(idAlphabet).EncodeToString(id)
	return Key{ID: public, secret: keyMark + public + "_" + base64.RawURLEncoding.EncodeToString(secret)}
}

// Reveal returns the key as its owner is to send it.
func (k Key) Reveal() string { return k.secret }

// String keeps the secret out of logs.
func (k Key) String() string { return k.ID }

// Hash returns what the keys file has in place of the key: its SHA-256, in hexadecimal.
func (k Key) Hash() string {
	sum := sha256.Sum256([]byte(k.secret))
	return hex.EncodeToString(sum[:])
}

// idOf returns the public id of a key; empty if it is none.
func idOf(key string) string {
	if len(key) != keyLen || !strings.HasPrefix(key, keyMark) || key[len(keyMark)+idLen] != '_' {
		return ""
	}
	id := key[len(keyMark) : len(keyMark)+idLen]
	if !isID(id) {
		return ""
	}
	return id
}

func isID(s string) bool { return len(s) == idLen && strings.Trim(s, idAlphabet) == "" }

// matches reports whether a digest is that of a key, in a time that tells nothing of it.
func (d digest) matches(key string) bool {
	sum := sha256.Sum256([]byte(key))
	return subtle.ConstantTimeCompare(sum[:], d[:]) == 1
}
