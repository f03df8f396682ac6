//go:build !unix

package main

import (
	"context"
	"errors"
	"os"
)

const runHelp = ""

func runUnder(context.Context, *call) error {
	return errors.New("run is there on Unix only: elsewhere a command's children can't be ended with it")
}

func isTerminal(*os.File) bool { return false }
