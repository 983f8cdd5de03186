package command

import (
	"reflect"
	"regexp"
	"strings"

	"patchbay/internal/plane"
)

// ParseChat reads one line of chat as a command: a mention before it is left
// out, and what chat programs make of plain text is undone: typographic quotes
// and dashes, entities, marked-up links. A field that holds a secret is refused:
// everybody in the room reads along.
func (r *Registry) ParseChat(line string) (cmd *Command, in any, help string, err error) {
	words, err := Words(line)
	if err != nil {
		return nil, nil, "", err
	}
	cmd, in, help, err = r.Parse(words)
	if err != nil || cmd == nil {
		return cmd, in, help, err
	}
	v := reflect.ValueOf(in).Elem()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		what, secret := f.Tag.Lookup("sensitive")
		if o, ok := v.Field(i).Interface().(Object); ok && what == "headers" {
			secret = secretIn(o)
		}
		if secret && !v.Field(i).IsZero() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			return nil, nil, "", plane.Errorf(plane.InvalidInput, "A secret does not go through chat, where everybody reads it. Take it for known and replace it.").
				At(name).Then("Leave it out: the link asks for it.")
		}
	}
	return cmd, in, "", nil
}

var (
	mentionRE = regexp.MustCompile(`^\s*(<@[A-Za-z0-9]+(\|[^>]*)?>|@[A-Za-z0-9_.-]+)[:,]?\s*`)
	linkRE    = regexp.MustCompile(`<((?:https?://|mailto:)[^|>\s]+)(?:\|([^>]*))?>`)
	dashRE    = regexp.MustCompile(`(^|\s)[—–](\S)`)
)

const maxLine = 16 << 10

// Words splits a line the way a shell would, without anything that a shell
// would run.
func Words(line string) ([]string, error) {
	if len(line) > maxLine {
		return nil, plane.Errorf(plane.InvalidInput, "The line is too long.")
	}
	line = mentionRE.ReplaceAllString(line, "")
	line = linkRE.ReplaceAllStringFunc(line, func(m string) string {
		p := linkRE.FindStringSubmatch(m)
		if addr, ok := strings.CutPrefix(p[1], "mailto:"); ok {
			return addr
		}
		return p[1]
	})
	line = strings.NewReplacer("&amp;", "&", "&lt;", "<", "&gt;", ">", "“", `"`, "”", `"`, "„", `"`, "‘", "'", "’", "'", "\u00a0", " ").Replace(line)
	line = dashRE.ReplaceAllString(line, "$1--$2")
	line = strings.TrimPrefix(strings.TrimSpace(line), "patchbay ")
	var out []string
	var word strings.Builder
	inWord := false
	quote := rune(0)
	escaped := false
	for _, c := range line {
		switch {
		case escaped:
			word.WriteRune(c)
			escaped = false
		case c == '\\' && quote != '\'':
			escaped, inWord = true, true
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(c)
		case c == '"' || c == '\'' && !inWord:
			quote, inWord = c, true
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			if inWord {
				out = append(out, word.String())
				word.Reset()
				inWord = false
			}
		default:
			word.WriteRune(c)
			inWord = true
		}
	}
	if quote != 0 || escaped {
		return nil, plane.Errorf(plane.InvalidInput, "A quotation mark is not closed.")
	}
	if inWord {
		out = append(out, word.String())
	}
	return out, nil
}
