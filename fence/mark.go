package fence

import (
	"errors"
	"fmt"
	"strconv"
)

const (
	// MaxToken is the largest fencing token: up to here a double, which is what JSON and
	// Lua have for numbers, counts exactly. The smallest is 1.
	MaxToken = 1<<53 - 1

	// MaxSlot is the highest slot of a permit; a lock has at most 10,000 permits.
	MaxSlot = 9999

	// NoSlot is the slot of a lease that is not a permit, above all of an exclusive one.
	NoSlot = -1

	// MaxResourceBytes is the length of the longest resource name, the same as that of a lock's name.
	MaxResourceBytes = 255
)

// ErrInvalid is wrapped by errors that say that a token, a slot or a resource is none
// that can be: retrying is of no use. Nothing was admitted or written.
var ErrInvalid = errors.New("invalid")

// StaleError refuses a token that is below what was admitted before: the lock has been
// granted to somebody else since, who has written. Nothing was written. The caller no
// longer holds the lock, whatever it believes, and must stop.
type StaleError struct {
	Token   int64 // that was refused
	Highest int64 // that it would have had to reach
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("stale fencing token: %d is below %d, which was admitted before", e.Token, e.Highest)
}

// Mark is what a guard remembers of a resource: the highest tokens that it has admitted.
// The zero Mark has admitted none. A Mark is not safe for concurrent use, and is
// worth only as much as the step in which it is read, changed and kept together with the
// write: see the package's documentation. The guards of this package do that.
type Mark struct {
	Token int64         `json:"token"`           // the highest without a slot; 0: none yet
	Slots map[int]int64 `json:"slots,omitempty"` // the highest of each slot, where it is above Token
}

// Admit admits a token for a slot, or NoSlot, and remembers it. It refuses with a
// *StaleError a token that is below the mark: with a slot, below that of the slot or the
// one without slot; without a slot, below any. An equal one is admitted again. A token
// that is not from 1 to MaxToken, or a slot that is neither NoSlot nor from 0 to MaxSlot,
// wraps ErrInvalid. What is refused changes nothing.
func (m *Mark) Admit(token int64, slot int) error {
	_, err := m.admit(token, slot)
	return err
}

// admit reports besides whether the mark has changed.
func (m *Mark) admit(token int64, slot int) (raised bool, err error) {
	if err := checkToken(token, slot); err != nil {
		return false, err
	}
	highest := m.highest(slot)
	switch {
	case token < highest:
		return false, &StaleError{Token: token, Highest: highest}
	case slot == NoSlot:
		raised = token > m.Token
		m.Token, m.Slots = token, nil // no slot's mark is above it
	case token > highest:
		raised = true
		if m.Slots == nil {
			m.Slots = map[int]int64{}
		}
		m.Slots[slot] = token
	}
	return raised, nil
}

// checkToken returns an error that wraps ErrInvalid if there can be no such token or slot.
func checkToken(token int64, slot int) error {
	switch {
	case token < 1 || token > MaxToken:
		return fmt.Errorf("%w fencing token %d: it must be from 1 to %d", ErrInvalid, token, int64(MaxToken))
	case slot != NoSlot && (slot < 0 || slot > MaxSlot):
		return fmt.Errorf("%w slot %d: it must be from 0 to %d, or NoSlot", ErrInvalid, slot, MaxSlot)
	}
	return nil
}

// highest returns what a token for the slot must not be below.
func (m *Mark) highest(slot int) int64 {
	if slot != NoSlot {
		return max(m.Token, m.Slots[slot])
	}
	highest := m.Token
	for _, token := range m.Slots {
		highest = max(highest, token)
	}
	return highest
}

// check returns an error if no guard can have written the mark: what it was read from is
// damaged.
func (m *Mark) check() error {
	if m.Token < 0 || m.Token > MaxToken || len(m.Slots) > MaxSlot+1 {
		return fmt.Errorf("the mark is damaged: its token is %d, and it has %d slots", m.Token, len(m.Slots))
	}
	for slot, token := range m.Slots {
		if slot < 0 || slot > MaxSlot || token < 1 || token > MaxToken {
			return fmt.Errorf("the mark is damaged: slot %d has the token %d", slot, token)
		}
	}
	return nil
}

// ParseToken reads a fencing token as it stands in a header or a variable of the
// environment: decimal digits without sign, space or leading zero, from 1 to MaxToken. The
// error wraps ErrInvalid.
func ParseToken(s string) (int64, error) {
	token, err := strconv.ParseInt(s, 10, 64)
	if err != nil || token < 1 || token > MaxToken || strconv.FormatInt(token, 10) != s {
		return 0, fmt.Errorf("%w fencing token %q: it must be decimal digits, from 1 to %d", ErrInvalid, clip(s), int64(MaxToken))
	}
	return token, nil
}

// clip keeps what somebody sent from filling a log.
func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}

func checkResource(resource string) error {
	if resource == "" || len(resource) > MaxResourceBytes {
		return fmt.Errorf("%w resource: it has %d bytes; it must have 1 to %d", ErrInvalid, len(resource), MaxResourceBytes)
	}
	return nil
}
