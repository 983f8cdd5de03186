package bridge

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Visible makes characters that a reader cannot see, or that move a terminal,
// stand as <U+XXXX>: controls but tab and line feed, bidi and zero-width
// characters, the tag block, and stray variation selectors. CR LF becomes LF,
// and bytes that are no UTF-8 become U+FFFD.
func Visible(s string) string {
	clean := true
	for i := 0; i < len(s) && clean; i++ {
		c := s[i]
		clean = c >= 0x20 && c < 0x7f || c == '\n' || c == '\t'
	}
	if clean {
		return s
	}
	s = strings.ToValidUTF8(s, "\uFFFD")
	var b strings.Builder
	b.Grow(len(s) + 16)
	prev := rune(-1)
	for i, r := range s {
		next, _ := utf8.DecodeRuneInString(s[i+utf8.RuneLen(r):])
		switch {
		case r == '\r' && next == '\n':
		case hidden(r, prev, next):
			fmt.Fprintf(&b, "<U+%04X>", r)
		default:
			b.WriteRune(r)
		}
		prev = r
	}
	return b.String()
}

const (
	zeroWidthJoiner = 0x200D
	emojiSelector   = 0xFE0F
	textSelector    = 0xFE0E
)

func hidden(r, prev, next rune) bool {
	switch {
	case r == '\n' || r == '\t':
		return false
	case r == zeroWidthJoiner: // it joins emoji, and hides elsewhere
		return !pictograph(prev) && prev != emojiSelector || !pictograph(next)
	case r == emojiSelector || r == textSelector:
		return !pictograph(prev) && !(prev >= '0' && prev <= '9' || prev == '#' || prev == '*')
	case unicode.Is(unicode.Variation_Selector, r):
		return true
	case r >= 0xE0000 && r <= 0xE0FFF:
		return true
	case r == 0x00AD, r == 0x034F, r == 0x115F, r == 0x1160, r == 0x3164, r == 0xFFA0:
		return true
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Co, unicode.Cs)
}

func pictograph(r rune) bool {
	return r >= 0x2190 && r <= 0x2BFF || r >= 0x1F000 && r <= 0x1FAFF || r == 0x00A9 || r == 0x00AE || r >= 0x3030 && r <= 0x3299
}

// clipRunes cuts s to at most n characters.
func clipRunes(s string, n int) (string, bool) {
	if len(s) <= n {
		return s, false
	}
	count := 0
	for i := range s {
		if count == n {
			return s[:i], true
		}
		count++
	}
	return s, false
}
