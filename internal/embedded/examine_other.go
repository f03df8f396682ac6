//go:build !linux

package embedded

import "fencepost/internal/fencing"

// These say nothing where nobody has told them how to ask.

func examineFileSystem(string) []fencing.Finding { return nil }

func examineRoom(string) []fencing.Finding { return nil }
