package redistest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// Launch lets a program that is no test start servers as tests do. What would fail
// a test is its error. stop, which is never nil, ends what was started.
func Launch(start func(t testing.TB)) (stop func() error, err error) {
	p := &program{}
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			err = errors.Join(r, p.stop())
		default:
			panic(r)
		}
	}()
	stop = p.stop
	start(p)
	return stop, nil
}

// program stands in for a test, as far as this package needs one.
type program struct {
	testing.TB // nil: the rest of its methods is not for use
	cleanups   []func()
	faults     []error
}

// failure is what ends the start.
type failure struct{ error }

func (p *program) Helper()                           {}
func (p *program) Failed() bool                      { return len(p.faults) > 0 }
func (p *program) Cleanup(f func())                  { p.cleanups = append(p.cleanups, f) }
func (p *program) Logf(string, ...any)               {}
func (p *program) Error(args ...any)                 { p.fault(fmt.Sprint(args...)) }
func (p *program) Errorf(format string, args ...any) { p.fault(fmt.Sprintf(format, args...)) }
func (p *program) Fatal(args ...any)                 { panic(failure{errors.New(fmt.Sprint(args...))}) }
func (p *program) Fatalf(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

func (p *program) fault(text string) { p.faults = append(p.faults, errors.New(text)) }

func (p *program) stop() error {
	for _, f := range slices.Backward(p.cleanups) {
		f()
	}
	err := errors.Join(p.faults...)
	p.cleanups, p.faults = nil, nil
	return err
}
