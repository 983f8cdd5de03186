// Package figures prints measured values against their bars, one line a figure:
// name, value, bar, and ok or short, separated by tabs.
package figures

import (
	"fmt"
	"io"
	"os"
)

// Sheet collects figures and counts which are short.
type Sheet struct {
	w         io.Writer
	ok, short int
}

// New makes a sheet that prints to w.
func New(w io.Writer) *Sheet { return &Sheet{w: w} }

// AtMost prints a figure whose bar is an upper one.
func (s *Sheet) AtMost(name string, value, bar float64, unit string) {
	s.line(name, fmt.Sprintf("%.3g %s", value, unit), fmt.Sprintf("<= %.4g %s", bar, unit), value <= bar)
}

// AtLeast prints a figure whose bar is a lower one.
func (s *Sheet) AtLeast(name string, value, bar float64, unit string) {
	s.line(name, fmt.Sprintf("%.3g %s", value, unit), fmt.Sprintf(">= %.4g %s", bar, unit), value >= bar)
}

// Told prints a figure that is reported only.
func (s *Sheet) Told(name string, value float64, unit string) {
	s.line(name, fmt.Sprintf("%.4g %s", value, unit), "-", true)
}

// Passed prints a figure that is a plain yes or no.
func (s *Sheet) Passed(name, value, bar string, ok bool) { s.line(name, value, bar, ok) }

func (s *Sheet) line(name, value, bar string, ok bool) {
	word := "ok"
	if ok {
		s.ok++
	} else {
		s.short++
		word = "short"
	}
	fmt.Fprintf(s.w, "%s\t%s\t%s\t%s\n", name, value, bar, word)
}

// End prints the count and returns the exit code.
func (s *Sheet) End() int {
	fmt.Fprintf(s.w, "%d ok, %d short\n", s.ok, s.short)
	if s.short > 0 {
		return 1
	}
	return 0
}

// Exit ends the program with the sheet's code.
func (s *Sheet) Exit() { os.Exit(s.End()) }
