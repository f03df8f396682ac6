//go:build unix

package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// screen is what people look at.
type screen struct {
	out   io.Writer
	color bool
	pause time.Duration // after each step, for people who read along
	steps int           // of this act
}

// readingTime is how long a step is left alone on a terminal.
const readingTime = 500 * time.Millisecond

// newScreen has colours and takes its time where the file is a terminal (https://no-color.org).
func newScreen(f *os.File) *screen {
	s := &screen{out: f}
	if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
		s.pause = readingTime
		s.color = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	}
	return s
}

func (s *screen) line(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

// paint is a text in a colour of the terminal.
func (s *screen) paint(code, text string) string {
	if !s.color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s *screen) title(fenced bool) {
	s.steps = 0
	text := "Without a fence: the file takes whatever comes."
	if fenced {
		text = "With a fence: each write carries its token, and the guard of the file refuses an older one."
	}
	s.line("\n%s", s.paint("1", text))
}

func (s *screen) step(text, format string, args ...any) {
	s.steps++
	s.line("  %d  %s", s.steps, text)
	if format != "" {
		s.line("     %s", s.paint("2", fmt.Sprintf(format, args...)))
	}
	time.Sleep(s.pause)
}

func (s *screen) result(good bool, word, format string, args ...any) {
	code := "1;31"
	if good {
		code = "1;32"
	}
	s.line("     %s  %s", s.paint(code, word), fmt.Sprintf(format, args...))
	time.Sleep(s.pause)
}
