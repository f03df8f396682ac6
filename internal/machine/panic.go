package machine

import (
	"fmt"
	"runtime/debug"

	"fencepost/internal/fencing"
)

// Panic is a panic that Caught has caught. What it came from may be half done.
type Panic struct {
	Op    fencing.Op // that was under way; nil: none of fencing's
	Value any        // what was panicked with
	Stack string

	at *position // of the operation in the log, if it can be refused; else nil
}

// Error says what was under way, and what was panicked with.
func (p *Panic) Error() string { return fmt.Sprintf("a panic%s: %v", p.of(), p.Value) }

func (p *Panic) of() string {
	if p.Op == nil {
		return ""
	}
	of := fmt.Sprintf(" in %s of %q", fencing.Verb(p.Op), p.Op.LockName())
	if lease := p.Op.LockLease().Public(); lease != "" {
		of += " by lease " + string(lease)
	}
	return of
}

// Asked returns all that the operation asked for, but for secrets and metadata, for the log.
func (p *Panic) Asked() string {
	op := p.Op
	switch r := op.(type) {
	case nil:
		return ""
	case fencing.AcquireRequest:
		r.Metadata = nil
		op = r
	case fencing.RenewRequest:
		r.Metadata = nil
		op = r
	}
	return fmt.Sprintf("%+v", op)
}

// Caught calls f, and returns the panic that ended it, nil if it returned.
func Caught(f func()) (caught *Panic) {
	defer func() {
		if p := recover(); p != nil {
			caught = panicOf(p, nil)
		}
	}()
	f()
	return nil
}

// panicOf returns what was panicked with as a *Panic, if it is none already. The caller is what recovered it.
func panicOf(p any, op fencing.Op) *Panic {
	if known, is := p.(*Panic); is {
		return known
	}
	return &Panic{Op: op, Value: p, Stack: string(debug.Stack())}
}

// blame has a panic say in which operation it was. It is deferred.
func blame(op fencing.Op) {
	if p := recover(); p != nil {
		panic(panicOf(p, op))
	}
}
