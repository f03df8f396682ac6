//go:build !unix

package main

import (
	"context"
	"errors"
	"os"
	"syscall"
)

const runHelp = ""

func runUnder(context.Context, *call) error {
	return errors.New("run works on Unix only: elsewhere the children of a command can't be ended with it")
}

func isTerminal(*os.File) bool { return false }

func endBy(syscall.Signal, bool) {}
