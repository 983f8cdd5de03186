package command

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"patchbay/internal/bridge"
)

// table writes rows: aligned on a terminal, tab-separated elsewhere.
func table(w io.Writer, s Style, head []string, rows [][]string) {
	if !s.Terminal {
		for _, r := range rows {
			for i, c := range r {
				r[i] = strings.NewReplacer("\t", " ", "\n", " ").Replace(c)
			}
			fmt.Fprintln(w, strings.Join(r, "\t"))
		}
		return
	}
	width := make([]int, len(head))
	for _, r := range append([][]string{head}, rows...) {
		for i, c := range r {
			r[i] = strings.Join(strings.Fields(c), " ")
			width[i] = max(width[i], visibleLen(r[i]))
		}
	}
	line := func(r []string, bold bool) {
		var b strings.Builder
		for i, c := range r {
			b.WriteString(c)
			if i < len(r)-1 {
				b.WriteString(strings.Repeat(" ", width[i]-visibleLen(c)+2))
			}
		}
		text := strings.TrimRight(b.String(), " ")
		text = s.bound(text)
		if bold {
			text = s.paint("1", text)
		}
		fmt.Fprintln(w, text)
	}
	line(head, true)
	for _, r := range rows {
		line(r, false)
	}
}

var colourRE = regexp.MustCompile("\x1b\\[[0-9]+m")

// visibleLen is the width of a text without its colours.
func visibleLen(s string) int { return utf8.RuneCountInString(colourRE.ReplaceAllString(s, "")) }

// bound cuts a line to the terminal's width; colours take none.
func (s Style) bound(text string) string {
	if s.Width <= 20 || visibleLen(text) <= s.Width {
		return text
	}
	room := s.Width - 1 + utf8.RuneCountInString(text) - visibleLen(text)
	return string([]rune(text)[:room]) + "…"
}

// paint colours text where colours are wanted.
func (s Style) paint(code, text string) string {
	if !s.Color || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// state colours the word of a state; the word itself always stands there.
func (s Style) state(word string) string {
	switch word {
	case "ok", "succeeded", "connected":
		return s.paint("32", word)
	case "failed", "unavailable", "unauthorized", "cancelled":
		return s.paint("31", word)
	case "not signed in":
		return s.paint("33", word)
	case "sign-in broken":
		return s.paint("31", word)
	case "waiting", "unknown":
		return s.paint("35", word)
	}
	return word
}

// ago says how long before now a time was.
func (s Style) ago(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	if !s.Terminal {
		return t.UTC().Format(time.RFC3339)
	}
	switch d := s.Now.Sub(t); {
	case d < time.Minute:
		return fmt.Sprintf("%d s ago", max(int(d.Seconds()), 0))
	case d < time.Hour:
		return fmt.Sprintf("%d min ago", int(d.Minutes()))
	case d < 24*time.Hour:
		return fmt.Sprintf("%d h ago", int(d.Hours()))
	}
	return t.UTC().Format("2 Jan 15:04")
}

// took writes a length of time: ms below a second, then seconds.
func took(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// plainWord is what a shell takes as it is.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./@%+=:-]+$`)

// shellWord is a server's or a person's word in a line that people may paste: as it
// is where a shell does nothing with it, else in quotes. Not ok where it cannot be
// one line.
func shellWord(s string) (string, bool) {
	if plainWord.MatchString(s) && !strings.HasPrefix(s, "-") {
		return s, true
	}
	for _, r := range s {
		if r < 0x20 || r == 0x7f || bridge.Visible(string(r)) != string(r) {
			return "", false
		}
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'", s != "" && !strings.HasPrefix(s, "-")
}
