// Package fencetest attacks storage that is said to admit fencing tokens, and says what got
// through. It needs to know nothing of the storage but how to write and read: as a Go
// interface, by commands, or by URLs.
//
//	report, err := fencetest.Attack(ctx, storage, fencetest.Options{})
//	if err != nil {
//		t.Fatal(err) // it could not be attacked
//	}
//	if err := report.Err(); err != nil {
//		t.Error(err)
//	}
//
// Every attack writes resources of its own with names that nobody else uses, so that it may
// be run at storage that has data; what it wrote stays there.
//
// What it can't see: a race that did not happen while it looked (run more Rounds), and what
// storage loses when it crashes.
package fencetest
