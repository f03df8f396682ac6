package fencetest

import (
	"context"
	"errors"
)

// ErrRefused is what Storage.Write returns, or wraps, where the storage has refused the
// token and written nothing.
var ErrRefused = errors.New("refused")

// ErrUnknown is what Storage.Write returns, or wraps, where it can't be told whether
// it was written. Any other error says that it was not, for another reason than the token.
var ErrUnknown = errors.New("it is unknown whether it was written")

// Write is one write of an attack.
type Write struct {
	Resource string // 1 to 100 bytes of a-z 0-9 and -
	Token    string // decimal digits, or something that is no token
	Slot     int    // of a permit, from 0; -1: none
	Value    string // to be stored: 1 to 100 bytes of a-z 0-9 and -
}

// Storage is what is attacked. Its methods are called by several goroutines at once.
type Storage interface {
	// Write writes the value with the token: nil says that it was admitted.
	Write(ctx context.Context, w Write) error

	// Read returns what a resource has; "" where it was never written. An error that
	// wraps errors.ErrUnsupported says that this storage can't be read: then only its answers
	// are judged.
	Read(ctx context.Context, resource string) (string, error)
}
